"""Every kernel compiles for every GPU it is meant for, without a spilled register."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

import pytest

from inference.errors import GPUNotFoundError, GPUTooOldError, KernelCompileError
from inference.kernels import compiler
from inference.kernels.compiler import (
    SOURCE_DIR,
    KernelCache,
    compile_source,
    nvrtc_version,
    pick_architecture,
)
from tests.inference.kernels.emulator.emulated_kernels import EMULATOR_DIR

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the CUDA packages of requirements-dev.txt")

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
SOURCES = [*sorted(SOURCE_DIR.glob("*.cu")), EMULATOR_DIR / "example_kernels.cu"]


class KernelReports:
    """What ptxas says of each source; kept between sessions, since it takes a minute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, source: Path, architecture: str) -> str:
        digest = hashlib.sha256(repr((architecture, nvrtc_version())).encode())
        for part in [source, *sorted(SOURCE_DIR.glob("*.cuh"))]:
            digest.update(part.read_bytes())
        kept = self.folder / digest.hexdigest()
        if not kept.exists():
            code, log = compile_source(source, architecture, report=True)
            assert code.startswith(b"\x7fELF")
            kept.write_text(log)
        return kept.read_text()


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> KernelReports:
    if hasattr(request.config, "cache"):
        return KernelReports(Path(request.config.cache.mkdir("kernel_reports")))
    return KernelReports(tmp_path_factory.mktemp("kernel_reports"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_compiles_without_spills(source: Path, architecture: str, reports: KernelReports) -> None:
    log = reports.of(source, architecture)
    kernels = re.findall(r"Compiling entry function '(\w+)'", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert kernels
    assert len(spills) >= len(kernels)
    assert set(spills) == {("0", "0")}, log
    assert "warning" not in log, log


def test_spills_would_show(tmp_path: Path) -> None:
    source = tmp_path / "greedy.cu"
    values = "\n".join(f"float v{i} = in[{i} * 64 + threadIdx.x];" for i in range(200))
    uses = " ".join(f"v{i} *= sum + v{199 - i}; out[{i} * 64] = v{i};" for i in range(200))
    total = " + ".join(f"v{i}" for i in range(200))
    source.write_text(
        'extern "C" __global__ void __launch_bounds__(1024) greedy(const float* __restrict__ in, '
        f"float* __restrict__ out) {{ {values} float sum = {total}; {uses} }}"
    )
    _, log = compile_source(source, "sm_75", report=True)
    assert re.search(r"[1-9]\d* bytes spill stores", log)


def test_a_source_that_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void wrong() { no_such_call(); }')
    with pytest.raises(KernelCompileError, match=r'(?s)wrong.cu.* for sm_80: .*"no_such_call"'):
        compile_source(tmp_path / "wrong.cu", "sm_80")
    with pytest.raises(KernelCompileError, match="there is no "):
        KernelCache(tmp_path, source_dir=tmp_path).load("missing.cu", "sm_80")


def test_cache_compiles_once_and_again_after_damage(tmp_path: Path) -> None:
    def fresh() -> KernelCache:
        return KernelCache(tmp_path / "cache", source_dir=EMULATOR_DIR)

    first = fresh()
    code = first.load("example_kernels.cu", "sm_80")
    assert (first.load("example_kernels.cu", "sm_80"), first.compiled) == (code, 1)
    second = fresh()
    assert (second.load("example_kernels.cu", "sm_80"), second.compiled) == (code, 0)
    assert second.load("example_kernels.cu", "sm_90") != code
    (entry,) = (tmp_path / "cache").glob("*sm_80*")
    intact = entry.read_bytes()
    for damaged in (b"", intact[:-1], intact[:500] + b"x" + intact[501:]):
        entry.write_bytes(damaged)
        third = fresh()
        assert (third.load("example_kernels.cu", "sm_80"), third.compiled) == (code, 1)
        assert entry.read_bytes() == intact
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_cache_follows_the_source_and_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one.cu"
    source.write_text('extern "C" __global__ void one() {}')
    cache = KernelCache(tmp_path / "cache", source_dir=tmp_path)
    cache.load("one.cu", "sm_80")
    source.write_text('extern "C" __global__ void two() {}')
    cache.load("one.cu", "sm_80")
    assert cache.compiled == 2
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (13, 99))
    cache.load("one.cu", "sm_80")
    assert cache.compiled == 3


def test_a_cache_that_cannot_be_written_is_said_and_does_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.cu").write_text('extern "C" __global__ void one() {}')
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file", source_dir=tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cache.load("one.cu", "sm_80")
    assert "compiled kernels are not kept" in caplog.text


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert KernelCache().folder == Path("/somewhere/hutong/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert KernelCache().folder == Path("/home/someone/.cache/hutong/kernels")


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [(75, "sm_75"), (80, "sm_80"), (86, "sm_86"), (89, "sm_89"), (90, "sm_90"), (123, "sm_121")],
)
def test_target_of_a_gpu(capability: int, architecture: str) -> None:
    assert pick_architecture(capability) == architecture


def test_gpus_too_old_and_too_new() -> None:
    with pytest.raises(GPUTooOldError, match=r"compute capability 6.1, the kernels need 7.5; use"):
        pick_architecture(61)
    with pytest.raises(KernelCompileError, match=r"capability 99.0; install a newer nvidia-cuda"):
        pick_architecture(990)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GPUNotFoundError, match=r"cuda\.no_such.*requirements-gpu\.txt"):
        compiler.cuda_module("cuda.no_such", "cuda.neither")

    class Missing:
        @staticmethod
        def nvrtcVersion() -> None:
            raise RuntimeError("no libnvrtc.so")

    monkeypatch.setattr(compiler, "cuda_module", lambda *names: Missing)
    with pytest.raises(GPUNotFoundError, match=r"NVRTC cannot be loaded \(no libnvrtc.so\)"):
        compiler.nvrtc_version()
