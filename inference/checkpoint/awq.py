"""Reads AWQ (GEMM) checkpoints of both architectures into dense tensors under the stock names.

Owns the names and shapes of an AWQ file; the bit order is autoawq's own code. autoawq 0.2.9 can
neither load nor quantise this model class on transformers 5 (docs/decisions/0002), but its
packing functions are right, so they are what is used of it, and only when such a file is read.

An AWQ file folds scales into its norms: norms and routers are taken from the same file.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.checkpoint import format as layout
from inference.checkpoint.source import stock_name
from inference.errors import ConfigMismatchError, DamagedFileError, MissingFileError

_EXPERT = re.compile(r"^(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$")
_PACKED = (".qweight", ".qzeros", ".scales")

Dequantize = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]


def is_awq(config: dict[str, Any]) -> bool:
    """Whether config.json says AWQ; the name of a repository says nothing."""
    quantization = config.get("quantization_config") or {}
    return bool(quantization.get("quant_method") == "awq")


def read_dense(source: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors of ``source``, fp32, experts fused as the stock class holds them.

    ``gate_up_proj`` [num_experts, 2*intermediate, hidden], ``down_proj`` [num_experts, hidden,
    intermediate]. Needs RAM for the whole dense model. Raises ``CheckpointError``.
    """
    quantization = config["quantization_config"]
    bits, group_size = quantization.get("bits"), quantization.get("group_size")
    if bits != 4 or not isinstance(group_size, int) or quantization.get("version") != "gemm":
        raise ConfigMismatchError(
            source / layout.CONFIG_FILE,
            f"AWQ with {quantization} is not read",
            "use a 4-bit file of version gemm",
        )
    raw = dict(_tensors(source))
    dense = {
        name: tensor.to(torch.float32) for name, tensor in raw.items() if not name.endswith(_PACKED)
    }
    dequantize = _autoawq()
    for name in [name for name in raw if name.endswith(".qweight")]:
        stem = name.removesuffix(".qweight")
        try:
            packed = (raw[name], raw[f"{stem}.qzeros"], raw[f"{stem}.scales"].to(torch.float32))
        except KeyError as missing:
            raise MissingFileError(
                source, f"tensor {missing} is missing", "download the weights again"
            ) from None
        dense[f"{stem}.weight"] = dequantize(*packed, bits, group_size).t().contiguous()
    return _fuse_experts(source, dense, int(config["num_experts"]))


def _autoawq() -> Dequantize:
    with warnings.catch_warnings(record=True):  # its farewell message, and the filter it sets
        from awq.utils.packing_utils import dequantize_gemm
    function: Dequantize = dequantize_gemm
    return function


def _tensors(source: Path) -> Iterator[tuple[str, Tensor]]:
    shards = sorted(source.glob("*.safetensors"))
    if not shards:
        raise MissingFileError(source, "no .safetensors file", "download the weights again")
    for shard in shards:
        try:
            with safe_open(shard, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    stock = stock_name(name)
                    if stock is not None:
                        yield stock, opened.get_tensor(name)
        except SafetensorError as error:
            raise DamagedFileError(shard, str(error), "download the file again") from error


def _fuse_experts(source: Path, dense: dict[str, Tensor], num_experts: int) -> dict[str, Tensor]:
    experts: dict[str, dict[tuple[int, str], Tensor]] = {}
    fused: dict[str, Tensor] = {}
    for name, tensor in dense.items():
        match = _EXPERT.match(name)
        if match:
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
        else:
            fused[name] = tensor
    for prefix, parts in experts.items():
        if len(parts) != 3 * num_experts:
            raise ConfigMismatchError(
                source / layout.CONFIG_FILE,
                f"{prefix} holds {len(parts)} matrices, {num_experts} experts need "
                f"{3 * num_experts}",
                "download the missing shard",
            )
        order = range(num_experts)
        fused[f"{prefix}.gate_up_proj"] = torch.stack(
            [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in order]
        )
        fused[f"{prefix}.down_proj"] = torch.stack([parts[e, "down"] for e in order])
    return fused
