"""How the router behaves: ``python -m models.training.router_report MODEL``; last line JSON.

Owns the figures a cache designer needs, per kind of text: shares of experts and their entropy,
how often an expert serves the next token too, the hit rate of an LRU cache by its size, and how
well the next layer's router, asked early, foretells which experts will be needed (over all uses,
and over those that a cache would miss, which are the ones that matter).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.checkpoint.loader import load_model
from inference.tokenizer import Tokenizer
from models.training import rendering, router_texts
from models.training.dialogs import demo_prompt
from models.training.human_questions import TODAY

CACHE_SIZES = (4, 6, 8, 12, 16, 20, 24, 28)
MISS_SIZES = (8, 16)
Picks = list[list[tuple[int, ...]]]
"""Layer -> token -> its experts."""


@dataclass(frozen=True)
class Trace:
    """Routing of one text: what was used, and what was foretold one layer before."""

    used: Picks
    foretold: Picks
    """Entry l: layer l's experts, foretold from layer l-1; entry 0 is empty."""


class Tracer:
    """Runs texts behind the demo's prompt and records every router."""

    def __init__(self, folder: Path) -> None:
        self.loaded = load_model(folder)
        self.tokenizer = Tokenizer(folder)
        config = self.loaded.config
        self.num_experts, self.k = int(config.num_experts), int(config.num_experts_per_tok)
        self._prefix = self.tokenizer.encode(rendering.prefix(demo_prompt(TODAY)))
        stock: Any = self.loaded.model
        self._layers = list(stock.model.layers)
        self._ids: list[Tensor] = []
        self._residuals: list[Tensor] = []
        for layer in self._layers:
            layer.mlp.gate.register_forward_hook(lambda m, x, out: self._ids.append(out[2]))
            layer.post_attention_layernorm.register_forward_pre_hook(
                lambda m, x: self._residuals.append(x[0])
            )

    @torch.inference_mode()
    def trace(self, text: str) -> Trace:
        """Routing of the tokens of ``text``, said by a user."""
        said = self.tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n")
        self._ids.clear()
        self._residuals.clear()
        self.loaded.model(torch.tensor([self._prefix + said]))
        keep = slice(len(self._prefix), None)
        used = [_picks(ids.view(-1, self.k)[keep]) for ids in self._ids]
        foretold: Picks = [[]]
        for index, layer in enumerate(self._layers[1:], start=1):
            early = self._residuals[index - 1].view(-1, self._residuals[0].shape[-1])[keep]
            _, _, ids = layer.mlp.gate.forward(layer.post_attention_layernorm.forward(early))
            foretold.append(_picks(ids))
        return Trace(used, foretold)


def _picks(ids: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in ids.tolist()]


def shares(layers: Sequence[Picks], layer: int, num_experts: int) -> list[float]:
    """Share of each expert among the uses of one layer."""
    counts = Counter(e for picks in layers for experts in picks[layer] for e in experts)
    total = sum(counts.values())
    return [counts[expert] / total for expert in range(num_experts)]


def entropy(distribution: Sequence[float]) -> float:
    """Entropy of shares, 1.0 when all are equal."""
    return -sum(s * math.log(s) for s in distribution if s > 0) / math.log(len(distribution))


def repeat_rate(tokens: Sequence[tuple[int, ...]]) -> float:
    """Share of a token's experts that served the token before, too."""
    pairs = list(itertools.pairwise(tokens))
    kept = sum(len(set(a) & set(b)) for a, b in pairs)
    return kept / sum(len(b) for _, b in pairs)


def lru(tokens: Sequence[tuple[int, ...]], size: int) -> list[list[int]]:
    """For each token, the experts that an LRU cache of ``size`` slots lacks."""
    cache: OrderedDict[int, None] = OrderedDict()
    missed = []
    for experts in tokens:
        missed.append([e for e in experts if e not in cache])
        for expert in experts:
            cache[expert] = None
            cache.move_to_end(expert)
        while len(cache) > size:
            cache.popitem(last=False)
    return missed


def hit_rate(tokens: Sequence[tuple[int, ...]], size: int) -> float:
    """Hits among all uses of one layer."""
    uses = sum(len(experts) for experts in tokens)
    return 1 - sum(map(len, lru(tokens, size))) / uses


def foretelling(traces: Sequence[Trace], size: int | None, layers: Sequence[int]) -> float:
    """Share of the experts used in ``layers`` (from 1 on) that the layer before foretold; with a
    ``size``, only over those that an LRU cache of that size lacks."""
    right = total = 0
    for trace in traces:
        for layer in layers:
            tokens, guesses = trace.used[layer], trace.foretold[layer]
            wanted = tokens if size is None else lru(tokens, size)
            for experts, guess in zip(wanted, guesses, strict=True):
                right += len(set(experts) & set(guess))
                total += len(experts)
    return right / total if total else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def measure(traces: Sequence[Trace], num_experts: int) -> dict[str, Any]:
    """All figures of one kind of text, shares rounded to four digits."""
    used = [trace.used for trace in traces]
    layers = range(len(used[0]))
    by_layer = [shares(used, layer, num_experts) for layer in layers]
    tokens = [picks[layer] for picks in used for layer in layers]
    return {
        "tokens": sum(len(picks[0]) for picks in used),
        "entropy": [round(entropy(s), 4) for s in by_layer],
        "max_share": [round(max(s), 4) for s in by_layer],
        "repeat": round(_mean([repeat_rate(t) for t in tokens]), 4),
        "lru": {size: round(_mean([hit_rate(t, size) for t in tokens]), 4)
                for size in CACHE_SIZES if size < num_experts},
        "foretold": round(foretelling(traces, None, layers[1:]), 4),
        "foretold_by_layer": [round(foretelling(traces, None, [i]), 4) for i in layers[1:]],
        "foretold_on_misses": {size: round(foretelling(traces, size, layers[1:]), 4)
                               for size in MISS_SIZES if size < num_experts},
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Report on one model folder."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.router_report", description=__doc__
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=8, help="texts of each kind")
    parser.add_argument("--characters", type=int, default=700, help="length of a text")
    parser.add_argument("--shares", type=Path, help="write the share of every expert here")
    given = parser.parse_args(argv)
    tracer = Tracer(given.model)
    random_repeat = tracer.k / tracer.num_experts
    print(f"{tracer.num_experts} experts, {tracer.k} a token; by chance a token repeats "
          f"{100 * random_repeat:.1f} % of the experts before it")  # fmt: skip
    summary: dict[str, Any] = {}
    all_shares: dict[str, list[list[float]]] = {}
    everything: list[Trace] = []
    for kind in router_texts.KINDS:
        traces = [tracer.trace(t) for t in router_texts.texts(kind, given.texts, given.characters)]
        everything += traces
        summary[kind] = measure(traces, tracer.num_experts)
        all_shares[kind] = [[round(s, 5) for s in shares([t.used for t in traces], layer,
                                                         tracer.num_experts)]
                            for layer in range(len(traces[0].used))]  # fmt: skip
        _print(kind, summary[kind])
    summary["all"] = measure(everything, tracer.num_experts)
    _print("all", summary["all"])
    apart = ", ".join(f"{layer}: {distance:.2f}" for layer, distance in _apart(all_shares))
    print(f"layers whose experts differ most between Chinese and SQL: {apart}")
    if given.shares:
        given.shares.write_text(json.dumps(all_shares) + "\n", encoding="utf-8")
    print(json.dumps(summary))
    return 0


def _apart(found: dict[str, list[list[float]]]) -> list[tuple[int, float]]:
    """(layer, half the summed difference of shares), largest first."""
    pairs = zip(found["chinese"], found["sql"], strict=True)
    apart = [(i, sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2)
             for i, (a, b) in enumerate(pairs)]  # fmt: skip
    return sorted(apart, key=lambda pair: -pair[1])


def _print(kind: str, figures: dict[str, Any]) -> None:
    hits = " ".join(f"{size}:{100 * rate:.0f}" for size, rate in figures["lru"].items())
    missed = " ".join(f"{s}:{100 * rate:.0f}" for s, rate in figures["foretold_on_misses"].items())
    entropies = " ".join(f"{value:.3f}" for value in figures["entropy"])
    print(f"{kind:8s} {figures['tokens']} tokens; entropy by layer {entropies}; largest share "
          f"{100 * max(figures['max_share']):.1f} %; repeat {100 * figures['repeat']:.1f} %; "
          f"LRU hits by slots {hits} %; next layer foretold {100 * figures['foretold']:.1f} %, "
          f"on misses {missed} %")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
