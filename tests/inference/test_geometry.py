"""Sizes against the byte budgets of the published models and against the stock classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.errors import ArchitectureError, ConfigMismatchError
from inference.geometry import SHAPES, ModelGeometry, matrix_bytes

MB = 1e6
QWEN36 = ModelGeometry.of_shape("qwen3.6-35b-a3b")
QWEN30 = ModelGeometry.of_shape("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("geometry", "attention", "linear", "shared", "head"),
    [
        (QWEN30, (1811.9, 906.9), (0, 0), (0, 0), (622.3, 311.5, 161.7)),
        (QWEN36, (545.3, 272.9), (2021.1, 1011.6), (251.7, 126.0), (1017.1, 509.1, 264.2)),
    ],
)
def test_parts_match_the_byte_budgets(
    geometry: ModelGeometry,
    attention: tuple[float, ...],
    linear: tuple[float, ...],
    shared: tuple[float, ...],
    head: tuple[float, ...],
) -> None:
    parts = {
        "attention": geometry.attention_matrices * geometry.num_attention_layers,
        "linear": geometry.linear_attention_matrices * geometry.num_linear_layers,
        "shared": geometry.shared_expert_matrices * len(geometry.routed_layers),
    }
    wanted = {"attention": attention, "linear": linear, "shared": shared}
    for name, matrices in parts.items():
        for dtype, megabytes in zip(("fp16", "int8"), wanted[name], strict=True):
            assert matrix_bytes(matrices, dtype) == pytest.approx(megabytes * MB, rel=0.01), name
    for dtype, megabytes in zip(("fp16", "int8", "int4"), head, strict=True):
        assert matrix_bytes((geometry.head_matrix,), dtype) == pytest.approx(
            megabytes * MB, rel=0.01
        )


def test_experts_and_caches_match_the_byte_budgets() -> None:
    assert QWEN36.expert_bytes == pytest.approx(1.622 * MB, rel=0.001)
    assert QWEN30.expert_bytes == pytest.approx(2.433 * MB, rel=0.001)
    coarse = ModelGeometry.of_shape("qwen3.6-35b-a3b", group_size=32)
    assert coarse.expert_bytes == pytest.approx(1.769 * MB, rel=0.001)
    assert (QWEN36.num_all_experts, QWEN30.num_all_experts) == (10240, 6144)
    assert QWEN36.kv_bytes_per_token("fp16") == 20480
    assert QWEN30.kv_bytes_per_token("fp16") == 98304
    # One fp32 scale for a head of 256 or 128 values comes on top of the bytes.
    assert QWEN36.kv_bytes_per_token("fp8") == 10240 + 4 * 40
    assert QWEN30.kv_bytes_per_token("fp8") == 49152 + 4 * 384
    # The budget counts the convolution in fp16, the engine keeps it in fp32.
    assert QWEN36.state_bytes == pytest.approx(64.9 * MB + 30 * 8192 * 4 * 2, rel=0.01)
    assert QWEN30.state_bytes == 0
    assert QWEN36.rotary_dim == 64


def stock_parameters(name: str) -> dict[str, int]:
    """Parameter counts of the stock class built on the meta device."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

    fields = {key: value for key, value in SHAPES[name].items() if key != "model_type"}
    hybrid = "layer_types" in fields
    model_class = Qwen3_5MoeForCausalLM if hybrid else Qwen3MoeForCausalLM
    config = (Qwen3_5MoeTextConfig if hybrid else Qwen3MoeConfig)(**fields)
    with torch.device("meta"):
        model = model_class(config)
    return {key: parameter.numel() for key, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_parameter_of_the_stock_class_is_counted(name: str) -> None:
    geometry = ModelGeometry.of_shape(name)
    counts = stock_parameters(name)
    experts = sum(count for key, count in counts.items() if ".mlp.experts." in key)
    shape = geometry.expert_shape
    dense = sum(rows * columns for rows, columns in map(shape.dense, ("gate_up_proj", "down_proj")))
    assert experts == geometry.num_all_experts * dense
    backbone = sum(rows * columns for rows, columns in geometry.backbone_matrices)
    backbone += geometry.router_values + geometry.small_values
    backbone += 2 * geometry.vocab_size * geometry.hidden_size
    assert sum(counts.values()) - experts == backbone


def test_a_composite_config_counts_its_text_part() -> None:
    composite = {"model_type": "qwen3_5_moe", "text_config": dict(SHAPES["qwen3.6-35b-a3b"])}
    assert ModelGeometry.from_config(composite) == QWEN36


def test_layers_that_do_not_route_are_dense() -> None:
    config = {**SHAPES["qwen3-30b-a3b"], "mlp_only_layers": [0, 3]}
    geometry = ModelGeometry.from_config(config)
    assert len(geometry.routed_layers) == 46
    assert 0 not in geometry.routed_layers
    extra = matrix_bytes(geometry.backbone_matrices, "fp16") - matrix_bytes(
        QWEN30.backbone_matrices, "fp16"
    )
    assert extra == 2 * 3 * 6144 * 2048 * 2


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model_type": "llama"}, ArchitectureError, "llama"),
        ({"hidden_size": None}, ConfigMismatchError, "hidden_size is None"),
        ({"num_experts": 4}, ConfigMismatchError, "num_experts_per_tok 8 of 4"),
        ({"layer_types": ["full_attention"] * 3}, ConfigMismatchError, "names 3 layers"),
        ({"num_key_value_heads": "two"}, ConfigMismatchError, "num_key_value_heads is 'two'"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ModelGeometry.from_config({**SHAPES["qwen3.6-35b-a3b"], **change})


def test_the_older_key_for_the_number_of_experts_is_read() -> None:
    config = dict(SHAPES["qwen3-30b-a3b"])
    config["num_local_experts"] = config.pop("num_experts")
    assert ModelGeometry.from_config(config) == QWEN30


def test_a_folder_gives_its_group_size(tiny_model_dir: Path) -> None:
    geometry = ModelGeometry.of_folder(tiny_model_dir)
    config = json.loads((tiny_model_dir / "config.json").read_text())
    assert geometry.group_size == config["routing_config"]["quantization"]["group_size"]
    assert geometry.num_all_experts == 24
