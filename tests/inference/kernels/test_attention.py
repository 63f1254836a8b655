"""The attention step against its torch reference.

fp32 sums in another order: outputs of size 1 differ by less than 1e-5. A key may fall on the
other side of a rounding step of fp16 or fp8, hence the wider tolerances there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.kernels import reference_attention as reference
from inference.kernels.attention import (
    AttentionWorkspace,
    KVLayer,
    attention_step,
    attention_workspace,
)
from inference.kernels.library import KernelLibrary
from tests.inference.kernels.emulator.emulated_kernels import EmulatedKernels

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.uint8: 6e-2}
DTYPES = [torch.float32, torch.float16, torch.uint8]


class Case:
    """Random inputs of one step, on the CPU."""

    def __init__(
        self,
        *,
        head_dim: int = 32,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        positions: tuple[int, ...] = (0,),
        page_size: int = 16,
        dtype: torch.dtype = torch.float16,
        rotary_dim: int | None = None,
        gated: bool = True,
        zero_centred: bool = True,
        normed: bool = True,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def randn(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator)

        batch = len(positions)
        width = max(1, max(positions) // page_size + 1)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        columns = head_dim * (num_heads * (2 if gated else 1) + 2 * num_kv_heads)
        self.projected = randn(batch, columns)
        angles = torch.arange(width * page_size)[:, None] * torch.rand(
            rotary_dim // 2, generator=generator
        )
        # Keys and values of earlier tokens; three pages more than any sequence has.
        shape = (batch * width + 3, num_kv_heads, page_size, head_dim)
        keys, key_scales = reference.to_page(randn(*shape), dtype)
        values, value_scales = reference.to_page(randn(*shape), dtype)
        self.pages = KVLayer(keys, values, key_scales, value_scales)
        tables = torch.randperm(shape[0], generator=generator)[: batch * width]
        self.arguments: dict[str, Any] = {
            "q_norm": randn(head_dim) if normed else None,
            "k_norm": randn(head_dim) if normed else None,
            "eps": 1e-6,
            "zero_centred": zero_centred,
            "gated": gated,
            "rotary": (angles.cos(), angles.sin()),
            "positions": torch.tensor(positions, dtype=torch.int32),
            "block_tables": tables.view(batch, width).int(),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }

    def run(self, lib: KernelLibrary) -> tuple[Tensor, KVLayer]:
        """Output and pages of the kernels; all they leave out would stay NaN."""
        pages = KVLayer(
            *[
                None if part is None else part.to(lib.device, copy=True)  # type: ignore[arg-type]
                for part in vars(self.pages).values()
            ]
        )
        sizes = {name: self.arguments[name] for name in ("num_heads", "num_kv_heads", "head_dim")}
        workspace = attention_workspace(lib, max_batch=len(self.projected), **sizes)
        workspace.partial.fill_(float("nan"))
        workspace.stats.fill_(float("nan"))
        out = torch.full(
            (len(self.projected), sizes["num_heads"] * sizes["head_dim"]), float("nan")
        ).to(lib.device)
        moved = {
            name: value.to(lib.device) if isinstance(value, Tensor) else value
            for name, value in self.arguments.items()
        }
        moved["rotary"] = tuple(part.to(lib.device) for part in self.arguments["rotary"])
        attention_step(
            lib, self.projected.to(lib.device), pages=pages, workspace=workspace, out=out, **moved
        )
        return out.cpu(), KVLayer(
            *[None if part is None else part.cpu() for part in vars(pages).values()]  # type: ignore[arg-type]
        )

    def expected(self) -> tuple[Tensor, KVLayer]:
        pages = KVLayer(
            *[None if part is None else part.clone() for part in vars(self.pages).values()]
        )
        return reference.attention_step(self.projected, pages=pages, **self.arguments), pages


def assert_same(case: Case, lib: KernelLibrary) -> None:
    out, pages = case.run(lib)
    expected, expected_pages = case.expected()
    dtype = pages.keys.dtype
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype] / 10, rtol=0)
    for stored, scales, wanted, wanted_scales in (
        (pages.keys, pages.key_scales, expected_pages.keys, expected_pages.key_scales),
        (pages.values, pages.value_scales, expected_pages.values, expected_pages.value_scales),
    ):
        torch.testing.assert_close(
            reference.from_page(stored, scales),
            reference.from_page(wanted, wanted_scales),
            atol=TOLERANCE[dtype],
            rtol=TOLERANCE[dtype],
        )
    assert torch.equal(pages.values, expected_pages.values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 96, 128, 256])
def test_equals_the_reference(kernels: KernelLibrary, head_dim: int, dtype: torch.dtype) -> None:
    assert_same(Case(head_dim=head_dim, dtype=dtype, positions=(75, 31)), kernels)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_ragged_rows_and_padding(kernels: KernelLibrary, batch: int, dtype: torch.dtype) -> None:
    positions = (130, 0, -1, 15, 16, 64, -1, 33)[:batch]
    case = Case(positions=positions, dtype=dtype, page_size=16)
    assert_same(case, kernels)
    out, _ = case.run(kernels)
    assert torch.equal(out[[p < 0 for p in positions]], torch.zeros(positions.count(-1), 128))


@pytest.mark.parametrize("position", [0, 3, 4, 7, 8, 31, 32, 33, 127, 128, 160])
def test_page_and_split_boundaries(emulator_cache: Path, position: int) -> None:
    lib = EmulatedKernels(emulator_cache, multiprocessors=20)
    for page_size in (4, 8, 64):
        assert_same(Case(positions=(position,), page_size=page_size), lib)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (3, 1), (16, 2), (24, 2), (20, 1)])
def test_groups_of_heads(kernels: KernelLibrary, num_heads: int, num_kv_heads: int) -> None:
    assert_same(Case(num_heads=num_heads, num_kv_heads=num_kv_heads, positions=(40, 9)), kernels)


@pytest.mark.parametrize(
    "options",
    [
        {"rotary_dim": 8},
        {"gated": False},
        {"zero_centred": False},
        {"normed": False},
        {"gated": False, "zero_centred": False, "rotary_dim": 32},
    ],
)
def test_variants_of_the_layer(kernels: KernelLibrary, options: dict[str, Any]) -> None:
    assert_same(Case(positions=(40, 9), **options), kernels)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_shape_of_the_large_model(kernels: KernelLibrary, dtype: torch.dtype) -> None:
    case = Case(
        head_dim=256,
        num_heads=16,
        num_kv_heads=2,
        rotary_dim=64,
        page_size=64,
        positions=(700,),
        dtype=dtype,
    )
    assert_same(case, kernels)


def test_splits_change_only_the_rounding(emulator_cache: Path) -> None:
    case = Case(positions=(500, 260), head_dim=64)
    whole, _ = case.run(EmulatedKernels(emulator_cache, multiprocessors=1))
    split, _ = case.run(EmulatedKernels(emulator_cache, multiprocessors=132))
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-5)


def test_the_order_of_blocks_changes_nothing(emulator_cache: Path) -> None:
    case = Case(positions=(500, 260), head_dim=64)
    outputs = [
        case.run(EmulatedKernels(emulator_cache, multiprocessors=40, seed=seed))[0]
        for seed in (1, 2, 3)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_other_rows_change_nothing(kernels: KernelLibrary) -> None:
    case = Case(positions=(90, 12, 55, 3))
    out, _ = case.run(kernels)
    case.projected[1:] *= 3.0
    case.arguments["positions"][1:] = torch.tensor([80, -1, 2])
    again, _ = case.run(kernels)
    assert torch.equal(out[0], again[0])


def test_only_the_new_token_is_written(kernels: KernelLibrary) -> None:
    case = Case(positions=(37, -1), page_size=16)
    _, pages = case.run(kernels)
    changed = (pages.keys != case.pages.keys).any(-1)
    wanted = torch.zeros_like(changed)
    wanted[case.arguments["block_tables"][0, 2], :, 5] = True
    assert torch.equal(changed, wanted)


def test_fp8_rounds_as_torch(kernels: KernelLibrary) -> None:
    """Every e4m3 number, every tie between two of them and their neighbours in fp32."""
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    points = torch.cat([codes, ties, ties.nextafter(torch.tensor(0.0)), ties * (1 + 1e-6)])
    points = torch.cat([points, -points])
    for start in range(0, len(points), 31):
        case = Case(head_dim=32, num_heads=1, num_kv_heads=1, dtype=torch.uint8)
        chunk = points[start : start + 31]
        case.projected[0, -32:] = 0.0
        case.projected[0, -32 : len(chunk) - 32] = chunk
        case.projected[0, -1] = 448.0  # scale 1
        _, pages = case.run(kernels)
        row = pages.values[case.arguments["block_tables"][0, 0], 0, 0]
        expected, _ = reference.to_page(case.projected[0, -32:], torch.uint8)
        assert torch.equal(row, expected)


def test_fp8_of_zeros(kernels: KernelLibrary) -> None:
    case = Case(dtype=torch.uint8)
    case.projected.zero_()
    out, pages = case.run(kernels)
    assert torch.equal(out, torch.zeros_like(out))
    assert pages.value_scales is not None
    assert bool(pages.value_scales.isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 20}, "head_dim 20"),
        ({"head_dim": 264}, "head_dim 264"),
        ({"page_size": 12}, "page size 12"),
        ({"page_size": 2}, "page size 2"),
        ({"num_heads": 3}, "3 heads"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
    ],
)
def test_what_the_kernels_do_not_cover(
    emulated_kernels: KernelLibrary, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Case(**options).run(emulated_kernels)


def test_wrong_columns_and_small_workspace(emulated_kernels: KernelLibrary) -> None:
    case = Case()
    case.projected = case.projected[:, :-1]
    with pytest.raises(ValueError, match="projected columns"):
        case.run(emulated_kernels)
    case = Case()
    small = AttentionWorkspace(torch.empty(1), torch.empty(1))
    with pytest.raises(ValueError, match="workspace"):
        attention_step(
            emulated_kernels,
            case.projected,
            pages=case.pages,
            workspace=small,
            out=torch.empty(1, 128),
            **case.arguments,
        )


def test_a_context_too_long_for_the_page_size(emulated_kernels: KernelLibrary) -> None:
    case = Case(page_size=4)
    case.arguments["block_tables"] = torch.zeros(1, 10000, dtype=torch.int32)
    with pytest.raises(ValueError, match="larger pages"):
        case.run(emulated_kernels)


def test_a_padded_row_leaves_the_cache_alone(emulated_kernels: KernelLibrary) -> None:
    case = Case(positions=(-1,))
    case.pages = replace(case.pages, keys=torch.full_like(case.pages.keys, float("nan")))
    out, pages = case.run(emulated_kernels)
    assert bool(pages.keys.isnan().all())
    assert torch.equal(out, torch.zeros_like(out))
