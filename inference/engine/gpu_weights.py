"""The backbone's weights as the kernels read them, one copy of the bytes for both phases.

Owns the fusing of matrices that share their input, their INT8/INT4 form, and what stays in the
stock modules: row views of the fused tensors (or modules that dequantise them), so that prefill
through the stock classes reads the same memory. The model may come in host memory: its matrices
go to the device one after another, those to be quantised in blocks of rows, so that the device
never holds more than the result and one block. Knows nothing of caches, experts'
slots or steps.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from inference.checkpoint import format as layout
from inference.checkpoint.backbone import routed_layers
from inference.engine.quantized_linear import DequantizeWorkspace, QuantizedLinear
from inference.errors import ArchitectureError, PinningError
from inference.kernels.linear import LinearWeight
from inference.kernels.moe import SharedExpert
from inference.kernels.quantize import empty_int8, quantize_int4_linear, quantize_int8

BackboneDtype = Literal["fp16", "int8"]
HeadDtype = Literal["fp16", "int8", "int4"]

_ROPE_TYPES = ("default", "linear", "yarn", "llama3")  # the same at every length


@dataclass(frozen=True)
class AttentionWeights:
    """``projected`` rows: q (with its gate, head by head), k, v. Norms fp32 [head_dim]."""

    projected: LinearWeight
    output: LinearWeight
    q_norm: Tensor
    k_norm: Tensor


@dataclass(frozen=True)
class DeltaWeights:
    """``projected`` rows: qkv, z, b, a. ``conv_weight`` fp32 [channels, 4], the rest fp32."""

    projected: LinearWeight
    output: LinearWeight
    conv_weight: Tensor
    A_log: Tensor
    dt_bias: Tensor
    norm: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One layer outside its routed experts. Norms fp32, ``router`` fp32 [experts, hidden]."""

    input_norm: Tensor
    mixer: AttentionWeights | DeltaWeights
    post_norm: Tensor
    router: Tensor
    shared: SharedExpert | None


@dataclass(frozen=True)
class BackboneWeights:
    """Everything outside the routed experts.

    ``embedding`` [vocab_size, hidden_size] lies on the host, pinned when the device is a GPU;
    ``rotary`` is cosine and sine, fp32 [max_model_len, rotary_dim / 2].
    """

    layers: tuple[LayerWeights, ...]
    embedding: Tensor
    final_norm: Tensor
    head: LinearWeight
    rotary: tuple[Tensor, Tensor]


def check_supported(config: Any) -> None:
    """Raises ``ArchitectureError`` for what the decode kernels do not compute."""
    path = getattr(config, "_name_or_path", "") or layout.CONFIG_FILE
    reasons = {
        "attention_bias is set": bool(getattr(config, "attention_bias", False)),
        "a sliding window is set": getattr(config, "sliding_window", None) is not None,
        f"hidden_act is {config.hidden_act}": config.hidden_act != "silu",
        "layers without routed experts": len(routed_layers(config)) != config.num_hidden_layers,
        f"hidden_size {config.hidden_size} is not a multiple of 64": bool(config.hidden_size % 64),
        f"rope_type is {config.rope_parameters['rope_type']}": (
            config.rope_parameters["rope_type"] not in _ROPE_TYPES
        ),
        "linear_conv_kernel_dim is not 4": getattr(config, "linear_conv_kernel_dim", 4) != 4,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ArchitectureError(path, reason, "the GPU engine cannot run it: use device cpu")


def take_weights(
    model: Any,
    *,
    device: torch.device,
    max_model_len: int,
    backbone_dtype: BackboneDtype,
    head_dtype: HeadDtype,
    group_size: int,
) -> BackboneWeights:
    """Fuse and quantise the weights of a stock ``model``, which keeps working for prefill.

    ``model`` is changed: its linears become views or quantised modules, its final norm and head
    are taken away (``model.model`` then returns the residual stream of the last layer), and all
    that is left of it moves to ``device``.
    ``group_size`` is that of an int4 head.
    """
    workspace = None
    if backbone_dtype == "int8":
        linears = [module for module in model.model.modules() if isinstance(module, nn.Linear)]
        largest = max(linear.weight.numel() for linear in linears)
        workspace = DequantizeWorkspace(largest, model.dtype, device)
    fuser = _Fuser(device, backbone_dtype, workspace)
    layers = tuple(_take_layer(fuser, layer) for layer in model.model.layers)
    embedding = model.model.embed_tokens.weight.detach()
    head = fuser.take_head(model.lm_head, head_dtype, group_size)
    final_norm = _fp32(model.model.norm.weight, device)
    rotary = _rotary_table(model.model.rotary_emb, max_model_len, device)
    model.lm_head = None
    model.model.norm = nn.Identity()
    model.model.embed_tokens = None
    model.model.to(device)  # the small rest; views of fused weights are there already
    if device.type == "cuda":
        embedding = _pinned(embedding)
        torch.cuda.empty_cache()
    return BackboneWeights(layers, embedding, final_norm, head, rotary)


def _pinned(table: Tensor) -> Tensor:
    try:
        return table.cpu().pin_memory()
    except RuntimeError as error:
        raise PinningError(
            f"cannot pin {table.nbytes / 1e9:.1f} GB of host memory for the embedding table "
            f"({str(error).splitlines()[0]})",
            "raise the limit of locked memory (ulimit -l unlimited, docker --ulimit memlock=-1) "
            "or free host memory",
        ) from error


def _take_layer(fuser: _Fuser, layer: Any) -> LayerWeights:
    device = fuser.device
    mixer: AttentionWeights | DeltaWeights
    if hasattr(layer, "linear_attn"):
        delta = layer.linear_attn
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        mixer = DeltaWeights(
            projected=fuser.fuse(delta, names),
            output=fuser.fuse(delta, ("out_proj",)),
            conv_weight=_fp32(delta.conv1d.weight, device).squeeze(1).contiguous(),
            A_log=_fp32(delta.A_log, device),
            dt_bias=_fp32(delta.dt_bias, device),
            norm=_fp32(delta.norm.weight, device),
        )
    else:
        attention = layer.self_attn
        mixer = AttentionWeights(
            projected=fuser.fuse(attention, ("q_proj", "k_proj", "v_proj")),
            output=fuser.fuse(attention, ("o_proj",)),
            q_norm=_fp32(attention.q_norm.weight, device),
            k_norm=_fp32(attention.k_norm.weight, device),
        )
    mlp = layer.mlp
    shared = None
    if hasattr(mlp, "shared_expert"):
        shared = SharedExpert(
            gate_up=fuser.fuse(mlp.shared_expert, ("gate_proj", "up_proj")),
            down=fuser.fuse(mlp.shared_expert, ("down_proj",)),
            gate=_fp32(mlp.shared_expert_gate.weight, device).squeeze(0).contiguous(),
        )
    router = mlp.gate.weight.detach().to(device, torch.float32)
    mlp.gate.weight = nn.Parameter(router, requires_grad=False)
    return LayerWeights(
        input_norm=_fp32(layer.input_layernorm.weight, device),
        mixer=mixer,
        post_norm=_fp32(layer.post_attention_layernorm.weight, device),
        router=router,
        shared=shared,
    )


class _Fuser:
    """Puts matrices below each other and leaves views of them in the stock modules."""

    def __init__(
        self, device: torch.device, dtype: BackboneDtype, workspace: DequantizeWorkspace | None
    ) -> None:
        self.device = device
        self._dtype = dtype
        self._workspace = workspace

    def fuse(self, parent: nn.Module, names: Seq[str]) -> LinearWeight:
        """One weight of the linears ``names`` of ``parent``, in this order."""
        linears: list[Any] = [parent.get_submodule(name) for name in names]
        bounds = [0]
        for linear in linears:
            bounds.append(bounds[-1] + linear.weight.shape[0])
        whole = self._empty(bounds[-1], linears[0].weight)
        for name, linear, start, stop in zip(names, linears, bounds, bounds[1:], strict=False):
            part = whole.slice_rows(start, stop)
            self._fill(part, linear)
            if self._workspace is not None:
                setattr(parent, name, QuantizedLinear(part, self._workspace))
            else:
                linear.weight = nn.Parameter(part.weight, requires_grad=False)
        return whole

    def take_head(self, head: Any, dtype: HeadDtype, group_size: int) -> LinearWeight:
        """The weight of the output head."""
        weight = head.weight.detach()
        if dtype == "int8":
            return quantize_int8(weight, empty_int8(len(weight), weight.shape[1], self.device))
        if dtype == "int4":
            return quantize_int4_linear(weight, group_size, self.device)
        return LinearWeight.dense(weight.to(self.device))

    def _empty(self, rows: int, like: Tensor) -> LinearWeight:
        columns = like.shape[1]
        if self._dtype == "int8":
            return empty_int8(rows, columns, self.device)
        return LinearWeight.dense(
            torch.empty((rows, columns), dtype=like.dtype, device=self.device)
        )

    def _fill(self, part: LinearWeight, linear: Any) -> None:
        weight = linear.weight.detach()
        if part.scales is None:
            part.weight.copy_(weight)
        else:
            quantize_int8(weight, part)


def _fp32(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device, torch.float32, copy=True)


def _rotary_table(rotary: Any, max_model_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position; the stock module repeats both halves."""
    positions = torch.arange(max_model_len, device=device).unsqueeze(0)
    if hasattr(rotary, "mrope_section"):  # text has the same position on all three axes
        positions = positions.unsqueeze(0).expand(3, -1, -1)
    cos, sin = rotary(torch.zeros(1, device=device), position_ids=positions)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
