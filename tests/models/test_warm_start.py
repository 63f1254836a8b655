"""A run that starts from a finished model."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.training import model, warm_start
from models.training.export import export, round_experts
from models.training.model import PRESETS
from models.training.tokenizer import build


def test_a_folder_gives_its_weights_back(tmp_path: Path) -> None:
    stock = model.build(PRESETS["test"], 3)
    tokenizer = build(1)
    export(stock, tokenizer, tmp_path)
    round_experts(stock)
    again = model.build(PRESETS["test"], 4)
    assert warm_start.load(again, tmp_path, tokenizer) == 0
    for (name, ours), (_, theirs) in zip(
        again.state_dict().items(), stock.state_dict().items(), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=2e-3, rtol=2e-3), name


def test_rows_follow_their_tokens() -> None:
    rows = torch.arange(8.0).view(4, 2)
    moved = warm_start.move_embedding(
        rows, {"a": 0, "b": 1, "c": 2, "d": 3}, {"c": 0, "x": 1, "a": 2, "b": 3}
    )
    assert moved.tolist() == [[4, 5], [3, 4], [0, 1], [2, 3]]


def test_the_shipped_model_fits_todays_vocabulary() -> None:
    """Most of its tokens are known, whatever was added to the data since."""
    folder = Path(__file__).parents[2] / "models" / "demo-moe"
    old = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    assert len(build(1).get_vocab().keys() & old.keys()) > 0.9 * len(old)
