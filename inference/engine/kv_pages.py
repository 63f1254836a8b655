"""Keys, values and recurrent states of running sequences in the memory of the device.

Owns the page pool, the slots (one a running sequence), which pages a slot holds, and copies of a
slot on the host. One page id stands for a page in every attention layer. Knows nothing of
scheduling, of what the tokens mean or of the kernels that read the pages.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from inference.engine.paged_layers import SlotView, transformers_cache
from inference.errors import InferenceError
from inference.geometry import FULL_ATTENTION, ModelGeometry
from inference.kernels.attention import KVLayer
from inference.kernels.gated_delta import CONV_KERNEL, RecurrentLayer
from inference.kernels.step import withdraw_waiting


class OutOfPagesError(InferenceError):
    """The page pool is used up; ``retryable`` once another sequence has finished."""

    retryable = True


@dataclass(frozen=True)
class KVSnapshot:
    """What a slot holds after ``num_tokens`` tokens, on the host; shares no memory with it.

    ``keys`` and ``values`` are ``[attention layers, num_kv_heads, num_tokens, head_dim]`` in the
    dtype of the pages, the scales ``[attention layers, num_kv_heads, num_tokens]`` (fp8 only).
    ``conv`` and ``recurrent`` are stacked over the linear layers, laid out as in
    ``RecurrentLayer``; models without such layers have none.
    """

    num_tokens: int
    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None
    conv: Tensor | None = None
    recurrent: Tensor | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes on the host."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return sum(
            part.numel() * part.element_size()
            for part in (*parts, self.conv, self.recurrent)
            if part is not None
        )


class PagedKVCache:
    """``kv_layers[layer]`` of every attention layer, ``recurrent_layers[layer]`` of every linear
    one, by decoder layer; ``block_tables`` int32 ``[max_num_seqs, P]`` on the device, by slot.
    """

    def __init__(
        self,
        geometry: ModelGeometry,
        *,
        num_pages: int,
        page_size: int = 64,
        max_num_seqs: int,
        max_model_len: int,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate everything. ``dtype`` of the pages: fp32, fp16, or uint8 for fp8 (e4m3).

        Raises ``ValueError`` for a dtype or convolution the kernels do not know.
        """
        if dtype not in (torch.float32, torch.float16, torch.uint8):
            raise ValueError(f"pages are fp32, fp16 or uint8 (fp8), not {dtype}")
        linear = geometry.linear_attention
        if linear is not None and linear.conv_kernel != CONV_KERNEL:
            raise ValueError(f"a convolution over {linear.conv_kernel} inputs, not {CONV_KERNEL}")
        self.max_model_len = max_model_len
        self.page_size = page_size
        self.device = torch.device(device)
        self.kv_layers: dict[int, KVLayer] = {}
        self.recurrent_layers: dict[int, RecurrentLayer] = {}
        shape = (num_pages, geometry.num_kv_heads, page_size)
        for layer, kind in enumerate(geometry.layer_types):
            if kind == FULL_ATTENTION:
                self.kv_layers[layer] = self._kv_layer(shape, geometry.head_dim, dtype)
            elif linear is not None:
                size = (linear.num_v_heads, linear.head_k_dim, linear.head_v_dim)
                self.recurrent_layers[layer] = RecurrentLayer(
                    torch.zeros(max_num_seqs, linear.conv_dim, CONV_KERNEL, device=self.device),
                    torch.zeros(max_num_seqs, *size, device=self.device),
                )
        self._num_layers = geometry.num_layers
        pages_per_slot = -(-max_model_len // page_size)
        self._device_tables = torch.zeros(
            max_num_seqs, pages_per_slot, dtype=torch.int32, device=self.device
        )
        self._tables = torch.zeros(max_num_seqs, pages_per_slot, dtype=torch.int32)
        self._stale: set[int] = set()  # slots whose row on the device is older
        self.tables_version = 0
        self._slot_pages: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._free_pages = list(range(num_pages - 1, -1, -1))

    @property
    def prefix_sliceable(self) -> bool:
        """Whether any prefix of a snapshot is one too; a recurrent state fits its length only."""
        return not self.recurrent_layers

    @property
    def num_free_slots(self) -> int:
        """Slots no sequence holds."""
        return len(self._free_slots)

    @property
    def num_free_pages(self) -> int:
        """Pages no slot holds."""
        return len(self._free_pages)

    @property
    def size_bytes(self) -> int:
        """Bytes of pages, scales and states."""
        layers = [*self.kv_layers.values(), *self.recurrent_layers.values()]
        return sum(
            part.numel() * part.element_size()
            for layer in layers
            for part in vars(layer).values()
            if part is not None
        )

    def allocate(self) -> int:
        """Take a free slot; there must be one. It holds no pages and no tokens."""
        return self._free_slots.pop()

    def free(self, slot: int) -> None:
        """Give a slot and its pages back."""
        assert slot not in self._free_slots
        self._free_slots.append(slot)
        self._free_pages.extend(reversed(self._slot_pages[slot]))
        self._slot_pages[slot] = []

    def reserve(self, slot: int, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` tokens of ``slot``; True when its block table changed.

        Raises:
            OutOfPagesError: The pool is used up; nothing was taken.
            ValueError: More than ``max_model_len``.
        """
        if num_tokens > self.max_model_len:
            raise ValueError(f"{num_tokens} tokens, a slot holds {self.max_model_len}")
        pages = self._slot_pages[slot]
        held, wanted = len(pages), -(-num_tokens // self.page_size)
        if wanted <= held:
            return False
        if wanted - held > len(self._free_pages):
            raise OutOfPagesError(
                f"{num_tokens} tokens want {wanted - held} more pages, "
                f"{len(self._free_pages)} are free"
            )
        pages.extend(self._free_pages.pop() for _ in range(wanted - held))
        self._tables[slot, held:wanted] = torch.tensor(pages[held:], dtype=torch.int32)
        self._stale.add(slot)
        self.tables_version += 1
        return True

    @property
    def block_tables(self) -> Tensor:
        """The tables on the device, brought up to date; decode steps take theirs from the host."""
        if self._stale:
            withdraw_waiting(self.device)
            for slot in self._stale:
                self._device_tables[slot] = self._tables[slot].to(self.device)
            self._stale.clear()
        return self._device_tables

    def table_rows(self, slots: Seq[int]) -> Tensor:
        """Block tables of ``slots`` on the host, int32 ``[len(slots), P]``, a copy."""
        return self._tables[list(slots)]

    def read(self, slot: int, num_tokens: int) -> KVSnapshot:
        """A copy of ``slot`` on the host.

        With recurrent layers ``num_tokens`` must be exactly what the slot has computed.
        """
        view = self._view(slot)
        parts = [view.read(layer, num_tokens) for layer in self.kv_layers.values()]

        def stacked(index: int) -> Tensor | None:
            tensors = [part[index] for part in parts]
            present = [tensor for tensor in tensors if tensor is not None]
            return torch.stack(present).cpu() if present else None

        keys, values = stacked(0), stacked(1)
        empty = torch.empty(0)
        states = list(self.recurrent_layers.values())
        return KVSnapshot(
            num_tokens=num_tokens,
            keys=empty if keys is None else keys,
            values=empty if values is None else values,
            key_scales=stacked(2),
            value_scales=stacked(3),
            conv=torch.stack([state.conv[slot] for state in states]).cpu() if states else None,
            recurrent=(
                torch.stack([state.recurrent[slot] for state in states]).cpu() if states else None
            ),
        )

    def write(self, slot: int, snapshot: KVSnapshot, num_tokens: int | None = None) -> None:
        """Copy the first ``num_tokens`` tokens (default: all) of ``snapshot`` into ``slot``.

        Raises:
            OutOfPagesError: The pool is used up.
            ValueError: A part of a snapshot whose recurrent state fits its whole length only.
        """
        count = snapshot.num_tokens if num_tokens is None else num_tokens
        if count > snapshot.num_tokens or (
            count != snapshot.num_tokens and not self.prefix_sliceable
        ):
            raise ValueError(f"{count} tokens of a snapshot of {snapshot.num_tokens}")
        self.reserve(slot, count)
        view = self._view(slot)
        for index, layer in enumerate(self.kv_layers.values()):
            parts = (
                snapshot.keys,
                snapshot.values,
                snapshot.key_scales,
                snapshot.value_scales,
            )
            view.write(
                layer,
                0,
                *[None if part is None else part[index, :, :count] for part in parts],
            )
        for index, state in enumerate(self.recurrent_layers.values()):
            assert snapshot.conv is not None
            assert snapshot.recurrent is not None
            state.conv[slot] = snapshot.conv[index].to(self.device)
            state.recurrent[slot] = snapshot.recurrent[index].to(self.device)

    def for_transformers(self, slot: int, start: int) -> Cache:
        """A slot as the cache object of one stock forward; ``start`` tokens are in it already.

        The forward reserves its pages. With ``start`` 0 the recurrent layers start from zeros.
        The model's argument is named ``cache``, before transformers 5.24 ``past_key_values``.
        """
        return transformers_cache(
            self._view(slot), self._num_layers, self.kv_layers, self.recurrent_layers, start
        )

    def _view(self, slot: int) -> SlotView:
        withdraw_waiting(self.device)  # what follows must not queue behind a step that waits
        return SlotView(
            slot=slot,
            page_size=self.page_size,
            table=self.block_tables[slot],
            reserve=lambda num_tokens: self.reserve(slot, num_tokens) and self.block_tables,
        )

    def _kv_layer(self, shape: tuple[int, int, int], head_dim: int, dtype: torch.dtype) -> KVLayer:
        def zeros(*size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=self.device)

        fp8 = dtype == torch.uint8
        return KVLayer(
            zeros(*shape, head_dim, dtype=dtype),
            zeros(*shape, head_dim, dtype=dtype),
            zeros(*shape, dtype=torch.float32) if fp8 else None,
            zeros(*shape, dtype=torch.float32) if fp8 else None,
        )
