"""First weights from a finished model, for a run that goes on where an earlier one ended.

Owns the reading of a model folder (INT4 experts widened again) and the moving of token embeddings
to another vocabulary. Knows nothing of training.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from inference.checkpoint import format as layout
from inference.checkpoint.int4 import PackedInt4, dequantize

EMBEDDING = "model.embed_tokens.weight"
_EXPERT = re.compile(r"layers\.(\d+)\.(gate_up_proj|down_proj)\.qweight")


def state_of(folder: Path) -> dict[str, Tensor]:
    """The weights of a model folder under the names of the stock model, fp32."""
    state = {
        name: tensor.float() for name, tensor in load_file(folder / layout.BACKBONE_FILE).items()
    }
    experts: dict[str, list[Tensor]] = {}
    for path in sorted((folder / "experts").glob("*.safetensors")):
        tensors = load_file(path)
        for name, words in tensors.items():
            match = _EXPERT.fullmatch(name)
            if match is None:
                continue
            scales = tensors[name.replace(".qweight", ".scales")]
            dense = dequantize(PackedInt4(words, scales))
            experts.setdefault(f"model.layers.{match[1]}.mlp.experts.{match[2]}", []).append(dense)
    return state | {name: torch.stack(rows) for name, rows in experts.items()}


def move_embedding(rows: Tensor, old: dict[str, int], new: dict[str, int]) -> Tensor:
    """``rows`` [vocab, hidden] of the vocabulary ``old`` in the order of ``new``.

    A token that ``old`` does not have gets the mean row.
    """
    moved = rows.mean(0, keepdim=True).repeat(rows.shape[0], 1)
    for token, index in new.items():
        if token in old:
            moved[index] = rows[old[token]]
    return moved


def load(stock: Any, folder: Path, tokenizer: Tokenizer) -> int:
    """Put the weights of ``folder`` into ``stock``; the number of tokens it did not know.

    Raises ``RuntimeError`` when the shapes differ.
    """
    state = state_of(folder)
    written = json.loads((folder / layout.TOKENIZER_FILE).read_text("utf-8"))
    old = Tokenizer.from_str(json.dumps(written)).get_vocab()
    new = tokenizer.get_vocab()
    state[EMBEDDING] = move_embedding(state[EMBEDDING], old, new)
    missing, unexpected = stock.load_state_dict(state, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise RuntimeError(f"{folder} holds another model: {missing or unexpected}")
    return len(new.keys() - old.keys())
