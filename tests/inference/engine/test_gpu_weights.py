from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference.benchmarks.random_model import ModelShape, write_random_model
from inference.checkpoint.backbone import load_backbone
from inference.engine.gpu_weights import (
    BackboneWeights,
    DeltaWeights,
    check_supported,
    take_weights,
)
from inference.engine.quantized_linear import QuantizedLinear
from inference.errors import ArchitectureError
from inference.kernels.quantize import dequantize
from tests.inference.conftest import TINY


def taken(model: Any, **options: Any) -> BackboneWeights:
    defaults = {"backbone_dtype": "fp16", "head_dtype": "fp16", "group_size": 32}
    device = torch.device("cpu")
    return take_weights(model, device=device, max_model_len=64, **{**defaults, **options})


def test_prefill_and_decode_share_one_copy_of_the_bytes(tiny_hybrid_dir: Path) -> None:
    model, _ = load_backbone(tiny_hybrid_dir, dtype=torch.float16)
    weights = taken(model)
    for layer, stock in zip(weights.layers, model.model.layers, strict=True):
        whole = layer.mixer.projected
        if isinstance(layer.mixer, DeltaWeights):
            delta = stock.linear_attn
            parts = [delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a]
        else:
            attention = stock.self_attn
            parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        address = whole.weight.data_ptr()
        for part in parts:
            assert part.weight.data_ptr() == address
            address += part.weight.nbytes
        assert address == whole.weight.data_ptr() + whole.weight.nbytes
        assert layer.router.data_ptr() == stock.mlp.gate.weight.data_ptr()


def test_int8_modules_hold_views_and_no_float_weight_is_left(tiny_hybrid_dir: Path) -> None:
    plain, _ = load_backbone(tiny_hybrid_dir)
    model, _ = load_backbone(tiny_hybrid_dir)
    weights = taken(model, backbone_dtype="int8", head_dtype="int4")
    assert weights.head.format == "int4"
    left = [
        name for name, module in model.model.named_modules() if isinstance(module, torch.nn.Linear)
    ]
    assert all(name.endswith("shared_expert_gate") for name in left)
    z = model.model.layers[0].linear_attn.in_proj_z
    assert isinstance(z, QuantizedLinear)
    expected = plain.model.layers[0].linear_attn.in_proj_z.weight
    largest = expected.abs().amax(1, keepdim=True)
    assert ((dequantize(z.linear_weight) - expected).abs() <= largest / 254 * 1.001).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_only_layers": (1,)}, "layers without routed experts"),
        ({"hidden_size": 96}, "multiple of 64"),
    ],
)
def test_what_the_kernels_do_not_compute_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_random_model(tmp_path, ModelShape(**{**vars(TINY), **changes}))
    _, config = load_backbone(folder)
    with pytest.raises(ArchitectureError, match=reason):
        check_supported(config)
