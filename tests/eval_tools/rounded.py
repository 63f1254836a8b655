"""A copy of a model folder whose backbone went through INT4, for the comparison of number formats.

Owns which weights are rounded: attention projections, embedding and lm_head, symmetric, groups of
32 along a row, as the experts are. Norms and routers stay as they are. The copy's backbone is
stored as FP16, so every engine reads it; its values are those of INT4.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from inference.checkpoint.int4 import round_trip

GROUP_SIZE = 32
_ROUNDED = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")


def round_backbone(model_dir: Path, copy_dir: Path) -> int:
    """Write the copy; returns how many tensors were rounded."""
    shutil.copytree(model_dir, copy_dir)
    path = copy_dir / "model.safetensors"
    tensors = load_file(path)
    count = 0
    for name, tensor in tensors.items():
        if name.endswith(_ROUNDED):
            tensors[name] = round_trip(tensor.float(), GROUP_SIZE).to(tensor.dtype).contiguous()
            count += 1
    path.unlink()
    save_file(tensors, path, metadata={"format": "pt"})
    return count
