"""Copies of the state of past sequences, found again by their token ids.

Owns which prefixes are kept and which one fits a prompt. Works over any ``SequenceCache``; knows
nothing of pages, layers or devices.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int32]]
_RECENT_PROMPTS = 64


class SequenceSnapshot(Protocol):
    """A copy, in host memory, of what a slot holds; it shares no memory with the slot."""

    @property
    def num_tokens(self) -> int:
        """Tokens the slot had computed."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""


class SequenceCache(Protocol):
    """Slots of running sequences, as scheduler and prefix cache use them."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence."""

    @property
    def prefix_sliceable(self) -> bool:
        """Whether a snapshot can be written for fewer tokens than it was taken after.

        Keys and values can be cut; the state of a recurrent layer stands for exactly its tokens.
        """

    @property
    def num_free_slots(self) -> int:
        """Slots no sequence holds."""

    def allocate(self) -> int:
        """Take a free slot; there must be one."""

    def free(self, slot: int) -> None:
        """Give a slot back."""

    def read(self, slot: int, num_tokens: int) -> SequenceSnapshot:
        """Copy ``slot``, which holds ``num_tokens`` tokens (exactly, if not sliceable)."""

    def write(self, slot: int, snapshot: Any, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` tokens of what ``read`` gave (all, if not sliceable)."""


@dataclass(frozen=True)
class PrefixCacheStats:
    """Counters of the prefix cache; ``tokens_reused`` of ``tokens_asked`` prompt tokens."""

    entries: int
    size_bytes: int
    tokens_asked: int
    tokens_reused: int


@dataclass(frozen=True)
class _Entry:
    token_ids: Ids
    snapshot: SequenceSnapshot


class PrefixCache:
    """Snapshots of past sequences, found by longest common prefix of token ids.

    Bounded by ``capacity_bytes``; the entry used least recently goes first. Over a cache that is
    not ``prefix_sliceable`` an entry serves only prompts that continue all of its tokens.
    """

    def __init__(
        self, kv_cache: SequenceCache, *, capacity_bytes: int, min_tokens: int = 8
    ) -> None:
        self._kv_cache = kv_cache
        self._capacity_bytes = capacity_bytes
        self._min_tokens = min_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._recent: deque[Ids] = deque(maxlen=_RECENT_PROMPTS)
        self._next_key = 0
        # A snapshot of so many tokens did not fit: one of more is not even made.
        self._too_many_tokens = sys.maxsize if capacity_bytes else 0
        self._size_bytes = self._tokens_asked = self._tokens_reused = 0

    @property
    def stats(self) -> PrefixCacheStats:
        """A snapshot of the counters."""
        return PrefixCacheStats(
            len(self._entries), self._size_bytes, self._tokens_asked, self._tokens_reused
        )

    def restore(self, prompt_ids: Seq[int], slot: int) -> int:
        """Copy the longest known prefix of ``prompt_ids`` into ``slot``; returns its length.

        The last prompt token is never taken from the cache: its logits are needed.
        """
        wanted = np.asarray(prompt_ids, np.int32)
        self._tokens_asked += len(wanted)
        best_key, best_length = -1, 0
        for key, entry in self._entries.items():
            length = min(_common_prefix(wanted, entry.token_ids), len(wanted) - 1)
            if not self._kv_cache.prefix_sliceable and length < len(entry.token_ids):
                continue
            if length >= best_length:
                best_key, best_length = key, length
        if best_length < self._min_tokens:
            return 0
        entry = self._entries[best_key]
        self._entries.move_to_end(best_key)
        self._kv_cache.write(slot, entry.snapshot, best_length)
        self._tokens_reused += best_length
        return best_length

    def store(self, token_ids: Seq[int], slot: int) -> None:
        """Keep a copy of ``slot``, which holds exactly ``token_ids``."""
        ids = np.asarray(token_ids, np.int32)
        if not self._min_tokens <= len(ids) < self._too_many_tokens:
            return
        for key, entry in list(self._entries.items()):
            common = _common_prefix(ids, entry.token_ids)
            sliceable = self._kv_cache.prefix_sliceable
            if common == len(ids) and (sliceable or common == len(entry.token_ids)):
                self._entries.move_to_end(key)
                return
            if common == len(entry.token_ids) and sliceable:
                self._drop(key)
        snapshot = self._kv_cache.read(slot, len(ids))
        if snapshot.size_bytes > self._capacity_bytes:
            self._too_many_tokens = len(ids)
            return
        self._entries[self._next_key] = _Entry(ids, snapshot)
        self._next_key += 1
        self._size_bytes += snapshot.size_bytes
        while self._size_bytes > self._capacity_bytes:
            self._drop(next(iter(self._entries)))

    def boundary(self, prompt_ids: Seq[int], num_restored: int) -> int | None:
        """Where a prefill of ``prompt_ids`` should pause for a snapshot, if anywhere.

        That is the longest prefix shared with an earlier prompt or entry, when it is longer than
        the ``num_restored`` tokens found in the cache: the next prompt that begins this way then
        starts from there. ``None`` where any snapshot can be cut, or none would be kept. The
        prompt counts as an earlier one from now on.
        """
        if self._kv_cache.prefix_sliceable:
            return None
        wanted = np.asarray(prompt_ids, np.int32)
        known: Iterable[Ids] = (*self._recent, *(e.token_ids for e in self._entries.values()))
        shared = max((_common_prefix(wanted, ids) for ids in known), default=0)
        self._recent.append(wanted)
        shared = min(shared, len(wanted) - 1)
        if shared < num_restored + self._min_tokens or shared >= self._too_many_tokens:
            return None
        return shared

    def _drop(self, key: int) -> None:
        self._size_bytes -= self._entries.pop(key).snapshot.size_bytes


def _common_prefix(left: Ids, right: Ids) -> int:
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(different.argmax()) if different.any() else length
