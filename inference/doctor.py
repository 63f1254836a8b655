"""Facts about the installation and a model folder, for people and for ``app doctor``.

Owns the checks behind ``python -m inference doctor``. A broken folder is a finding with its
remedy, not an exception.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from pathlib import Path
from typing import Any

from inference.errors import CheckpointError

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "llguidance")


def examine(model_dir: Path | None) -> dict[str, Any]:
    """Versions, CPU and, when given, the model folder loaded for real.

    The record is what ``--json`` prints: ``ok``, ``versions``, ``cpu_count`` and ``model``.
    """
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    report: dict[str, Any] = {
        "ok": None not in versions.values(),
        "versions": versions,
        "cpu_count": os.cpu_count(),
        "model": None,
    }
    if report["ok"] and model_dir is not None:
        report["model"] = _examine_model(model_dir)
        report["ok"] = "error" not in report["model"]
    return report


def _examine_model(model_dir: Path) -> dict[str, Any]:
    from inference.llm import LLM

    start = time.perf_counter()
    try:
        llm = LLM(model_dir, max_num_seqs=1)
    except CheckpointError as error:
        return {
            "path": str(model_dir),
            "error": error.problem,
            "file": str(error.path),
            "remedy": error.remedy,
        }
    runner = llm.runner
    store = runner.expert_cache.store
    return {
        "path": str(model_dir),
        "load_s": round(time.perf_counter() - start, 3),
        "num_experts": store.num_experts,
        "routed_layers": len(store.layers),
        "expert_bytes": store.size_bytes,
        "expert_cache_slots": runner.expert_cache.num_slots,
        "kv_cache_bytes": runner.kv_cache.size_bytes,
        "vocab_size": runner.vocab_size,
    }


def print_findings(report: dict[str, Any]) -> None:
    """The record as lines for people."""
    for package, version in report["versions"].items():
        print(f"{package:<14}{version or 'missing: install requirements.txt'}")
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
