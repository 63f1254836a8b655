"""Expert choices from a generator, and the hit rate a slot cache of a given size gets from them.

Owns the generator (popularity by Zipf's law in each layer, and reuse of the token before), the
simulation of the device's slot choice, and the search for the reuse that gives a wanted hit
rate. Knows nothing of kernels or weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int32]
"""Expert ids ``[steps, layers, batch * num_experts_per_tok]``, distinct within a token."""

_FIELD = re.compile(r"(skew|reuse|seed|hit|accuracy)=([0-9.]+)")
DEVICE_DECAY = 0.98
"""Decay of an expert's frequency a step, as ``ExpertSlots`` has it by default."""
_CALIBRATION_STEPS = 256
_CALIBRATION_LAYERS = 10
_TOLERANCE = 0.002


@dataclass(frozen=True)
class Routing:
    """Where the expert choices of a measurement come from.

    ``skew`` is the exponent of Zipf's law over a layer's experts (0: all alike); ``reuse`` the
    probability that an expert of the token before is used again; ``accuracy`` the probability
    that the prediction made one layer ahead names an expert that is used. ``own`` means the
    router's own choices and predictions.
    """

    own: bool = True
    skew: float = 0.0
    reuse: float = 0.0
    seed: int = 0
    accuracy: float = 0.85
    wanted_hit_rate: float | None = None

    @classmethod
    def parse(cls, text: str) -> Routing:
        """Read ``own`` or ``generated:skew=0.6,reuse=0.3,seed=1``; ``hit=0.75`` in place of
        ``reuse`` searches the reuse that gives this hit rate. Raises ``ValueError``.
        """
        if text == "own":
            return cls()
        kind, _, rest = text.partition(":")
        fields: dict[str, str] = {}
        for item in filter(None, rest.split(",")):
            match = _FIELD.fullmatch(item.strip())
            if match is None or match[1] in fields:
                kind = ""
            else:
                fields[match[1]] = match[2]
        if kind != "generated" or {"reuse", "hit"} <= fields.keys():
            raise ValueError(
                f"{text!r} is no routing; write own, generated:skew=0.6,reuse=0.3,seed=0 "
                "or generated:skew=0.6,hit=0.75,seed=0"
            )
        hit = fields.get("hit")
        routing = cls(
            own=False,
            skew=float(fields.get("skew", 0)),
            reuse=float(fields.get("reuse", 0)),
            seed=int(float(fields.get("seed", 0))),
            accuracy=float(fields.get("accuracy", cls.accuracy)),
            wanted_hit_rate=None if hit is None else float(hit),
        )
        shares = (routing.reuse, routing.accuracy, routing.wanted_hit_rate or 0.0)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"{text!r}: reuse, hit and accuracy are shares from 0 to 1")
        return routing

    def __str__(self) -> str:
        if self.own:
            return "own"
        return (
            f"generated:skew={self.skew:.4g},reuse={self.reuse:.4g},seed={self.seed},"
            f"accuracy={self.accuracy:g}"
        )


ROUTER = Routing()
"""The router's own choices."""


@dataclass(frozen=True)
class RoutedShape:
    """What a table of choices is made for."""

    num_layers: int
    num_experts: int
    num_experts_per_tok: int
    batch: int = 1


@dataclass(frozen=True)
class CacheRun:
    """What a simulated cache counted over the steps after its warm-up."""

    hits: int
    misses: int

    @property
    def hit_rate(self) -> float:
        """Hits among distinct experts used, 1.0 when there were none."""
        total = self.hits + self.misses
        return self.hits / total if total else 1.0


def generate(routing: Routing, shape: RoutedShape, steps: int) -> Table:
    """A table of ``steps`` tokens; equal arguments give equal tables."""
    rng = np.random.default_rng(routing.seed)
    layers, experts, top_k = shape.num_layers, shape.num_experts, shape.num_experts_per_tok
    ranks = np.argsort(rng.random((layers, experts)), axis=1) + 1
    popularity = (-routing.skew * np.log(ranks)).astype(np.float32)[:, None, :]
    table = np.empty((steps, layers, shape.batch, top_k), dtype=np.int32)
    for step in range(steps):
        # The k largest of log-probability plus Gumbel noise: k draws without replacement.
        noise = rng.gumbel(size=(layers, shape.batch, experts)).astype(np.float32)
        keys = popularity + noise
        if step:
            kept = rng.random((layers, shape.batch, top_k)) < routing.reuse
            held = np.take_along_axis(keys, table[step - 1], axis=2)
            held = np.where(kept, held + np.float32(1e6), held)
            # An expert that is not kept by chance may still be drawn again.
            np.put_along_axis(keys, table[step - 1], held, axis=2)
        best = np.argpartition(-keys, top_k - 1, axis=2)[..., :top_k]
        table[step] = best
    return table.reshape(steps, layers, shape.batch * top_k)


def predictions(routing: Routing, shape: RoutedShape, table: Table) -> Table:
    """What a predictor of ``routing.accuracy`` names for each choice of ``table``.

    A wrong prediction is an expert that the token does not use in this layer.
    """
    rng = np.random.default_rng([routing.seed, 1])
    layers, experts, top_k = shape.num_layers, shape.num_experts, shape.num_experts_per_tok
    choices = table.reshape(-1, layers, shape.batch, top_k)
    guesses = np.empty_like(choices)
    for step, chosen in enumerate(choices):
        keys = rng.random((layers, shape.batch, experts))
        right = rng.random(chosen.shape) < routing.accuracy
        if top_k == experts:
            right[:] = True
        # Right ones come first, other experts next, experts that must not be named last.
        np.put_along_axis(keys, chosen, np.where(right, 2.0, -1.0), axis=2)
        guesses[step] = np.argsort(-keys, axis=2, kind="stable")[..., :top_k]
    return guesses.reshape(table.shape)


def simulate(
    table: Table,
    slots_per_layer: Sequence[int],
    num_experts: int,
    *,
    decay: float,
    warm_up: int = 0,
) -> CacheRun:
    """Run the slot choice of the device over ``table`` and count after ``warm_up`` steps.

    Slots start empty. A missed expert takes a free slot, else that of the resident expert with
    the least decayed frequency that this step does not use; without one it is not kept.
    """
    layers = table.shape[1]
    capacity = np.asarray(slots_per_layer)
    frequency = np.zeros((layers, num_experts))
    resident = np.zeros((layers, num_experts), dtype=bool)
    hits = misses = 0
    for step, choices in enumerate(table):
        used = np.zeros_like(resident)
        np.put_along_axis(used, choices, True, axis=1)
        missed = used & ~resident
        if step >= warm_up:
            hits += int((used & resident).sum())
            misses += int(missed.sum())
        frequency *= decay
        frequency[used] += 1.0
        _fill(resident, missed, used, frequency, capacity)
    return CacheRun(hits, misses)


def _fill(
    resident: npt.NDArray[np.bool_],
    missed: npt.NDArray[np.bool_],
    used: npt.NDArray[np.bool_],
    frequency: npt.NDArray[np.float64],
    capacity: npt.NDArray[Any],
) -> None:
    """Put ``missed`` into slots of each layer, in place."""
    candidates = resident & ~used
    order = np.argsort(np.where(candidates, frequency, np.inf), axis=1, kind="stable")
    wanted = missed.sum(axis=1)
    spare = capacity - resident.sum(axis=1)
    evicted = np.minimum(np.maximum(wanted - spare, 0), candidates.sum(axis=1))
    kept = np.minimum(wanted, spare + evicted)
    for layer in np.flatnonzero(wanted):
        resident[layer, order[layer, : evicted[layer]]] = False
        resident[layer, np.flatnonzero(missed[layer])[: kept[layer]]] = True


def calibrate(
    routing: Routing, shape: RoutedShape, slots_per_layer: Sequence[int], *, decay: float
) -> Routing:
    """``routing`` with the reuse that brings its wanted hit rate, found by simulation.

    When even no reuse hits more often than wanted, the skew is lowered instead. Raises
    ``ValueError`` when the wanted rate cannot be reached.
    """
    wanted = routing.wanted_hit_rate
    if wanted is None:
        return routing

    layers = np.linspace(0, shape.num_layers - 1, min(shape.num_layers, _CALIBRATION_LAYERS))
    slots = [slots_per_layer[int(layer)] for layer in layers]
    sample = replace(shape, num_layers=len(slots))

    def rate(**change: float) -> float:
        table = generate(replace(routing, **change), sample, 2 * _CALIBRATION_STEPS)  # type: ignore[arg-type]
        return simulate(
            table, slots, shape.num_experts, decay=decay, warm_up=_CALIBRATION_STEPS
        ).hit_rate

    name, low, high, fixed = "reuse", 0.0, 1.0, {}
    if rate(reuse=0.0) > wanted:
        name, high, fixed = "skew", routing.skew, {"reuse": 0.0}
        if rate(skew=0.0, reuse=0.0) > wanted:
            raise ValueError(
                f"a hit rate of {wanted:.0%} is below what {min(slots_per_layer)} slots of "
                f"{shape.num_experts} experts give any routing; lower gpu_memory_limit"
            )
    for _ in range(12):
        middle = (low + high) / 2
        found = rate(**{name: middle}, **fixed)
        if abs(found - wanted) < _TOLERANCE:
            break
        low, high = (middle, high) if found < wanted else (low, middle)
    return replace(routing, **{name: middle}, **fixed)  # type: ignore[arg-type]
