from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from inference.benchmarks.random_model import build_stock_model
from inference.checkpoint import checksums
from inference.checkpoint.convert import convert, export_model
from inference.errors import DamagedFileError, MissingFileError
from tests.inference.conftest import TINY

NUM_SHIPPED = 32 + 6  # experts, backbone, config and four small files


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    copied = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    checksums.write(copied)
    return copied


@pytest.mark.parametrize("name", ["demo-moe", "fixture-moe"])
def test_the_shipped_models_are_as_they_were_made(name: str) -> None:
    assert checksums.verify(Path("models") / name) == NUM_SHIPPED


def test_the_list_is_that_of_sha256sum(folder: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def test_a_conversion_ends_with_sums(tmp_path: Path) -> None:
    build_stock_model(TINY).save_pretrained(tmp_path / "stock")
    convert(tmp_path / "stock", tmp_path / "out")
    listed = (tmp_path / "out" / "SHA256SUMS").read_text()
    assert checksums.verify(tmp_path / "out") == len(listed.splitlines())
    for name in ("model.safetensors", "experts/expert_07.safetensors", "config.json"):
        assert f"  {name}\n" in listed


def test_new_weights_take_the_old_sums_away(folder: Path) -> None:
    export_model(build_stock_model(TINY, seed=1), folder)
    assert checksums.verify(folder) is None


@pytest.mark.parametrize("name", ["model.safetensors", "experts/expert_05.safetensors",
                                  "config.json", "tokenizer.json"])  # fmt: skip
def test_a_changed_byte_is_noticed_and_the_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    data[-1] ^= ord("\n") ^ ord(" ")
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="SHA-256") as caught:
        checksums.verify(folder)
    assert caught.value.path == path


def test_a_listed_file_that_is_gone(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingFileError) as caught:
        checksums.verify(folder)
    assert caught.value.path == folder / "tokenizer.json"


@pytest.mark.parametrize("name", ["tokenizer.json", "SHA256SUMS", "config.json"])
def test_a_file_that_the_system_does_not_give(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("/proc/self/mem")  # there, and reading it fails for root too
    with pytest.raises(DamagedFileError, match="cannot be read") as caught:
        checksums.verify(folder)
    assert caught.value.path == folder / name


def test_a_list_that_lacks_a_file(folder: Path) -> None:
    path = folder / "SHA256SUMS"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "expert_03" not in line))
    with pytest.raises(DamagedFileError, match="expert_03"):
        checksums.verify(folder)


@pytest.mark.parametrize("text", [b"", b"no sums\n", b"ab  model.safetensors\n", b"\xff\xfe"])
def test_a_list_that_is_none(folder: Path, text: bytes) -> None:
    (folder / "SHA256SUMS").write_bytes(text)
    with pytest.raises(DamagedFileError) as caught:
        checksums.verify(folder)
    assert caught.value.path == folder / "SHA256SUMS"
