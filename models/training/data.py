"""Training batches: a few prompt prefixes and many dialogs that continue each.

Owns tokenisation, the packing of a step into flat arrays, and the worker processes that make
steps. Knows nothing of the model.

A step is one flat sequence: all prefixes, then the rectangles of the first, of the second ...; a
rectangle holds dialogs of like length, padded to its width. With a ``Layout`` given, every step
has the same shape, so that a GPU can replay one captured graph; otherwise there is one prefix and
the rectangles fit the dialogs at hand.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.training import dialogs, rendering
from models.training.dialogs import Dialog, Mode, Prompt, Sampler

MAX_DIALOG_TOKENS = 640
MAX_PREFIX_TOKENS = 1408
NUM_RECTANGLES = 3
MAX_HOMELESS = 40
"""A step is full once so many dialogs found no room, shared out among its prefixes."""
PAD = 0
NO_TARGET = -100
Array = NDArray[np.int32]


@dataclass(frozen=True)
class Encoded:
    """Tokens of one dialog; ``segment`` is the number of the trained piece a token is in, or -1.

    ``kinds`` names each trained piece: a tool's name or ``answer``.
    """

    ids: list[int]
    segment: list[int]
    kinds: tuple[str, ...]
    intent: str


@dataclass(frozen=True)
class Layout:
    """Shape of a step: ``prefixes`` prefixes padded to ``prefix`` tokens, the rectangles (dialogs,
    width) of each of them in order, loss positions of the whole step."""

    prefix: int
    rectangles: tuple[tuple[int, int], ...]
    targets: int
    prefixes: int = 1

    @property
    def head(self) -> int:
        """Length of all padded prefixes together."""
        return self.prefix * self.prefixes

    @property
    def part(self) -> int:
        """Length of the rectangles of one prefix."""
        return sum(rows * width for rows, width in self.rectangles)

    @property
    def tokens(self) -> int:
        """Length of the flat sequence."""
        return self.head + self.part * self.prefixes


@dataclass(frozen=True)
class Part:
    """Tokens of a prefix and the dialogs that continue it, one list a rectangle."""

    prefix: list[int]
    rows: list[list[Encoded]]


@dataclass(frozen=True)
class Step:
    """One optimiser step, padded to ``layout``.

    ``real`` is 1 where a token is no padding; of each padded prefix the first tokens are real, as
    many as ``prefixes`` says. ``source`` are flat positions whose next token is ``target``,
    ``NO_TARGET`` in padding. ``segment`` numbers the trained pieces over the whole step;
    ``labels`` holds (intent, kind) for each.
    """

    layout: Layout
    prefixes: tuple[int, ...]
    ids: Array
    positions: Array
    real: Array
    source: Array
    target: Array
    segment: Array
    labels: tuple[tuple[str, str], ...]
    num_dialogs: int

    @property
    def num_tokens(self) -> int:
        """Real tokens of the dialogs, prefix not counted."""
        return int(self.real.sum()) - sum(self.prefixes)


def encode(tokenizer: Tokenizer, dialog: Dialog) -> Encoded:
    """Token ids and loss segments of the dialog after the prefix."""
    ids: list[int] = []
    segment: list[int] = []
    kinds: list[str] = []
    for piece in rendering.pieces(dialog.turns):
        tokens = tokenizer.encode(piece.text).ids
        number = -1
        if piece.trained:
            number = len(kinds)
            kinds.append(piece.kind)
        ids += tokens
        segment += [number] * len(tokens)
    return Encoded(ids, segment, tuple(kinds), dialog.intent)


def fit(prefix: list[int], encoded: list[Encoded], num_rectangles: int) -> Step:
    """One step of all ``encoded``, sorted by length into rectangles of about equal size."""
    encoded = sorted(encoded, key=lambda item: len(item.ids))
    total = sum(len(item.ids) for item in encoded)
    rows: list[list[Encoded]] = [[]]
    done = 0
    for item in encoded:
        if done >= total * len(rows) / num_rectangles:
            rows.append([])
        rows[-1].append(item)
        done += len(item.ids)
    rectangles = tuple((len(group), _rounded(len(group[-1].ids), 8)) for group in rows)
    targets = sum(number >= 0 for item in encoded for number in item.segment)
    return pack([Part(prefix, rows)], Layout(len(prefix), rectangles, targets))


def pack(parts: list[Part], layout: Layout) -> Step:
    """A step of ``parts``, one for each prefix of the layout, whose dialogs must all fit."""
    ids = np.full(layout.tokens, PAD, dtype=np.int32)
    positions = np.zeros(layout.tokens, dtype=np.int32)
    real = np.zeros(layout.tokens, dtype=np.int32)
    source: list[int] = []
    target: list[int] = []
    segment: list[int] = []
    labels: list[tuple[str, str]] = []

    def put(start: int, tokens: list[int], first_position: int) -> None:
        span = slice(start, start + len(tokens))
        ids[span] = tokens
        positions[span] = range(first_position, first_position + len(tokens))
        real[span] = 1

    for number, part in enumerate(parts):
        put(number * layout.prefix, part.prefix, 0)
        for start, item in _places(part, number, layout):
            put(start, item.ids, len(part.prefix))
            for offset, piece in enumerate(item.segment):
                if piece >= 0:
                    source.append(start + offset - 1)
                    target.append(item.ids[offset])
                    segment.append(len(labels) + piece)
            labels += [(item.intent, kind) for kind in item.kinds]
    spare = layout.targets - len(source)
    return Step(
        layout, tuple(len(part.prefix) for part in parts), ids, positions, real,
        _array(source + [0] * spare), _array(target + [NO_TARGET] * spare),
        _array(segment + [-1] * spare), tuple(labels),
        sum(len(group) for part in parts for group in part.rows),
    )  # fmt: skip


def _places(part: Part, number: int, layout: Layout) -> Iterator[tuple[int, Encoded]]:
    """Flat position and dialog of every row of the ``number``-th part."""
    corner = layout.head + number * layout.part
    for group, (height, width) in zip(part.rows, layout.rectangles, strict=True):
        for row, item in enumerate(group):
            yield corner + row * width, item
        corner += height * width


def _array(values: Any) -> Array:
    return np.asarray(values, dtype=np.int32)


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


class StepSource:
    """Makes steps from a seed: of one ``Layout``, or of ``tokens`` tokens and fitted."""

    def __init__(
        self, tokenizer: Tokenizer, seed: int, shape: Layout | int, mode: Mode = "train"
    ) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._sampler = Sampler(self._rng, mode)
        self._shape = shape

    def step(self, prompt: Prompt | None = None, intents: tuple[str, ...] = ()) -> Step:
        """The next step; all dialogs of a prefix share one prompt, drawn unless ``prompt`` says."""
        shape = self._shape
        if isinstance(shape, Layout):
            parts = [self._part(prompt, shape, intents) for _ in range(shape.prefixes)]
            return pack(parts, shape)
        drawn, prefix = self._prefix(prompt, MAX_PREFIX_TOKENS)
        found: list[Encoded] = []
        size = 0
        while size < shape:
            item = encode(self._tokenizer, self._sampler.dialog(drawn, intents))
            if len(item.ids) <= MAX_DIALOG_TOKENS:
                found.append(item)
                size += len(item.ids)
        return fit(prefix, found, NUM_RECTANGLES)

    def _prefix(self, given: Prompt | None, limit: int) -> tuple[Prompt, list[int]]:
        """A prompt of at most ``limit`` tokens, and these; a given one as it is."""
        while True:
            prompt = given or dialogs.make_prompt(self._rng)
            tokens = self._tokenizer.encode(rendering.prefix(prompt)).ids
            if given is not None or len(tokens) <= limit:
                return prompt, tokens

    def _part(self, given: Prompt | None, layout: Layout, intents: tuple[str, ...]) -> Part:
        """Each dialog goes to the narrowest rectangle with room; ends when many found none."""
        prompt, prefix = self._prefix(given, layout.prefix)
        rows: list[list[Encoded]] = [[] for _ in layout.rectangles]
        targets = homeless = 0
        while homeless < MAX_HOMELESS // layout.prefixes:
            item = encode(self._tokenizer, self._sampler.dialog(prompt, intents))
            wanted = sum(number >= 0 for number in item.segment)
            place = next(
                (group for group, (height, width) in zip(rows, layout.rectangles, strict=True)
                 if len(item.ids) <= width and len(group) < height), None,
            )  # fmt: skip
            if place is None or targets + wanted > layout.targets // layout.prefixes:
                homeless += 1
                continue
            place.append(item)
            targets += wanted
        return Part(prefix, rows)


def _work(text: str, seed: int, shape: Layout | int, out: Any) -> None:
    source = StepSource(Tokenizer.from_str(text), seed, shape)
    while True:
        out.put(source.step())


class Feed:
    """Steps made by worker processes; with no workers, made in this process."""

    def __init__(
        self, tokenizer: Tokenizer, *, seed: int, shape: Layout | int, workers: int
    ) -> None:
        self._local: StepSource | None = None
        self._processes: list[Any] = []
        if workers == 0:
            self._local = StepSource(tokenizer, seed, shape)
            return
        # Forked where that works: a spawned worker would import torch for nothing.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        method = "fork" if sys.platform == "linux" else "spawn"
        context: Any = multiprocessing.get_context(method)
        self._queue: Any = context.Queue(maxsize=4 * workers)
        text = tokenizer.to_str()
        for index in range(workers):
            process = context.Process(
                target=_work,
                args=(text, seed + 7919 * (index + 1), shape, self._queue),
                daemon=True,
            )
            process.start()
            self._processes.append(process)

    def next(self) -> Step:
        """The next step. Raises RuntimeError when a worker has died."""
        if self._local is not None:
            return self._local.step()
        while True:
            try:
                step: Step = self._queue.get(timeout=10)
                return step
            except queue.Empty:
                if not all(process.is_alive() for process in self._processes):
                    raise RuntimeError("a data worker has died; see its traceback above") from None

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._processes = []
