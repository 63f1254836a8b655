"""Our forward pass equals the stock one; a short training run learns and exports."""

import json

import pytest
import torch

from models.training import model, tokenizer, train
from models.training.data import MAX_PREFIX_TOKENS, NO_TARGET, Encoded, Layout, StepSource, fit
from models.training.muon import orthogonal
from models.training.updater import Updater


@pytest.fixture(scope="module")
def vocabulary():
    return tokenizer.build()


@pytest.fixture(scope="module")
def step(vocabulary):
    return StepSource(vocabulary, 1, 900).step()


TWO_PROMPTS = Layout(MAX_PREFIX_TOKENS, ((2, 128), (1, 448), (1, 640)), 1200, prefixes=2)


@pytest.mark.parametrize("shape", [900, TWO_PROMPTS], ids=["one prompt", "two prompts"])
def test_flat_forward_equals_the_stock_model(vocabulary, shape):
    step = StepSource(vocabulary, 1, shape).step()
    stock = model.build(model.PRESETS["test"], 0)
    net = model.FlatForward(stock)
    batch = train.on_device(step, "cpu")
    with torch.no_grad():
        ours, _ = net(batch, step.layout)
        rows = {
            int(position): row
            for row, position in enumerate(batch.source)
            if int(batch.target[row]) != NO_TARGET
        }
        compared = 0
        for prompt, start, length in dialogs_of(step):
            own = batch.ids[start : start + length]
            logits = stock(torch.cat((prompt, own))[None]).logits[0]
            for position in range(start, start + length):
                if position in rows:
                    wanted = logits[len(prompt) + position - start]
                    assert torch.allclose(ours[rows[position]], wanted, atol=1e-4)
                    compared += 1
    assert compared == len(rows) > 0


def dialogs_of(step):
    """Of every dialog: its prompt, its first flat position and its length."""
    layout = step.layout
    ids = torch.from_numpy(step.ids).long()
    for number, length in enumerate(step.prefixes):
        prompt = ids[number * layout.prefix :][:length]
        corner = layout.head + number * layout.part
        for dialogs, width in layout.rectangles:
            for start in range(corner, corner + dialogs * width, width):
                if real := int(step.real[start : start + width].sum()):
                    yield prompt, start, real
            corner += dialogs * width


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
    encoded = []
    segment_of = {int(s): int(n) for s, n in zip(step.source, step.segment, strict=True) if n >= 0}
    for _, start, length in dialogs_of(step):
        ids = step.ids[start : start + length].tolist()
        numbers = [segment_of.get(start + i - 1, -1) for i in range(length)]
        known = sorted({n for n in numbers if n >= 0})
        local = [known.index(n) if n >= 0 else -1 for n in numbers]
        kinds = tuple(step.labels[n][1] for n in known)
        encoded.append(Encoded(ids, local, kinds, step.labels[known[0]][0]))
    return fit(step.ids[: step.prefixes[0]].tolist(), encoded, 3)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_short_run_lowers_the_loss(step, kind):
    net = model.FlatForward(model.build(model.PRESETS["test"], 0))
    update = Updater(net, train.optimizers_of(net, 5e-3, "cpu", kind), model.Routing(), graph=False)
    losses = [float(update(step, 5e-3)[0]) for _ in range(12)]
    assert losses[-1] < 0.85 * losses[0]


def test_muon_updates_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 48, 32), (2, 32, 64)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3


def test_the_command_trains_and_exports_a_folder_the_engine_layout_accepts(tmp_path):
    from inference.checkpoint import format as layout

    arguments = ["--preset", "test", "--out", str(tmp_path), "--minutes", "3", "--steps", "2"]
    assert train.main([*arguments, "--tokens", "600", "--threads", "1"]) == 0
    config = layout.read_config(tmp_path)
    assert layout.read_routing_config(tmp_path, config).num_experts == 4
    assert json.loads((tmp_path / "training.json").read_text())["steps"] == 2
    assert (tmp_path / "tokenizer.json").is_file()
    assert (tmp_path / "chat_template.jinja").is_file()
