"""A random-weight model folder with a small byte-level tokenizer, made on the spot.

For benchmarks and tests of mechanics only: its answers mean nothing. Weights are wide enough
for routing and logits to differ from token to token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from inference.checkpoint import format as layout
from inference.checkpoint.convert import export_model

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
_CORPUS = (
    '{"name": "sql_query", "arguments": {"sql": "SELECT region, SUM(price * quantity) AS 销售额 '
    "FROM sales_data WHERE quarter = '2023-Q3' AND region = '华东' GROUP BY product ORDER BY 2 "
    'DESC LIMIT 5", "chart": "bar"}}',
    "分析华东区Q3销售TOP5产品，按月份列出趋势，再算同比增长率。那华北呢？报销制度是什么？",
    "The quick brown fox jumps over the lazy dog, 0123456789 times.",
)


def qwen3_6_35b_a3b_config() -> Any:
    """The text config of Qwen3.6-35B-A3B (and Qwen3.5-35B-A3B) with its exact numbers."""
    from transformers import Qwen3_5MoeTextConfig

    return Qwen3_5MoeTextConfig(
        vocab_size=248320,
        hidden_size=2048,
        num_hidden_layers=40,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        num_experts=256,
        num_experts_per_tok=8,
        max_position_embeddings=262144,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        eos_token_id=248046,
        pad_token_id=248044,
    )


def qwen3_30b_a3b_config() -> Any:
    """The config of Qwen3-30B-A3B with its exact numbers."""
    from transformers import Qwen3MoeConfig

    extra: Any = {"head_dim": 128}  # in every file, but no field of the class
    return Qwen3MoeConfig(
        **extra,
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=151645,
        pad_token_id=151643,
    )


def tiny_qwen3_moe_config() -> Any:
    """A Qwen3-MoE small enough for kernels emulated on a CPU: 4 layers of width 64."""
    return ModelShape(**_TINY).to_config()


def tiny_qwen3_5_moe_config() -> Any:
    """A Qwen3.5-MoE of the same size: three layers of the gated delta rule, then attention."""
    return ModelShape(**_TINY, architecture="qwen3_5_moe").to_config()


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a random model; the defaults are those of the demo model.

    ``architecture`` is "qwen3_moe" or "qwen3_5_moe"; the fields after it are used by the latter,
    ``norm_topk_prob``, ``mlp_only_layers`` and ``attention_bias`` by the former only.
    """

    vocab_size: int = 6144
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 32
    num_experts_per_tok: int = 3
    moe_intermediate_size: int = 64
    norm_topk_prob: bool = True
    tie_word_embeddings: bool = True
    mlp_only_layers: tuple[int, ...] = ()
    attention_bias: bool = False
    architecture: Literal["qwen3_moe", "qwen3_5_moe"] = "qwen3_moe"
    shared_expert_intermediate_size: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_head_dim: int = 16

    def to_config(self) -> Any:
        """The transformers text config of this shape."""
        from transformers import Qwen3_5MoeTextConfig, Qwen3MoeConfig

        both = {name: getattr(self, name) for name in _SHARED_FIELDS}
        both |= {"max_position_embeddings": 4096, "initializer_range": 0.15}
        if self.architecture == "qwen3_moe":
            return Qwen3MoeConfig(
                **both,
                norm_topk_prob=self.norm_topk_prob,
                mlp_only_layers=list(self.mlp_only_layers),
                attention_bias=self.attention_bias,
                intermediate_size=2 * self.hidden_size,
            )
        return Qwen3_5MoeTextConfig(
            **both,
            shared_expert_intermediate_size=self.shared_expert_intermediate_size,
            linear_num_key_heads=self.linear_num_key_heads,
            linear_num_value_heads=self.linear_num_value_heads,
            linear_key_head_dim=self.linear_head_dim,
            linear_value_head_dim=self.linear_head_dim,
        )


_SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "tie_word_embeddings",
)
_TINY: dict[str, Any] = {
    "vocab_size": 640,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": False,
}


def build_stock_model(shape: ModelShape, *, seed: int = 0) -> Any:
    """The stock model of ``shape`` in fp32 with random weights."""
    from transformers import Qwen3_5MoeForCausalLM, Qwen3MoeForCausalLM

    hybrid = shape.architecture == "qwen3_5_moe"
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model: Any = (Qwen3_5MoeForCausalLM if hybrid else Qwen3MoeForCausalLM)(shape.to_config())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                # Norms of Qwen3.5 start at zero: they hold w - 1.
                spread = 0.2 * torch.randn_like(parameter)
                parameter.copy_(torch.where(parameter == 0, spread, parameter * (1 + spread)))
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif name.endswith("A_log"):
                parameter.uniform_(0.05, 4.0).log_()
    torch.set_rng_state(generator_state)
    model.train(False)
    return model


def write_random_model(out_dir: Path, shape: ModelShape | None = None, *, seed: int = 0) -> Path:
    """Write a complete model folder and return it."""
    shape = shape or ModelShape()
    export_model(build_stock_model(shape, seed=seed), out_dir)
    write_tokenizer(out_dir, vocab_size=shape.vocab_size)
    end = SPECIAL_TOKENS.index("<|im_end|>")
    (out_dir / layout.GENERATION_CONFIG_FILE).write_text(
        json.dumps({"do_sample": False, "eos_token_id": end}), encoding="utf-8"
    )
    return out_dir


def write_tokenizer(out_dir: Path, *, vocab_size: int) -> None:
    """Train a byte-level BPE tokenizer on a few lines and write it with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 8, trainer)
    tokenizer.save(str(out_dir / layout.TOKENIZER_FILE))
    (out_dir / layout.TOKENIZER_CONFIG_FILE).write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}),
        encoding="utf-8",
    )
    (out_dir / layout.CHAT_TEMPLATE_FILE).write_text(_TEMPLATE, encoding="utf-8")
