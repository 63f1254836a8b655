"""The engine as its callers see it: a ``ChatModel`` in this process.

Owns the engine thread, the chat template side and the hand-over between calling threads and
the engine. Callbacks of a caller run in the caller's thread, so that a slow one stalls nobody
else. Knows nothing of WeCom, Celery or tools.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from inference.checkpoint import format as layout
from inference.checkpoint.loader import load_model
from inference.config import EngineConfig, GenerationConfig, ResolvedSampling
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_runner import ModelRunner
from inference.engine.prefix_cache import PrefixCacheStats
from inference.engine.sampler import Sampler
from inference.engine.sequence import Sequence as EngineSequence
from inference.errors import (
    ConfigMismatchError,
    EngineStepError,
    EngineStoppedError,
    TokenLimitError,
)
from inference.geometry import ModelGeometry
from inference.logit_mask import ControlTokens, GrammarCompiler, ToolCallMask
from inference.memory_plan import MemoryPlan
from inference.moe.expert_cache import CacheStats
from inference.moe.router import RouterOptions
from inference.outputs import OutputParser
from inference.protocol import ChatOutput, Message, ToolSpec
from inference.sampling_params import SamplingParams
from inference.tokenizer import Tokenizer

if TYPE_CHECKING:
    from inference.engine.gpu_runner import GpuModelRunner
    from inference.moe.router_counters import RouterCounters

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_MAX_FAILED_STEPS = 3
_KEPT_SNAPSHOTS = 4


@dataclass(frozen=True)
class EngineStats:
    """Counters since the start."""

    num_prefill_tokens: int
    num_decode_tokens: int
    num_steps: int
    num_waiting: int
    num_running: int
    num_threads: int
    grammar_failures: int
    expert_cache: CacheStats
    prefix_cache: PrefixCacheStats
    router: RouterCounters | None = None
    """What the device counted about experts; ``None`` on the CPU."""
    memory_plan: MemoryPlan | None = None
    """What the engine obeys; ``None`` on the CPU."""


def build_runner(model_dir: Path, config: EngineConfig) -> ModelRunner | GpuModelRunner:
    """Load a model for ``config.device``. Raises as ``LLM`` does."""
    if config.device == "cuda":
        # The GPU's parts are imported where they are wanted: a CPU needs none of them.
        from inference.engine.gpu_loader import build_gpu_runner

        return build_gpu_runner(model_dir, config)
    loaded = load_model(
        model_dir,
        expert_cache_slots=config.expert_cache_slots,
        expert_cache_policy=config.expert_cache_policy,
    )
    return ModelRunner(
        loaded,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        router_options=RouterOptions(
            config.router_gumbel_temperature, config.router_fatigue_penalty
        ),
        backbone_dtype=config.backbone_dtype,
        lm_head_dtype=config.lm_head_dtype,
    )


def prefix_cache_bytes(model_dir: Path, config: EngineConfig) -> int:
    """Host memory for shared beginnings of prompts: what ``config`` says, but room for a few
    whole sequences of a model with recurrent states, whose snapshots cannot be cut shorter."""
    geometry = ModelGeometry.of_folder(model_dir)
    if not geometry.state_bytes:
        return config.prefix_cache_bytes
    kv = config.max_model_len * geometry.kv_bytes_per_token("fp16")
    return max(config.prefix_cache_bytes, _KEPT_SNAPSHOTS * (geometry.state_bytes + kv))


class LLM:
    """A model folder with an engine thread. Use as a context manager or ``start``/``close``."""

    def __init__(
        self,
        model_dir: Path | str,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        max_model_len: int = 2048,
        max_num_seqs: int = 4,
        expert_cache_slots: int | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        """Load the model. ``config``, when given, rules over the values beside it.

        Raises ``CheckpointError`` for a folder that cannot be used, ``ValueError`` for limits
        that cannot be met; on "cuda" also ``DeviceError`` (``MemoryPlanError``: the model does
        not fit into ``gpu_memory_limit``). There is no falling back to the CPU.
        """
        self._config = config or EngineConfig(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            expert_cache_slots=expert_cache_slots,
            device=device,
        )
        self._model_dir = Path(model_dir)
        self._tokenizer = Tokenizer(self._model_dir)
        self._generation = GenerationConfig.read(self._model_dir)
        runner = build_runner(self._model_dir, self._config)
        self._check_vocabulary(runner.vocab_size)
        self._control = ControlTokens.of(self._tokenizer, self._eos_ids())
        self._compiler = GrammarCompiler(self._tokenizer, self._control, runner.vocab_size)
        self._engine = LLMEngine(
            runner,
            self._control,
            prefix_cache_bytes=prefix_cache_bytes(self._model_dir, self._config),
            prefill_chunk_tokens=self._config.prefill_chunk_tokens,
        )
        self._submitted: queue.SimpleQueue[EngineSequence | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = True
        self._num_threads = 0

    def __enter__(self) -> LLM:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._config.max_model_len

    @property
    def is_running(self) -> bool:
        """Whether the engine thread takes requests."""
        return not self._stopped

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._tokenizer

    @property
    def runner(self) -> ModelRunner | GpuModelRunner:
        """The model runner; for looking at sizes, not for running beside the engine."""
        return self._engine.runner

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the counters."""
        engine = self._engine
        on_gpu = None if isinstance(engine.runner, ModelRunner) else engine.runner
        return EngineStats(
            num_prefill_tokens=engine.num_prefill_tokens,
            num_decode_tokens=engine.num_decode_tokens,
            num_steps=engine.num_steps,
            num_waiting=engine.scheduler.num_waiting,
            num_running=engine.scheduler.num_running,
            num_threads=self._num_threads,
            grammar_failures=self._compiler.failures,
            expert_cache=engine.runner.expert_cache.stats,
            prefix_cache=engine.prefix_cache.stats,
            router=on_gpu.slots.counters() if on_gpu else None,
            memory_plan=on_gpu.plan if on_gpu else None,
        )

    def start(self) -> None:
        """Start the engine thread and wait until the model is warm. No effect when running."""
        with self._lock:
            if not self._stopped:
                return
            self._stopped = False
            self._submitted = queue.SimpleQueue()
            self._ready.clear()
            self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
            self._thread.start()
        self._ready.wait()
        if self._stopped:
            raise EngineStoppedError("the engine thread failed while warming up; see the log")

    def close(self) -> None:
        """Stop the engine thread; requests in flight end with ``EngineStoppedError``."""
        with self._lock:
            if self._stopped or self._thread is None:
                return
            self._stopped = True
            self._submitted.put(None)
        self._thread.join()

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """Tokens of the rendered prompt, generation prompt included."""
        return len(self._tokenizer.encode(self._tokenizer.render(messages, tools)))

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        params: SamplingParams | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        deadline_s: float | None = None,
    ) -> ChatOutput:
        """See ``ChatModel.chat``. ``max_thinking_tokens`` 0 turns thinking off in the template.

        Also raises ``EngineStepError`` when a step with this request failed, ``ValueError`` for
        impossible sampling values.
        """
        pieces: queue.SimpleQueue[str] = queue.SimpleQueue()
        sequence = self._sequence(
            messages, tools, params or SamplingParams(), deadline_s, on_text and pieces.put
        )
        with self._lock:
            if self._stopped:
                raise EngineStoppedError("the engine is not running; start it and ask again")
            self._submitted.put(sequence)
        try:
            self._wait(sequence, pieces, on_text, cancelled)
        except BaseException:
            sequence.cancel()
            raise
        if sequence.error is not None:
            raise sequence.error
        assert sequence.output is not None
        return sequence.output.to_chat_output()

    @staticmethod
    def _wait(
        sequence: EngineSequence,
        pieces: queue.SimpleQueue[str],
        on_text: Callable[[str], None] | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        """Wait for the end, handing out text and asking ``cancelled`` meanwhile."""
        poll_s = None if on_text is None and cancelled is None else _POLL_S
        while not sequence.finished.wait(poll_s):
            while on_text is not None and not pieces.empty():
                on_text(pieces.get())
            if cancelled is not None and cancelled():
                sequence.cancel()
                sequence.finished.wait()
        while on_text is not None and not pieces.empty():
            on_text(pieces.get())

    def _sequence(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        deadline_s: float | None,
        on_text: Callable[[str], None] | None,
    ) -> EngineSequence:
        may_think = params.max_thinking_tokens > 0
        prompt = self._tokenizer.render(messages, tools, enable_thinking=may_think)
        prompt_ids = self._tokenizer.encode(prompt)
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise TokenLimitError(len(prompt_ids), self.max_model_len)
        starts_thinking = self._starts_thinking(prompt_ids)
        return EngineSequence(
            prompt_ids,
            sampler=Sampler(ResolvedSampling.resolve(params, self._generation), prompt_ids),
            mask=ToolCallMask(
                self._tokenizer,
                self._control,
                compiler=self._compiler,
                tools=tools,
                starts_thinking=starts_thinking,
                may_think=may_think,
            ),
            parser=OutputParser(self._tokenizer, self._control, starts_thinking=starts_thinking),
            tools=tuple(tools),
            max_tokens=max(1, min(params.max_tokens, room)),
            max_thinking_tokens=params.max_thinking_tokens,
            stop_token_ids=frozenset((*self._control.eos, *params.stop_token_ids)),
            deadline_s=deadline_s,
            on_text=on_text,
        )

    def _starts_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the generation prompt left ``<think>`` open."""
        for token_id in reversed(prompt_ids[-4:]):
            if token_id in (self._control.think_start, self._control.think_end):
                return token_id == self._control.think_start
        return False

    def _run(self) -> None:
        """The engine thread: take requests, step, until ``close``."""
        try:
            self._num_threads = self._engine.runner.warm_up(self._config.num_threads)
            self._ready.set()
            self._loop()
        except Exception:
            logger.exception("the engine thread ended")
        finally:
            with self._lock:
                self._stopped = True
            self._drain()
            self._engine.fail_all(
                EngineStoppedError("the engine stopped before the answer; ask again later")
            )
            self._ready.set()

    def _loop(self) -> None:
        failed_steps = 0
        while not self._stopped:
            if not self._engine.has_work:
                sequence = self._submitted.get()
                if sequence is None:
                    return
                self._engine.add(sequence)
            self._drain()
            try:
                self._engine.step()
                failed_steps = 0
            except Exception:  # the request boundary: one bad batch must not end the process
                failed_steps += 1
                logger.exception("an engine step failed (%d in a row)", failed_steps)
                self._engine.fail_all(
                    EngineStepError("the engine failed at this request; it may be asked again")
                )
                if failed_steps >= _MAX_FAILED_STEPS:
                    raise

    def _drain(self) -> None:
        while not self._submitted.empty():
            sequence = self._submitted.get()
            if sequence is not None:
                self._engine.add(sequence)

    def _eos_ids(self) -> tuple[int, ...]:
        ids = self._generation.eos_token_ids
        if not ids and "<|im_end|>" in self._tokenizer.special_ids:
            ids = (self._tokenizer.special_ids["<|im_end|>"],)
        if not ids:
            raise ConfigMismatchError(
                self._model_dir / layout.GENERATION_CONFIG_FILE,
                "eos_token_id is missing",
                "add the id of the token that ends an answer",
            )
        return ids

    def _check_vocabulary(self, vocab_size: int) -> None:
        if self._tokenizer.vocab_size > vocab_size:
            raise ConfigMismatchError(
                self._model_dir / layout.TOKENIZER_FILE,
                f"{self._tokenizer.vocab_size} tokens, but the model knows {vocab_size}",
                "tokenizer and weights belong to different models: copy both again",
            )
