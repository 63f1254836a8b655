from __future__ import annotations

import gc
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.checkpoint import format as layout
from inference.checkpoint import int4
from inference.checkpoint.loader import load_model
from inference.errors import (
    CheckpointError,
    ConfigMismatchError,
    DamagedFileError,
    MissingFileError,
    PinningError,
)
from inference.moe import expert_arena, pinning
from inference.moe.expert_arena import BlobLayout, ExpertArena
from inference.moe.expert_store import ExpertStore


def open_arena(model_dir: Path, **more: Any) -> ExpertArena:
    config = layout.read_config(model_dir)
    routing = layout.read_routing_config(model_dir, config)
    shape = layout.ExpertShape(
        config["hidden_size"], config["moe_intermediate_size"], routing.quantization.group_size
    )
    layers = range(config["num_hidden_layers"])
    return ExpertArena.load(model_dir, routing, layers=layers, shape=shape, **more)


@pytest.fixture
def model_dir(tmp_path: Path, tiny_model_dir: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def assert_equals_store(arena: ExpertArena, store: ExpertStore) -> None:
    assert arena.layers == store.layers
    assert arena.size_bytes == store.size_bytes
    for index, layer in enumerate(arena.layers):
        for expert in range(arena.num_experts):
            ours, theirs = arena.packed(index, expert), store.get(layer, expert)
            for projection in layout.PROJECTIONS:
                mine, other = getattr(ours, projection), getattr(theirs, projection)
                assert torch.equal(mine.qweight, other.qweight)
                assert torch.equal(mine.scales, other.scales)


@pytest.mark.parametrize("num_threads", [1, 8])
def test_files_land_in_their_blobs(tiny_model_dir: Path, num_threads: int) -> None:
    store = load_model(tiny_model_dir).store
    assert_equals_store(open_arena(tiny_model_dir, num_threads=num_threads), store)
    assert_equals_store(ExpertArena.from_store(store), store)


def test_parts_lie_one_after_the_other() -> None:
    blob = BlobLayout(layout.ExpertShape(2048, 512, 128))
    assert blob.blob_bytes == 1_622_016
    assert list(blob.offsets.values()) == [0, 1_048_576, 1_081_344, 1_605_632]
    with pytest.raises(ValueError, match="no multiple of 16"):
        BlobLayout(layout.ExpertShape(4, 8, 8))


def test_random_experts_keep_the_size_of_their_inputs() -> None:
    shape = layout.ExpertShape(256, 128, 32)
    arena = ExpertArena.random(shape, layers=[1, 3], num_experts=4, seed=1)
    again = ExpertArena.random(shape, layers=[1, 3], num_experts=4, seed=1)
    other = ExpertArena.random(shape, layers=[1, 3], num_experts=4, seed=2)
    for index in range(2):
        assert torch.equal(arena.blobs[index], again.blobs[index])
        assert not torch.equal(arena.blobs[index], other.blobs[index])
    dense = int4.dequantize(arena.packed(0, 3).gate_up_proj)
    assert dense.isfinite().all()
    assert float(dense.std() * 256**0.5) == pytest.approx(1.0, rel=0.15)
    assert not torch.equal(arena.blobs[0], arena.blobs[1])


def test_random_experts_made_in_blocks_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = layout.ExpertShape(64, 32, 32)
    monkeypatch.setattr(expert_arena, "_RANDOM_BLOCK_BYTES", 2 * BlobLayout(shape).blob_bytes)
    arena = ExpertArena.random(shape, layers=[0], num_experts=5)
    for expert in range(5):
        assert int4.dequantize(arena.packed(0, expert).down_proj).std() > 0
        others = (other for other in range(5) if other != expert)
        assert not any(torch.equal(arena.blobs[0][expert], arena.blobs[0][i]) for i in others)


def resave(path: Path, change: Any) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.pop("layers.1.down_proj.scales"), ConfigMismatchError, "is missing"),
        (
            lambda t: t.update({"layers.0.gate_up_proj.qweight": torch.zeros(3, 8).int()}),
            ConfigMismatchError,
            r"config.json implies I32 \[64, 8\]",
        ),
        (
            lambda t: t.update(
                {"layers.2.down_proj.scales": t["layers.2.down_proj.scales"].float()}
            ),
            ConfigMismatchError,
            "F32",
        ),
        (
            lambda t: t["layers.2.down_proj.scales"].fill_(float("nan")),
            DamagedFileError,
            "layers.2.down_proj.scales holds NaN",
        ),
        (
            lambda t: t["layers.0.gate_up_proj.scales"][5, 1:].fill_(float("inf")),
            DamagedFileError,
            "infinite",
        ),
        (
            lambda t: t.update({"layers.3.down_proj.scales": torch.zeros(1)}),
            ConfigMismatchError,
            "13 tensors where config.json implies 12",
        ),
    ],
)
def test_wrong_tensors_are_named(
    model_dir: Path, change: Any, error: type[CheckpointError], message: str
) -> None:
    path = model_dir / layout.EXPERT_FILES.format(3)
    resave(path, change)
    with pytest.raises(error, match=message) as raised:
        open_arena(model_dir)
    assert raised.value.path == path


def test_broken_files_are_named(model_dir: Path) -> None:
    path = model_dir / layout.EXPERT_FILES.format(2)
    whole = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + header_bytes])
    name = "layers.0.down_proj.scales"
    header[name]["data_offsets"][1] += 2
    wrong = json.dumps(header).encode().ljust(header_bytes)
    for content, message in (
        (b"", "is no safetensors file"),
        (whole[:100], "is no safetensors file"),
        (b"\xff" * 64, "is no safetensors file"),
        (whole[:-16], "ends before its last tensor"),
        (struct.pack("<Q", len(wrong)) + wrong + whole[8 + header_bytes :], f"{name} has"),
    ):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=message):
            open_arena(model_dir)
    path.unlink()
    with pytest.raises(MissingFileError, match="expert_02"):
        open_arena(model_dir)


def test_a_surplus_file_is_named(model_dir: Path) -> None:
    path = model_dir / layout.EXPERT_FILES.format(8)
    path.write_bytes(b"")
    with pytest.raises(ConfigMismatchError, match="counts 8 experts but this file exists"):
        open_arena(model_dir)


class _Runtime:
    """A CUDA runtime that pins all pieces but the last, or all."""

    def __init__(self, refuse: bool) -> None:
        self.refuse = refuse
        self.pinned: set[int] = set()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self.refuse and len(self.pinned) == 1:
            return 2
        self.pinned.add(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


def _only_numbered(device: torch.device | int) -> None:
    """torch refuses ``cuda`` without a number here."""
    assert torch.device("cuda", device).index is not None


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> _Runtime:
    fake = _Runtime(refuse=True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", _only_numbered)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(pinning, "_take_last_error", lambda device: None)
    return fake


def pin(allow_unpinned: bool, pieces: int = 2) -> bool:
    tensors = [torch.zeros(4096, dtype=torch.uint8) for _ in range(pieces)]
    device = torch.device("cuda")
    return pinning.pin(tensors, device, allow_unpinned=allow_unpinned, num_threads=1)


def test_refused_pinning_names_the_remedy(
    runtime: _Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PinningError, match=r"cannot pin .*CUDA error 2.*ulimit -l") as raised:
        pin(allow_unpinned=False)
    assert "allow_unpinned" in raised.value.remedy
    assert not runtime.pinned
    monkeypatch.setattr(pinning, "_reads_pageable_memory", lambda device: False)
    with pytest.raises(PinningError, match="cannot read memory that is not pinned"):
        pin(allow_unpinned=True)
    monkeypatch.setattr(pinning, "_reads_pageable_memory", lambda device: True)
    monkeypatch.setattr(pinning, "_measured_cost", lambda device: "3.0 GB/s")
    with pytest.warns(RuntimeWarning, match=r"going on unpinned as allowed, 3.0 GB/s"):
        assert not pin(allow_unpinned=True)


def test_pinned_pieces_are_released(runtime: _Runtime) -> None:
    runtime.refuse = False

    def pinned_arena() -> ExpertArena:
        shape = layout.ExpertShape(64, 32, 32)
        arena = ExpertArena(shape, layers=[0, 1], num_experts=2, device="cuda")
        arena.pin()
        assert arena.pinned
        assert runtime.pinned == {blobs.data_ptr() for blobs in arena.blobs}
        return arena

    arena = pinned_arena()
    arena.close()
    assert not runtime.pinned
    del arena
    arena = pinned_arena()
    del arena
    gc.collect()
    assert not runtime.pinned


@pytest.mark.gpu
def test_the_gpu_copies_from_the_arena(tiny_model_dir: Path) -> None:
    arena = open_arena(tiny_model_dir, device="cuda")
    assert arena.pinned
    for blobs in arena.blobs:
        there = torch.empty_like(blobs, device="cuda")
        there.copy_(blobs, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(there.cpu(), blobs)
    arena.close()
