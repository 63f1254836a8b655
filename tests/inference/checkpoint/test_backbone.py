from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from inference.benchmarks import random_model
from inference.checkpoint import backbone
from inference.checkpoint import format as layout
from inference.checkpoint.backbone import load_backbone, random_backbone, routed_layers
from inference.errors import DamagedFileError

TINY_CONFIGS = [random_model.tiny_qwen3_moe_config, random_model.tiny_qwen3_5_moe_config]


class NoExperts(nn.Module):
    def forward(self, hidden: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        return torch.zeros_like(hidden)


@pytest.mark.parametrize("make_config", TINY_CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_random_backbone_runs_and_its_scale_is_sane(make_config: Any, dtype: torch.dtype) -> None:
    config = make_config()
    model = random_backbone(config, dtype=dtype, seed=3)
    assert not any(".experts." in name for name, _ in model.named_parameters())
    for layer in routed_layers(config):
        model.model.layers[layer].mlp.experts = NoExperts()
        assert model.model.layers[layer].mlp.gate.weight.dtype is torch.float32
    assert {p.dtype for n, p in model.named_parameters() if not n.endswith("gate.weight")} == {
        dtype
    }
    logits = model(torch.arange(40).unsqueeze(0)).logits[0]
    assert 0.5 < float(logits.std()) < 8.0
    assert len(set(logits.argmax(-1).tolist())) > 20


@pytest.mark.parametrize("make_config", TINY_CONFIGS)
def test_the_seed_decides_the_weights(make_config: Any) -> None:
    first, same, other = (random_backbone(make_config(), seed=seed) for seed in (1, 1, 2))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name]), name
        assert not torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize("make_config", TINY_CONFIGS)
def test_weights_made_in_blocks_are_whole(
    make_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbone, "_BLOCK_BYTES", 3000)
    model = random_backbone(make_config(), seed=1, on_host=True)
    head = model.lm_head.weight
    assert len(set(head[:, 0].tolist())) == len(head)
    assert float(head.std()) == pytest.approx(2.0 * head.shape[1] ** -0.5, rel=0.05)
    assert float(model.model.embed_tokens.weight.std()) == pytest.approx(1.0, rel=0.05)


def test_a_value_that_is_not_finite_is_found_in_any_block(
    tiny_hybrid_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbone, "_BLOCK_BYTES", 3000)
    folder = Path(shutil.copytree(tiny_hybrid_dir, tmp_path / "model"))
    load_backbone(folder, on_host=True)
    path = folder / layout.BACKBONE_FILE
    tensors = load_file(path)
    name = max(tensors, key=lambda key: tensors[key].numel())
    tensors[name][-1, -1] = torch.nan
    save_file(tensors, path)
    with pytest.raises(DamagedFileError, match=f"{name} holds NaN"):
        load_backbone(folder, on_host=True)


def test_experts_that_were_not_put_in_are_an_error() -> None:
    model = random_backbone(random_model.tiny_qwen3_moe_config())
    with pytest.raises(RuntimeError, match="was not replaced"):
        model(torch.arange(4).unsqueeze(0))


def test_rotary_tables_are_those_of_the_stock_class() -> None:
    from transformers import Qwen3_5MoeForCausalLM

    config = random_model.tiny_qwen3_5_moe_config()
    ours, stock = random_backbone(config), Qwen3_5MoeForCausalLM(config)
    assert torch.equal(ours.model.rotary_emb.inv_freq, stock.model.rotary_emb.inv_freq)


def test_layers_without_experts_are_left_out() -> None:
    shape = random_model.ModelShape(mlp_only_layers=(1,))
    assert routed_layers(shape.to_config()) == [0, 2, 3]
    assert routed_layers(random_model.tiny_qwen3_5_moe_config()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make_config", "num_layers", "parameters"),
    [
        (random_model.qwen3_6_35b_a3b_config, 40, 2_448_355_968),
        (random_model.qwen3_30b_a3b_config, 48, 1_541_093_376),
    ],
)
def test_the_target_shapes_have_the_published_sizes(
    make_config: Any, num_layers: int, parameters: int
) -> None:
    """Built on the meta device: neither memory nor initialisation, so it takes no time."""
    start = time.perf_counter()
    model = backbone._build(make_config(), torch.float16)
    assert time.perf_counter() - start < 10
    assert all(p.is_meta for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(routed_layers(make_config())) == num_layers


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make_config", [random_model.qwen3_6_35b_a3b_config, random_model.qwen3_30b_a3b_config]
)
def test_a_full_backbone_is_made_on_the_gpu_in_seconds(make_config: Any) -> None:
    torch.zeros(1, device="cuda")
    start = time.perf_counter()
    model = random_backbone(make_config(), device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 15
    assert model.model.embed_tokens.weight.device.type == "cpu"
    assert model.lm_head.weight.device.type == "cuda"
    assert model.model.rotary_emb.inv_freq.device.type == "cuda"
    for name, parameter in model.named_parameters():
        assert bool(torch.isfinite(parameter).all()), name
