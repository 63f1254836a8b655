"""The gated delta-rule step against its torch reference and against the stock DeltaNet class.

Both are fp32 and sum in another order: outputs of size 1 differ by about 1e-6.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet

from inference.engine.kv_pages import PagedKVCache
from inference.kernels import reference_gated_delta as reference
from inference.kernels.gated_delta import RecurrentLayer, gdn_step
from inference.kernels.library import KernelLibrary
from tests.inference.kernels.stock_layers import (
    cache_argument,
    geometry_of,
    randomise,
    tiny_config,
)

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


class Case:
    """Random inputs of one step, on the CPU."""

    def __init__(
        self,
        *,
        num_k_heads: int = 2,
        num_v_heads: int = 4,
        head_k_dim: int = 16,
        head_v_dim: int = 16,
        positions: tuple[int, ...] = (5,),
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def randn(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator)

        batch = len(positions)
        channels = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
        self.states = RecurrentLayer(
            randn(batch + 2, channels, 4),
            randn(batch + 2, num_v_heads, head_k_dim, head_v_dim),
        )
        self.projected = randn(batch, channels + num_v_heads * (head_v_dim + 2))
        self.arguments: dict[str, Any] = {
            "conv_weight": randn(channels, 4),
            "A_log": randn(num_v_heads),
            "dt_bias": randn(num_v_heads),
            "norm": randn(head_v_dim),
            "eps": 1e-6,
            "state_slots": torch.randperm(batch + 2, generator=generator)[:batch].int(),
            "positions": torch.tensor(positions, dtype=torch.int32),
            "num_k_heads": num_k_heads,
            "num_v_heads": num_v_heads,
            "head_k_dim": head_k_dim,
            "head_v_dim": head_v_dim,
        }

    def run(self, lib: KernelLibrary) -> tuple[Tensor, RecurrentLayer]:
        states = RecurrentLayer(
            self.states.conv.to(lib.device, copy=True),
            self.states.recurrent.to(lib.device, copy=True),
        )
        columns = self.arguments["num_v_heads"] * self.arguments["head_v_dim"]
        out = torch.full((len(self.projected), columns), float("nan"), device=lib.device)
        moved = {
            name: value.to(lib.device) if isinstance(value, Tensor) else value
            for name, value in self.arguments.items()
        }
        gdn_step(lib, self.projected.to(lib.device), states=states, out=out, **moved)
        return out.cpu(), RecurrentLayer(states.conv.cpu(), states.recurrent.cpu())

    def expected(self) -> tuple[Tensor, RecurrentLayer]:
        states = RecurrentLayer(self.states.conv.clone(), self.states.recurrent.clone())
        return reference.gdn_step(self.projected, states=states, **self.arguments), states


def assert_same(case: Case, lib: KernelLibrary) -> None:
    out, states = case.run(lib)
    expected, expected_states = case.expected()
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(states.recurrent, expected_states.recurrent, **CLOSE)
    assert torch.equal(states.conv, expected_states.conv)


@pytest.mark.parametrize(
    ("head_k_dim", "head_v_dim"),
    [(16, 16), (32, 32), (64, 64), (128, 128), (32, 64), (64, 256), (24, 12), (8, 4), (192, 64)],
)
def test_equals_the_reference(kernels: KernelLibrary, head_k_dim: int, head_v_dim: int) -> None:
    assert_same(Case(head_k_dim=head_k_dim, head_v_dim=head_v_dim, positions=(6, 1)), kernels)


@pytest.mark.parametrize(("num_k_heads", "num_v_heads"), [(1, 1), (4, 4), (2, 6), (16, 32)])
def test_heads_that_share_a_key_head(
    kernels: KernelLibrary, num_k_heads: int, num_v_heads: int
) -> None:
    assert_same(Case(num_k_heads=num_k_heads, num_v_heads=num_v_heads), kernels)


def test_the_shape_of_the_large_model(kernels: KernelLibrary) -> None:
    assert_same(Case(num_k_heads=16, num_v_heads=32, head_k_dim=128, head_v_dim=128), kernels)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_ragged_rows_and_padding(kernels: KernelLibrary, batch: int) -> None:
    """Every place of the ring, a first token, and rows of padding."""
    positions = (4, 0, -1, 7, 1, 2, -1, 1003)[:batch]
    case = Case(positions=positions)
    assert_same(case, kernels)
    out, states = case.run(kernels)
    padded = [p < 0 for p in positions]
    assert torch.equal(out[padded], torch.zeros(sum(padded), 64))
    slots = case.arguments["state_slots"][padded].long()
    assert torch.equal(states.recurrent[slots], case.states.recurrent[slots])


def test_a_first_token_forgets_what_lay_in_the_slot(kernels: KernelLibrary) -> None:
    case = Case(positions=(0,))
    out, states = case.run(kernels)
    case.states.conv.fill_(float("nan"))
    case.states.recurrent.fill_(float("nan"))
    again, again_states = case.run(kernels)
    slot = int(case.arguments["state_slots"][0])
    assert torch.equal(out, again)
    assert torch.equal(states.conv[slot], again_states.conv[slot])
    assert torch.equal(states.recurrent[slot], again_states.recurrent[slot])


def test_other_rows_and_slots_change_nothing(kernels: KernelLibrary) -> None:
    case = Case(positions=(9, 5, 2, 7))
    out, states = case.run(kernels)
    slots = case.arguments["state_slots"].long()
    unused = [slot for slot in range(6) if slot not in slots.tolist()]
    assert torch.equal(states.recurrent[unused], case.states.recurrent[unused])
    case.projected[1:] *= 2.0
    case.states.recurrent[slots[1:]] *= 2.0
    again, again_states = case.run(kernels)
    assert torch.equal(out[0], again[0])
    assert torch.equal(states.recurrent[slots[0]], again_states.recurrent[slots[0]])


def test_zeros_stay_finite(kernels: KernelLibrary) -> None:
    case = Case(positions=(3,))
    case.projected.zero_()
    case.states.recurrent.zero_()
    case.states.conv.zero_()
    out, states = case.run(kernels)
    assert torch.equal(out, torch.zeros_like(out))
    assert bool(states.recurrent.isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_v_dim": 18}, "multiples of 4"),
        ({"head_v_dim": 512}, "up to 256"),
        ({"head_k_dim": 224, "head_v_dim": 128}, "channels"),
        ({"head_k_dim": 160, "head_v_dim": 160}, "does not fit"),
        ({"num_k_heads": 3}, "4 value heads"),
    ],
)
def test_what_the_kernel_does_not_cover(
    emulated_kernels: KernelLibrary, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Case(**options).run(emulated_kernels)


def test_wrong_columns_convolution_and_dtype(emulated_kernels: KernelLibrary) -> None:
    case = Case()
    case.projected = case.projected[:, :-1]
    with pytest.raises(ValueError, match="projected columns"):
        case.run(emulated_kernels)
    case = Case()
    case.arguments["conv_weight"] = case.arguments["conv_weight"][:, :3]
    with pytest.raises(ValueError, match="convolution"):
        case.run(emulated_kernels)
    case = Case()
    case.arguments["A_log"] = case.arguments["A_log"].half()
    with pytest.raises(ValueError, match="float16"):
        case.run(emulated_kernels)


class StockDeltaNet:
    """A stock layer, and the same layer as the engine decodes it."""

    def __init__(self, device: torch.device) -> None:
        self.config = tiny_config("qwen3_5_moe")
        self.geometry = geometry_of(self.config)
        self.layer: Any = randomise(Qwen3_5MoeGatedDeltaNet(self.config, 0), seed=5).to(device)

    def call(self, hidden: Tensor, cache: Any = None) -> Tensor:
        return cast(Tensor, self.layer(hidden, **{cache_argument(self.layer): cache}))

    def decode(
        self,
        lib: KernelLibrary,
        cache: PagedKVCache,
        hidden: Tensor,
        slots: list[int],
        positions: list[int],
    ) -> Tensor:
        """One step of the kernel between the stock projections; hidden [B, H] to [B, H]."""
        layer, linear = self.layer, self.geometry.linear_attention
        assert linear is not None
        projections = (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_b, layer.in_proj_a)
        weight = torch.cat([projection.weight for projection in projections])
        out = torch.empty(len(slots), linear.value_dim, device=lib.device)
        gdn_step(
            lib,
            hidden @ weight.T,
            conv_weight=layer.conv1d.weight.squeeze(1),
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            norm=layer.norm.weight,
            eps=self.config.rms_norm_eps,
            states=cache.recurrent_layers[0],
            state_slots=torch.tensor(slots, dtype=torch.int32, device=lib.device),
            positions=torch.tensor(positions, dtype=torch.int32, device=lib.device),
            num_k_heads=linear.num_k_heads,
            num_v_heads=linear.num_v_heads,
            head_k_dim=linear.head_k_dim,
            head_v_dim=linear.head_v_dim,
            out=out,
        )
        return cast(Tensor, layer.out_proj(out))


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_stock_prefill_then_our_steps(kernels: KernelLibrary, batch: int) -> None:
    """Prompts in chunks through the stock layer and our cache, then steps of the kernel, are the
    stock layer on the whole sequence without any cache. Prompts of 0, 1, 2, ... tokens."""
    stock = StockDeltaNet(kernels.device)
    cache = PagedKVCache(
        stock.geometry,
        num_pages=8,
        max_num_seqs=batch,
        max_model_len=128,
        dtype=torch.float32,
        device=kernels.device,
    )
    for state in cache.recurrent_layers.values():  # left by a sequence before
        state.conv.fill_(7.0)
        state.recurrent.fill_(7.0)
    generator = torch.Generator().manual_seed(batch)
    lengths = [0, 1, 2, 3, 11, 70, 8, 4][-batch:]
    steps = 9
    sequences = [
        torch.randn(1, length + steps, stock.config.hidden_size, generator=generator).to(
            kernels.device
        )
        for length in lengths
    ]
    wholes = [stock.call(sequence)[0] for sequence in sequences]
    slots = [cache.allocate() for _ in range(batch)]
    for slot, length, sequence, whole in zip(slots, lengths, sequences, wholes, strict=True):
        for start, end in _chunks(length):
            chunk = stock.call(sequence[:, start:end], cache.for_transformers(slot, start))
            torch.testing.assert_close(chunk[0], whole[start:end], atol=1e-4, rtol=1e-4)
    for step in range(steps):
        positions = [length + step for length in lengths]
        hidden = torch.stack(
            [seq[0, position] for seq, position in zip(sequences, positions, strict=True)]
        )
        out = stock.decode(kernels, cache, hidden, slots, positions)
        expected = torch.stack(
            [whole[position] for whole, position in zip(wholes, positions, strict=True)]
        )
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def _chunks(length: int) -> list[tuple[int, int]]:
    """Uneven chunks, single tokens among them."""
    bounds = [bound for bound in (0, 1, 3, 4, 10, 64) if bound < length] + [length]
    return list(itertools.pairwise(bounds)) if length else []
