"""CUDA C++ to machine code by NVRTC, kept on disk. Needs no GPU.

Owns the call of the compiler (package ``cuda-core``) and the cache of its results. Knows no
kernel and loads nothing onto a GPU.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from inference.errors import GPUNotFoundError, GPUTooOldError, KernelCompileError

SOURCE_DIR = Path(__file__).parent
MIN_COMPUTE_CAPABILITY = 75
INSTALL_REMEDY = (
    "install the CUDA packages: deploy/setup.sh requirements.txt on a machine with an NVIDIA "
    "driver, or pip install -r requirements-gpu.txt beside the CUDA build of torch"
)
_DIGEST_BYTES = 32
logger = logging.getLogger(__name__)


def cuda_module(*names: str) -> Any:
    """The first of these modules of the CUDA packages that exists.

    Raises:
        GPUNotFoundError: None is installed.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            problem = error
    raise GPUNotFoundError(f"cannot import {names[0]} ({problem})", INSTALL_REMEDY)


def cuda_core() -> Any:
    """The module with ``Program``.

    Raises:
        GPUNotFoundError: It is not installed.
    """
    core = cuda_module("cuda.core", "cuda.core.experimental")
    if not hasattr(core, "Program"):  # before 1.0 the package is an empty shell around this
        core = cuda_module("cuda.core.experimental")
    return core


def nvrtc_version() -> tuple[int, int]:
    """Version of the compiler's library, such as (13, 0).

    Raises:
        GPUNotFoundError: The package or the library is missing.
    """
    major, minor = _nvrtc("nvrtcVersion")
    return major, minor


def pick_architecture(compute_capability: int) -> str:
    """The newest target of this compiler whose code runs on the GPU, such as ``"sm_86"``.

    Machine code runs on later GPUs of the same major version.

    Args:
        compute_capability: 10 x major + minor.

    Raises:
        GPUTooOldError: The GPU is older than the kernels need.
        KernelCompileError: The compiler is too old for the GPU.
    """
    if compute_capability < MIN_COMPUTE_CAPABILITY:
        raise GPUTooOldError(
            f"the GPU has compute capability {compute_capability // 10}.{compute_capability % 10}, "
            "the kernels need 7.5",
            "use a GTX 16, an RTX 20 or a later GPU, or run on the CPU (device=cpu)",
        )
    (supported,) = _nvrtc("nvrtcGetSupportedArchs")
    fitting = [
        arch
        for arch in supported
        if arch <= compute_capability and arch // 10 == compute_capability // 10
    ]
    if not fitting:
        raise KernelCompileError(
            f"NVRTC {'.'.join(map(str, nvrtc_version()))} has no target for compute capability "
            f"{compute_capability // 10}.{compute_capability % 10}",
            "install a newer nvidia-cuda-nvrtc",
        )
    return f"sm_{max(fitting)}"


def compile_source(
    source: Path, architecture: str, *, report: bool = False, include_dir: Path = SOURCE_DIR
) -> tuple[bytes, str]:
    """Compile one file.

    Args:
        source: The file; ``#include`` finds what lies in ``include_dir``.
        architecture: A target such as ``"sm_75"``.
        report: Has ptxas report registers, spills and shared memory of each kernel.

    Returns:
        The cubin, and what the compiler wrote.

    Raises:
        KernelCompileError: With the compiler's message.
        GPUNotFoundError: The CUDA packages are missing.
    """
    core = cuda_core()
    nvrtc_version()  # a missing library is another error than a source that does not compile
    options: dict[str, Any] = {"ptxas_options": ["-v"]} if report else {}
    written = io.StringIO()
    try:
        program = core.Program(
            source.read_text(encoding="utf-8"),
            "c++",
            core.ProgramOptions(
                name=source.name,
                arch=architecture,
                std="c++17",
                include_path=[str(include_dir)],
                **options,
            ),
        )
        code: bytes = program.compile("cubin", logs=written).code
    except Exception as error:  # cuda.core gives its errors no public class
        message = str(error).replace("\0", "").strip()
        raise KernelCompileError(
            f"{source.name} does not compile for {architecture}: {message}",
            "report it with the versions of cuda-core and nvidia-cuda-nvrtc",
        ) from error
    return code, written.getvalue().replace("\0", "")


class KernelCache:
    """Compiled sources in one folder. Entries that are damaged are built again."""

    def __init__(self, folder: Path | None = None, *, source_dir: Path = SOURCE_DIR) -> None:
        """``folder`` is by default ``hutong/kernels`` in the user's cache folder."""
        self.folder = default_cache_dir() if folder is None else folder
        self.source_dir = source_dir
        self.compiled = 0

    def load(self, source: str, architecture: str) -> bytes:
        """The cubin of a file, from the disk or compiled now.

        Raises:
            KernelCompileError: There is no such file, or it does not compile.
            GPUNotFoundError: The CUDA packages are missing.
        """
        path = self.source_dir / source
        if not path.is_file():
            raise KernelCompileError(f"there is no {path}", "install the package again, whole")
        entry = self.folder / f"{path.stem}-{architecture}-{self._key(path)}.cubin"
        code = _read(entry)
        if code is None:
            code, _ = compile_source(path, architecture)
            self.compiled += 1
            _write(entry, code)
        return code

    def _key(self, path: Path) -> str:
        digest = hashlib.sha256(repr(nvrtc_version()).encode())
        for part in [path, *sorted(SOURCE_DIR.glob("*.cuh"))]:
            digest.update(part.read_bytes())
        return digest.hexdigest()[:24]


def default_cache_dir() -> Path:
    """Where compiled kernels lie unless told otherwise."""
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "hutong" / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hutong" / "kernels"


def _nvrtc(function: str) -> tuple[Any, ...]:
    """Call a function of NVRTC that takes no arguments."""
    nvrtc = cuda_module("cuda.bindings.nvrtc")
    try:
        result, *values = getattr(nvrtc, function)()
    except RuntimeError as error:  # the library is not found
        raise GPUNotFoundError(f"NVRTC cannot be loaded ({error})", INSTALL_REMEDY) from error
    if int(result) != 0:
        raise KernelCompileError(f"{function}: {result.name}", "install nvidia-cuda-nvrtc again")
    return tuple(values)


def _read(entry: Path) -> bytes | None:
    """The code of an entry, None where it is missing or does not match its digest."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(entry: Path, code: bytes) -> None:
    """Write an entry in one move; several processes may do so at once."""
    unfinished = entry.with_suffix(f".{secrets.token_hex(8)}")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(hashlib.sha256(code).digest() + code)
        unfinished.replace(entry)
    except OSError as error:
        logger.warning("compiled kernels are not kept: %s", error)
