"""A random-weight model folder with a small byte-level tokenizer, made on the spot.

For benchmarks and tests of mechanics only: its answers mean nothing. Weights are wide enough
for routing and logits to differ from token to token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a random model; the defaults are those of the demo model."""

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


def build_stock_model(shape: ModelShape, *, seed: int = 0) -> Any:
    """A stock Qwen3MoeForCausalLM in fp32 with random weights."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        **{**vars(shape), "mlp_only_layers": list(shape.mlp_only_layers)},
        intermediate_size=2 * shape.hidden_size,
        max_position_embeddings=4096,
        initializer_range=0.15,
    )
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
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
