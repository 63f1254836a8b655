"""Training batches: one prompt prefix and many dialogs that continue it.

Owns tokenisation, the packing of a step into flat arrays, and the worker processes that make
steps. Knows nothing of the model.

A step is one flat sequence ``[prefix, dialog, dialog, ...]`` with no padding. Attention needs
rectangles: ``chunks`` gather dialogs of like length into ``[dialogs, width]``.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.training import dialogs, rendering
from models.training.dialogs import Dialog, Mode, Prompt, Sampler

MAX_DIALOG_TOKENS = 640
PAD = 0
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
class Chunk:
    """Dialogs of like length. ``gather`` [dialogs*width] indexes the flat sequence, ``keep``
    indexes the rows of the rectangle that are no padding, in flat order."""

    dialogs: int
    width: int
    gather: Array
    keep: Array


@dataclass(frozen=True)
class Step:
    """One optimiser step. ``source`` are flat positions whose next token is ``target``.

    ``segment`` numbers the trained pieces over the whole step; ``labels`` holds (intent, kind)
    for each.
    """

    ids: Array
    positions: Array
    prefix: int
    chunks: tuple[Chunk, ...]
    source: Array
    target: Array
    segment: Array
    labels: tuple[tuple[str, str], ...]

    @property
    def num_dialogs(self) -> int:
        """Dialogs in this step."""
        return sum(chunk.dialogs for chunk in self.chunks)


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


def pack(prefix: list[int], encoded: list[Encoded], num_chunks: int) -> Step:
    """One step of these dialogs, sorted by length into ``num_chunks`` rectangles."""
    encoded = sorted(encoded, key=lambda item: len(item.ids))
    flat, positions = list(prefix), list(range(len(prefix)))
    source: list[int] = []
    target: list[int] = []
    segment: list[int] = []
    labels: list[tuple[str, str]] = []
    starts: list[int] = []
    for item in encoded:
        start = len(flat)
        starts.append(start)
        for offset, number in enumerate(item.segment):
            if number >= 0:
                source.append(start + offset - 1)
                target.append(item.ids[offset])
                segment.append(len(labels) + number)
        labels += [(item.intent, kind) for kind in item.kinds]
        flat += item.ids
        positions += range(len(prefix), len(prefix) + len(item.ids))
    chunks = []
    total = len(flat) - len(prefix)
    first = done = 0
    for index in range(num_chunks):
        last = first
        while last < len(encoded) and (done < total * (index + 1) / num_chunks):
            done += len(encoded[last].ids)
            last += 1
        if last > first:
            sizes = [len(item.ids) for item in encoded[first:last]]
            chunks.append(_chunk(starts[first:last], sizes))
        first = last
    return Step(
        _array(flat), _array(positions), len(prefix), tuple(chunks), _array(source),
        _array(target), _array(segment), tuple(labels),
    )  # fmt: skip


def _array(values: Any) -> Array:
    return np.asarray(values, dtype=np.int32)


def _chunk(starts: list[int], sizes: list[int]) -> Chunk:
    width = -(-max(sizes) // 8) * 8
    offsets = np.arange(width)[None, :]
    real = offsets < np.array(sizes)[:, None]
    gather = np.where(real, np.array(starts)[:, None] + offsets, np.array(starts)[:, None])
    return Chunk(len(starts), width, _array(gather.reshape(-1)), _array(np.flatnonzero(real)))


class StepSource:
    """Makes steps from a seed. ``tokens`` is the size of a step without its prefix."""

    def __init__(
        self, tokenizer: Tokenizer, seed: int, tokens: int, num_chunks: int, mode: Mode = "train"
    ) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._sampler = Sampler(self._rng, mode)
        self._tokens = tokens
        self._num_chunks = num_chunks

    def step(self, prompt: Prompt | None = None, intents: tuple[str, ...] = ()) -> Step:
        """The next step; every dialog of it shares one prompt."""
        prompt = prompt or dialogs.make_prompt(self._rng)
        prefix = self._tokenizer.encode(rendering.prefix(prompt)).ids
        found: list[Encoded] = []
        size = 0
        while size < self._tokens:
            item = encode(self._tokenizer, self._sampler.dialog(prompt, intents))
            if len(item.ids) <= MAX_DIALOG_TOKENS:
                found.append(item)
                size += len(item.ids)
        return pack(prefix, found, self._num_chunks)


def _work(text: str, seed: int, tokens: int, num_chunks: int, out: Any) -> None:
    source = StepSource(Tokenizer.from_str(text), seed, tokens, num_chunks)
    while True:
        out.put(source.step())


class Feed:
    """Steps made by worker processes; with no workers, made in this process."""

    def __init__(
        self, tokenizer: Tokenizer, *, seed: int, tokens: int, num_chunks: int, workers: int
    ) -> None:
        self._local: StepSource | None = None
        self._processes: list[Any] = []
        if workers == 0:
            self._local = StepSource(tokenizer, seed, tokens, num_chunks)
            return
        context = multiprocessing.get_context("spawn")
        self._queue: Any = context.Queue(maxsize=4 * workers)
        text = tokenizer.to_str()
        for index in range(workers):
            process = context.Process(
                target=_work,
                args=(text, seed + 7919 * (index + 1), tokens, num_chunks, self._queue),
                daemon=True,
            )
            process.start()
            self._processes.append(process)

    def __iter__(self) -> Iterator[Step]:
        while True:
            yield self.next()

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
