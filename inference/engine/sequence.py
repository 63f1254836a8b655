"""One request inside the engine: its tokens, its limits, where it stands.

Owned by the engine thread once submitted; ``cancel`` is the only method another thread calls.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections.abc import Callable

from inference.engine.sampler import Sampler
from inference.errors import InferenceError
from inference.logit_mask import LogitMask
from inference.outputs import OutputParser, RequestOutput
from inference.protocol import FinishReason, ToolSpec

_ids = itertools.count(1)


class SequenceStatus(enum.Enum):
    """Waiting for a slot, running (prefill or decode), finished."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


class Sequence:
    """A prompt and what was generated after it. Lengths in tokens, times ``time.monotonic``."""

    def __init__(
        self,
        prompt_ids: list[int],
        *,
        sampler: Sampler,
        mask: LogitMask,
        parser: OutputParser,
        tools: tuple[ToolSpec, ...] = (),
        max_tokens: int,
        max_thinking_tokens: int,
        stop_token_ids: frozenset[int],
        deadline_s: float | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.sequence_id = next(_ids)
        self.token_ids = list(prompt_ids)
        self.num_prompt_tokens = len(prompt_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.slot = -1
        self.status = SequenceStatus.WAITING
        self.sampler = sampler
        self.mask = mask
        self.parser = parser
        self.tools = tools
        self.max_tokens = max_tokens
        self.max_thinking_tokens = max_thinking_tokens
        self.stop_token_ids = stop_token_ids
        self.deadline_s = deadline_s
        self.on_text = on_text
        self.submitted_s = time.monotonic()
        self.first_token_s: float | None = None
        self.error: InferenceError | None = None
        self.output: RequestOutput | None = None
        self.finished = threading.Event()
        self._cancelled = False

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        """Generated tokens, thinking and the end token included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_prefilled(self) -> bool:
        """Only the newest token is not computed yet."""
        return self.num_computed_tokens >= self.num_prompt_tokens

    def cancel(self) -> None:
        """Ask for an end before the next token; safe from any thread."""
        self._cancelled = True

    def interrupted(self, now_s: float) -> FinishReason | None:
        """Why the sequence must end before its next token, if it must."""
        if self._cancelled:
            return "cancelled"
        if self.deadline_s is not None and now_s >= self.deadline_s:
            return "deadline"
        return None
