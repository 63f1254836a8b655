"""schedule -> run -> postprocess, one step at a time.

Owns the life of sequences from submission to output. Single-threaded: the thread in ``llm``
drives it. Knows nothing of chat messages or templates.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from inference.engine.logits import DenseLogits, Logits
from inference.engine.model_runner import ModelRunner
from inference.engine.prefix_cache import PrefixCache
from inference.engine.scheduler import Prefill, Scheduler
from inference.engine.sequence import Sequence
from inference.errors import GPUOutOfMemoryError, InferenceError
from inference.logit_mask import ControlTokens
from inference.outputs import RequestOutput
from inference.protocol import FinishReason

if TYPE_CHECKING:  # the CPU path must not need the packages of the GPU
    from inference.engine.gpu_runner import GpuModelRunner

logger = logging.getLogger(__name__)


class LLMEngine:
    """Continuous batching over a runner, on the CPU or on a GPU."""

    def __init__(
        self,
        runner: ModelRunner | GpuModelRunner,
        control: ControlTokens,
        *,
        prefix_cache_bytes: int,
        prefill_chunk_tokens: int,
    ) -> None:
        self.runner = runner
        self.prefix_cache = PrefixCache(runner.kv_cache, capacity_bytes=prefix_cache_bytes)
        self.scheduler = Scheduler(
            runner.kv_cache, self.prefix_cache, prefill_chunk_tokens=prefill_chunk_tokens
        )
        self._control = control
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0
        self.num_steps = 0

    def add(self, sequence: Sequence) -> None:
        """Take a sequence; it runs from the next ``step`` on."""
        self.scheduler.add(sequence)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self.scheduler.num_running or self.scheduler.num_waiting)

    @torch.inference_mode()
    def step(self) -> None:
        """End interrupted sequences, then run one prefill chunk or one decode batch."""
        self._end_interrupted()
        batch = self.scheduler.schedule()
        if batch is None:
            return
        self.num_steps += 1
        try:
            if isinstance(batch, Prefill):
                self._prefill(batch)
            else:
                self._decode(batch.sequences)
        except GPUOutOfMemoryError as error:  # the others' pages and states are untouched
            logger.error("requests failed: %s", error)
            self._fail((batch.sequence,) if isinstance(batch, Prefill) else batch.sequences, error)

    def fail_all(self, error: InferenceError) -> None:
        """End every sequence with ``error``; slots are freed, nothing of them is cached."""
        self._fail(self.scheduler.unfinished(), error)

    def _fail(self, sequences: Iterable[Sequence], error: InferenceError) -> None:
        for sequence in sequences:
            self.scheduler.discard(sequence)
            sequence.error = error
            sequence.finished.set()

    def _prefill(self, batch: Prefill) -> None:
        sequence = batch.sequence
        ids = sequence.token_ids[batch.start : batch.end]
        logits = self._run_prefill(ids, sequence, batch)
        sequence.num_computed_tokens = batch.end
        self.num_prefill_tokens += len(ids)
        if sequence.is_prefilled:
            self.prefix_cache.store(sequence.token_ids, sequence.slot)
            self._next_token(sequence, logits)

    def _run_prefill(self, ids: list[int], sequence: Sequence, batch: Prefill) -> Logits:
        runner = self.runner
        if isinstance(runner, ModelRunner):
            return DenseLogits(runner.prefill(ids, sequence.slot, batch.start), sequence.mask)
        last = batch.end == sequence.num_prompt_tokens
        mask = sequence.mask.packed(runner.vocab_size) if last else None
        return runner.prefill(ids, sequence.slot, batch.start, mask)

    def _decode(self, sequences: tuple[Sequence, ...]) -> None:
        rows = self._run_decode(sequences)
        self.num_decode_tokens += len(sequences)
        for sequence, logits in zip(sequences, rows, strict=True):
            sequence.num_computed_tokens = len(sequence)
            self._next_token(sequence, logits)

    def _run_decode(self, sequences: tuple[Sequence, ...]) -> list[Logits]:
        runner = self.runner
        ids = [sequence.token_ids[-1] for sequence in sequences]
        slots = [sequence.slot for sequence in sequences]
        positions = [len(sequence) - 1 for sequence in sequences]
        if isinstance(runner, ModelRunner):
            logits = runner.decode(ids, slots, positions)
            return [DenseLogits(logits[row], each.mask) for row, each in enumerate(sequences)]
        masks = [sequence.mask.packed(runner.vocab_size) for sequence in sequences]
        return list(runner.decode(ids, slots, positions, masks))

    def _next_token(self, sequence: Sequence, logits: Logits) -> None:
        parser = sequence.parser
        if parser.thinking and parser.thinking_tokens >= sequence.max_thinking_tokens:
            token_id = self._control.think_end
            assert token_id is not None
            sequence.sampler.note(token_id)
        else:
            token_id = sequence.sampler.choose(logits)
        sequence.mask.accept(token_id)
        sequence.token_ids.append(token_id)
        if sequence.first_token_s is None:
            sequence.first_token_s = time.monotonic()
        if token_id in sequence.stop_token_ids:
            self._finish(sequence, "stop")
            return
        piece = parser.push(token_id)
        if piece and sequence.on_text is not None:
            sequence.on_text(piece)
        if (
            sequence.num_completion_tokens >= sequence.max_tokens
            or len(sequence) >= self.runner.kv_cache.max_model_len
        ):
            self._finish(sequence, "length")

    def _end_interrupted(self) -> None:
        now_s = time.monotonic()
        for sequence in self.scheduler.unfinished():
            reason = sequence.interrupted(now_s)
            if reason is not None:
                self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence)
        piece = sequence.parser.finish()
        if piece and sequence.on_text is not None:
            sequence.on_text(piece)
        now_s = time.monotonic()
        first_s = sequence.first_token_s if sequence.first_token_s is not None else now_s
        sequence.output = RequestOutput(
            message=sequence.parser.result(sequence.tools),
            finish_reason=reason,
            prompt_tokens=sequence.num_prompt_tokens,
            cached_tokens=sequence.num_cached_tokens,
            completion_tokens=sequence.num_completion_tokens,
            time_to_first_token_s=first_s - sequence.submitted_s,
            duration_s=now_s - sequence.submitted_s,
        )
        sequence.finished.set()
        logger.debug(
            "sequence %d: %s, %d prompt tokens (%d cached), %d generated, %.3f s",
            sequence.sequence_id,
            reason,
            sequence.num_prompt_tokens,
            sequence.num_cached_tokens,
            sequence.num_completion_tokens,
            sequence.output.duration_s,
        )
