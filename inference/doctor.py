"""Facts about the installation and a model folder, for people and for ``app doctor``.

Owns the checks behind ``python -m inference doctor``. A broken folder is a finding with its
remedy, not an exception.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inference.benchmarks import nvidia_smi
from inference.benchmarks.link import measure_link
from inference.config import MIB, EngineConfig
from inference.errors import CheckpointError, DeviceError, MeasurementError, MemoryPlanError

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "llguidance")
_GPU_PACKAGES = ("cuda-core",)
_LINK_BYTES = 64 * MIB
"""Twice this is taken of the GPU for a second, beside an engine that fills it."""


def examine(model_dir: Path | None, config: EngineConfig, *, load: bool = True) -> dict[str, Any]:
    """Versions, CPU, GPU and, when given, the model folder loaded for real on ``config.device``.

    Without ``load`` the folder is only surveyed, which disturbs no engine beside it. The record
    is what ``--json`` prints: ``ok``, ``versions``, ``cpu_count``, ``gpu``, ``link`` (on "cuda")
    and ``model``. A missing GPU is no fault on "cpu".
    """
    versions: dict[str, str | None] = {}
    for package in _PACKAGES + (_GPU_PACKAGES if config.device == "cuda" else ()):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    report: dict[str, Any] = {
        "ok": None not in versions.values(),
        "versions": versions,
        "cpu_count": os.cpu_count(),
        "gpu": examine_gpu() if versions["torch"] is not None else None,
        "link": None,
        "model": None,
    }
    if config.device == "cuda" and (report["gpu"] is None or "error" in report["gpu"]):
        report["ok"] = False
    elif config.device == "cuda":
        report["link"] = _examine_link()
    # A look at the folder needs no GPU; a load does.
    possible = report["ok"] if load else None not in versions.values()
    if possible and model_dir is not None:
        report["model"] = _or_error(_loaded if load else _looked_at, model_dir, config)
        report["ok"] &= "error" not in report["model"]
    return report


def examine_gpu() -> dict[str, Any]:
    """Name, memory, compute capability and driver of the first GPU, and how much memory may be
    pinned. ``cuda`` is ``None`` when torch is built for the CPU."""
    import torch

    built = torch.version.cuda
    if not torch.cuda.is_available():
        return {
            "cuda": built,
            "error": "torch sees no GPU" if built else "this torch is built for the CPU",
            "remedy": "check the driver with nvidia-smi"
            if built
            else "run make setup on the GPU machine",
        }
    free_bytes = nvidia_smi.free_bytes()  # before torch may make a context
    properties = torch.cuda.get_device_properties(0)
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "free_bytes": free_bytes,
        "multiprocessors": properties.multi_processor_count,
        "cuda": built,
        "driver": nvidia_smi.driver_version(),
        "memlock_bytes": None if lock == resource.RLIM_INFINITY else lock,
    }


def _examine_link() -> dict[str, Any]:
    try:
        return asdict(measure_link("cuda", size_bytes=_LINK_BYTES))
    except MeasurementError as error:
        return {"error": str(error)}


def _or_error(
    look: Callable[[Path, EngineConfig], dict[str, Any]], model_dir: Path, config: EngineConfig
) -> dict[str, Any]:
    """What ``look`` finds, or what is wrong. ``remedies`` are settings that make it fit."""
    try:
        return look(model_dir, config)
    except (CheckpointError, DeviceError) as error:
        path = error.path if isinstance(error, CheckpointError) else model_dir
        return {
            "path": str(model_dir),
            "error": error.problem,
            "file": str(path),
            "remedy": error.remedy,
            "remedies": error.remedies if isinstance(error, MemoryPlanError) else {},
        }


def _looked_at(model_dir: Path, config: EngineConfig) -> dict[str, Any]:
    from inference.survey import survey

    return survey(model_dir, config)


def _loaded(model_dir: Path, config: EngineConfig) -> dict[str, Any]:
    from inference.checkpoint import checksums
    from inference.engine.model_runner import ModelRunner
    from inference.llm import LLM

    checked = checksums.verify(model_dir)
    start = time.perf_counter()
    llm = LLM(model_dir, config=config)
    runner = llm.runner
    found: dict[str, Any] = {
        "path": str(model_dir),
        "checked_files": checked,
        "load_s": round(time.perf_counter() - start, 3),
        "kv_cache_bytes": runner.kv_cache.size_bytes,
        "vocab_size": runner.vocab_size,
    }
    if isinstance(runner, ModelRunner):
        store = runner.expert_cache.store
        found |= {
            "num_experts": store.num_experts,
            "routed_layers": len(store.layers),
            "expert_bytes": store.size_bytes,
            "expert_cache_slots": runner.expert_cache.num_slots,
        }
    else:
        geometry, plan = runner.geometry, runner.plan
        found |= {
            "num_experts": geometry.num_experts,
            "routed_layers": len(geometry.routed_layers),
            "expert_bytes": geometry.num_all_experts * geometry.expert_bytes,
            "expert_cache_slots": min(plan.slots_per_layer),
            "memory_plan": plan.to_json(),
        }
    return found


def print_findings(report: dict[str, Any]) -> None:
    """The record as lines for people."""
    for package, version in report["versions"].items():
        print(f"{package:<14}{version or 'missing: install requirements.txt'}")
    for part, line in (("gpu", _gpu_line), ("link", _link_line), ("model", _model_line)):
        if report[part] is not None:
            print(f"{part:<14}{line(report[part])}")


def _gpu_line(gpu: dict[str, Any]) -> str:
    if "error" in gpu:
        return f"{gpu['error']}; {gpu['remedy']}"
    memory, lock = gpu["memory_bytes"] // MIB, gpu["memlock_bytes"]
    pinned = "no limit" if lock is None else f"{lock // MIB:,} MiB"
    return (
        f"{gpu['name']}, {memory:,} MiB, compute capability {gpu['compute_capability']}, "
        f"CUDA {gpu['cuda']}, driver {gpu['driver'] or 'unknown'}, memory lock: {pinned}"
    )


def _link_line(link: dict[str, Any]) -> str:
    if "error" in link:
        return str(link["error"])
    pcie = {name: value or "?" for name, value in link["pcie"].items()}
    return (
        f"{link['link_gb_s']:.1f} GB/s, PCIe {pcie['generation']} x{pcie['width']} under load, "
        f"at most {pcie['max_generation']} x{pcie['max_width']}"
    )


def _model_line(model: dict[str, Any]) -> str:
    if "error" in model:
        return f"{model['file']}: {model['error']}; {model['remedy']}"
    size = (
        f"{model['path']}: {model['num_experts']} experts in {model['routed_layers']} layers, "
        f"{model['expert_bytes'] / 1e6:.1f} MB INT4, {_checked(model['checked_files'])}, "
    )
    if "load_s" in model:
        return f"{size}{model['expert_cache_slots']} slots a layer, loaded in {model['load_s']} s"
    share = f"{model['resident_share']:.0%} of the experts fit into the slots"
    return f"{size}{share}"


def _checked(num_files: int | None) -> str:
    if num_files is None:
        return "no SHA256SUMS to check the files by"
    return f"{num_files} files are as SHA256SUMS says"
