"""Facts about the installation and a model folder, for people and for ``app doctor``.

Owns the checks behind ``python -m inference doctor``. A broken folder is a finding with its
remedy, not an exception.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
import time
from pathlib import Path
from typing import Any

from inference.config import MIB, EngineConfig
from inference.errors import CheckpointError, DeviceError

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "llguidance")
_GPU_PACKAGES = ("cuda-core",)


def examine(model_dir: Path | None, config: EngineConfig) -> dict[str, Any]:
    """Versions, CPU, GPU and, when given, the model folder loaded for real on ``config.device``.

    The record is what ``--json`` prints: ``ok``, ``versions``, ``cpu_count``, ``gpu`` and
    ``model``. A missing GPU is no fault on "cpu".
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
        "model": None,
    }
    if config.device == "cuda" and (report["gpu"] is None or "error" in report["gpu"]):
        report["ok"] = False
    if report["ok"] and model_dir is not None:
        report["model"] = _examine_model(model_dir, config)
        report["ok"] = "error" not in report["model"]
    return report


def examine_gpu() -> dict[str, Any]:
    """Name, memory and compute capability of the first GPU, and how much memory may be pinned."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        return {
            "error": "torch sees no GPU" if built else "this torch is built for the CPU",
            "remedy": "check the driver with nvidia-smi"
            if built
            else "run make setup on the GPU machine",
        }
    properties = torch.cuda.get_device_properties(0)
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "memlock_bytes": None if lock == resource.RLIM_INFINITY else lock,
    }


def _examine_model(model_dir: Path, config: EngineConfig) -> dict[str, Any]:
    from inference.engine.model_runner import ModelRunner
    from inference.llm import LLM

    start = time.perf_counter()
    try:
        llm = LLM(model_dir, config=config)
    except (CheckpointError, DeviceError) as error:
        path = error.path if isinstance(error, CheckpointError) else model_dir
        return {
            "path": str(model_dir),
            "error": error.problem,
            "file": str(path),
            "remedy": error.remedy,
        }
    runner = llm.runner
    found: dict[str, Any] = {
        "path": str(model_dir),
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
    gpu = report["gpu"]
    if gpu is not None and "error" in gpu:
        print(f"gpu           {gpu['error']}; {gpu['remedy']}")
    elif gpu is not None:
        memory, lock = gpu["memory_bytes"] // MIB, gpu["memlock_bytes"]
        pinned = "no limit" if lock is None else f"{lock // MIB:,} MiB"
        print(
            f"gpu           {gpu['name']}, {memory:,} MiB, compute capability "
            f"{gpu['compute_capability']}, CUDA {gpu['cuda']}, memory lock: {pinned}"
        )
    model = report["model"]
    if model is None:
        return
    if "error" in model:
        print(f"model         {model['file']}: {model['error']}; {model['remedy']}")
        return
    print(
        f"model         {model['path']}: {model['num_experts']} experts in "
        f"{model['routed_layers']} layers, {model['expert_bytes'] / 1e6:.1f} MB INT4, "
        f"{model['expert_cache_slots']} slots a layer, loaded in {model['load_s']} s"
    )
