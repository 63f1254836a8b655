"""Our forward pass equals the stock one; a short training run learns and exports."""

import json

import pytest
import torch

from models.training import model, tokenizer, train
from models.training.data import StepSource


@pytest.fixture(scope="module")
def vocabulary():
    return tokenizer.build()


@pytest.fixture(scope="module")
def step(vocabulary):
    return StepSource(vocabulary, 1, 900, 2).step()


def test_flat_forward_equals_the_stock_model(step):
    stock = model.build(model.PRESETS["test"], 0)
    net = model.FlatForward(stock)
    with torch.no_grad():
        moved, at = train.on_device(step, "cpu")
        ours, _ = net(at["ids"], at["positions"], moved.prefix, moved.chunks, at["source"])
        rows = {int(position): row for row, position in enumerate(at["source"])}
        starts = (at["positions"] == moved.prefix).nonzero().flatten().tolist()
        ends = [*starts[1:], len(at["ids"])]
        for start, end in zip(starts, ends, strict=True):
            ids = torch.cat((at["ids"][: moved.prefix], at["ids"][start:end]))
            logits = stock(ids[None]).logits[0]
            for position in range(start, end):
                if position in rows:
                    wanted = logits[moved.prefix + position - start]
                    assert torch.allclose(ours[rows[position]], wanted, atol=1e-4)


def test_a_short_run_lowers_the_loss(step):
    stock = model.build(model.PRESETS["test"], 0)
    net = model.FlatForward(stock)
    optimizer = train.optimizer_of(net, 5e-3, "cpu")
    losses = []
    for _ in range(12):
        loss, stats, _, _ = train.run_step(net, step, "cpu")
        (loss + 0.01 * stats.balance_loss()).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.85 * losses[0]


def test_the_command_trains_and_exports_a_folder_the_engine_layout_accepts(tmp_path):
    from inference.checkpoint import format as layout

    arguments = ["--preset", "test", "--out", str(tmp_path), "--minutes", "3", "--steps", "2"]
    assert train.main([*arguments, "--tokens", "600", "--threads", "1"]) == 0
    config = layout.read_config(tmp_path)
    assert layout.read_routing_config(tmp_path, config).num_experts == 4
    assert json.loads((tmp_path / "training.json").read_text())["steps"] == 2
    assert (tmp_path / "tokenizer.json").is_file()
    assert (tmp_path / "chat_template.jinja").is_file()
