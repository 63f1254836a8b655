"""Our forward pass equals the stock one; a short training run learns and exports."""

import json

import pytest
import torch

from models.training import model, tokenizer, train
from models.training.data import MAX_PREFIX_TOKENS, NO_TARGET, Encoded, Layout, StepSource, fit


@pytest.fixture(scope="module")
def vocabulary():
    return tokenizer.build()


@pytest.fixture(scope="module")
def step(vocabulary):
    return StepSource(vocabulary, 1, 900).step()


def test_flat_forward_equals_the_stock_model(step):
    stock = model.build(model.PRESETS["test"], 0)
    net = model.FlatForward(stock)
    batch = train.on_device(step, "cpu")
    with torch.no_grad():
        ours, _ = net(batch, step.layout)
        rows = {int(position): row for row, position in enumerate(batch.source)}
        corner, compared = step.layout.prefix, 0
        for dialogs, width in step.layout.rectangles:
            for start in range(corner, corner + dialogs * width, width):
                length = int(batch.real[start : start + width].sum())
                own = batch.ids[start : start + length]
                logits = stock(torch.cat((batch.ids[: step.prefix], own))[None]).logits[0]
                for position in range(start, start + length):
                    if position in rows:
                        wanted = logits[step.prefix + position - start]
                        assert torch.allclose(ours[rows[position]], wanted, atol=1e-4)
                        compared += 1
            corner += dialogs * width
    assert compared == int((batch.target != NO_TARGET).sum())


def test_a_fixed_layout_changes_nothing(vocabulary):
    """Padding of prefix, rectangles and targets leaves loss and router figures as they are."""
    layout = Layout(MAX_PREFIX_TOKENS, ((2, 256), (1, 448), (1, 640)), 1200)
    padded = StepSource(vocabulary, 1, layout).step()
    stock = model.build(model.PRESETS["test"], 0)
    net = model.FlatForward(stock)
    found = []
    for step in (padded, refitted(padded)):
        with torch.no_grad():
            loss, stats, _ = train.run_step(net, train.on_device(step, "cpu"), step.layout)
        found.append((loss, torch.stack(stats.counts), torch.stack(stats.means)))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def refitted(step):
    """The same dialogs without padding of prefix, rows and targets."""
    corner, encoded = step.layout.prefix, []
    segment_of = {int(s): int(n) for s, n in zip(step.source, step.segment, strict=True) if n >= 0}
    for dialogs, width in step.layout.rectangles:
        for start in range(corner, corner + dialogs * width, width):
            length = int(step.real[start : start + width].sum())
            if not length:
                continue
            ids = step.ids[start : start + length].tolist()
            numbers = [segment_of.get(start + i - 1, -1) for i in range(length)]
            known = sorted({n for n in numbers if n >= 0})
            local = [known.index(n) if n >= 0 else -1 for n in numbers]
            kinds = tuple(step.labels[n][1] for n in known)
            encoded.append(Encoded(ids, local, kinds, step.labels[known[0]][0]))
        corner += dialogs * width
    return fit(step.ids[: step.prefix].tolist(), encoded, 3)


def test_a_short_run_lowers_the_loss(step):
    stock = model.build(model.PRESETS["test"], 0)
    net = model.FlatForward(stock)
    optimizer = train.optimizer_of(net, 5e-3, "cpu")
    losses = []
    for _ in range(12):
        loss, stats, _ = train.run_step(net, train.on_device(step, "cpu"), step.layout)
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
