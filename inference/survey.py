"""What a model folder holds, without loading it: every byte read once, and no GPU memory.

Owns the look at every file's header and the figures made from config.json. Whether the values
are sound is for the loader to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from inference.checkpoint import checksums
from inference.checkpoint import format as layout
from inference.config import EngineConfig
from inference.errors import DamagedFileError, MissingFileError
from inference.geometry import ModelGeometry
from inference.memory_plan import plan_memory


def survey(model_dir: Path, config: EngineConfig) -> dict[str, Any]:
    """Files, sizes, and on "cuda" the memory plan.

    ``checked_files`` counts those whose checksum is right, ``None`` without SHA256SUMS.
    ``token_bytes`` are the experts that one token uses, ``resident_share`` (0-1) the experts that
    fit into the slots. Raises ``CheckpointError`` or ``MemoryPlanError``.
    """
    fields = layout.read_config(model_dir)
    routing = layout.read_routing_config(model_dir, fields)
    geometry = ModelGeometry.from_config(fields, group_size=routing.quantization.group_size)
    weights = [model_dir / layout.BACKBONE_FILE, *layout.expert_paths(model_dir, routing)]
    for path in (*weights, model_dir / layout.TOKENIZER_FILE):
        if not path.is_file():
            raise MissingFileError(
                path, "the file is missing", "copy it or convert the model again"
            )
    for path in weights:
        _check_length(path)
    found: dict[str, Any] = {
        "path": str(model_dir),
        "num_files": len(weights),
        "checked_files": checksums.verify(model_dir),
        "file_bytes": sum(path.stat().st_size for path in weights),
        "num_experts": geometry.num_experts,
        "routed_layers": len(geometry.routed_layers),
        "expert_bytes": geometry.num_all_experts * geometry.expert_bytes,
        "token_bytes": len(geometry.routed_layers)
        * geometry.num_experts_per_tok
        * geometry.expert_bytes,
        "resident_share": 1.0,
    }
    if config.device == "cuda":
        plan = plan_memory(geometry, config)
        found["memory_plan"] = plan.to_json()
        found["resident_share"] = plan.num_slots / geometry.num_all_experts
    return found


def _check_length(path: Path) -> None:
    """A copy that broke off is shorter than its header says; opening it notices."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(path, f"cannot be read ({error})", "copy the file again") from error
