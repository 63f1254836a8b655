"""One optimiser step: arrays to the device, forward and loss, update - eager or as a CUDA graph.

Owns what a step does to the weights. Knows nothing of schedules, reports or where data comes from.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.training.data import NO_TARGET, Layout, Step
from models.training.model import Batch, FlatForward, RouterStats, Routing

Z_WEIGHT = 1e-3
_FIELDS = ("ids", "positions", "real", "source", "target", "segment")


def on_device(step: Step, device: str) -> Batch:
    """The arrays of a step as tensors on the device, moved in one copy."""
    return unpacked(torch.from_numpy(packed(step)).to(device), step.layout)


def packed(step: Step) -> Any:
    """All arrays of a step in one int32 array, the prefix lengths first."""
    return np.concatenate([step.prefixes, *(getattr(step, name) for name in _FIELDS)]).astype(
        np.int32
    )


def unpacked(flat: Tensor, layout: Layout) -> Batch:
    """The batch in a tensor made by :func:`packed`."""
    sizes = [layout.prefixes, *[layout.tokens] * 3, *[layout.targets] * 3]
    prefixes, ids, positions, real, source, target, segment = flat.split(sizes)
    return Batch(
        prefixes, ids.long(), positions.long(), real.float(), source.long(), target.long(),
        segment.long(),
    )  # fmt: skip


def run_step(net: FlatForward, batch: Batch, layout: Layout) -> tuple[Tensor, RouterStats, Tensor]:
    """Mean loss, router figures, and whether each target was the best guess."""
    precision: Any = contextlib.nullcontext()
    if batch.ids.device.type == "cuda":
        # Without the cache: a captured graph must hold its own casts of the weights.
        precision = torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)
    with precision:
        logits, stats = net(batch, layout)
    logits = logits.float()
    loss = F.cross_entropy(logits, batch.target, ignore_index=NO_TARGET)
    right = logits.detach().argmax(dim=-1) == batch.target
    return loss, stats, right


class Updater:
    """One optimiser step after another; on CUDA from the fourth on as one replayed graph.

    The graph holds forward, backward, clipping and the optimisers. Its first loss is compared
    with an eager one on the same batch; when they differ, or capture fails, steps stay eager,
    said aloud.
    """

    WARM_UP_STEPS = 3

    def __init__(
        self, net: FlatForward, optimizers: tuple[torch.optim.Optimizer, ...], routing: Routing,
        *, graph: bool,
    ) -> None:  # fmt: skip
        self._net = net
        self._optimizers = optimizers
        self._routing = routing
        self._steps = 0
        self._wanted = graph and next(net.parameters()).is_cuda
        self._graph: Any = None
        self._buffer: Tensor | None = None
        self._outputs: tuple[Tensor, RouterStats] | None = None

    def __call__(self, step: Step, rate: float) -> tuple[Tensor, RouterStats]:
        """Update the weights by ``step``; the loss and router figures before the update."""
        for group in (group for one in self._optimizers for group in one.param_groups):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._steps += 1
        if self._wanted and self._graph is None and self._steps > self.WARM_UP_STEPS:
            self._capture(step)
        if self._graph is not None and self._buffer is not None and self._outputs is not None:
            self._buffer.copy_(torch.from_numpy(packed(step)))
            self._graph.replay()
            return self._outputs[0].clone(), self._outputs[1]
        device = next(self._net.parameters()).device
        result = self._update(on_device(step, str(device)), step.layout)
        self._net.zero_grad(set_to_none=True)
        return result

    def _update(self, batch: Batch, layout: Layout) -> tuple[Tensor, RouterStats]:
        loss, stats, _ = run_step(self._net, batch, layout)
        balance = stats.balance_loss(self._routing.balance)
        total = (
            loss + self._routing.balance_weight * balance + Z_WEIGHT * torch.stack(stats.z).mean()
        )
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
        detached = RouterStats(stats.counts, [m.detach() for m in stats.means], [])
        return loss.detach(), detached

    def _capture(self, step: Step) -> None:
        self._wanted = False
        self._buffer = torch.from_numpy(packed(step)).cuda()
        with torch.no_grad():
            expected = float(
                run_step(self._net, unpacked(self._buffer, step.layout), step.layout)[0]
            )
        saved = {name: value.clone() for name, value in self._net.state_dict().items()}
        graph = torch.cuda.CUDAGraph()
        try:
            self._net.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph):
                outputs = self._update(unpacked(self._buffer, step.layout), step.layout)
            graph.replay()
            torch.cuda.synchronize()
            found = float(outputs[0])
        except RuntimeError as error:
            print(f"no CUDA graph ({error}); steps stay eager", flush=True)
            self._net.zero_grad(set_to_none=True)
            return
        finally:
            self._net.load_state_dict(saved)
        noisy = self._routing.gumbel > 0
        if noisy or abs(found - expected) < 0.01 * expected:
            print(
                f"steps run as one CUDA graph (loss {found:.4f}, eager {expected:.4f})", flush=True
            )
            self._graph, self._outputs = graph, outputs
        else:
            print(
                f"the CUDA graph disagrees ({found:.4f}, eager {expected:.4f}); eager", flush=True
            )
