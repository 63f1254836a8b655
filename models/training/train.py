"""Training: ``python -m models.training.train --preset fixture --device cpu --out DIR``.

Owns the optimiser, the schedule (fitted to the minutes given), the progress lines and the final
export. Needs this repository, torch, transformers, tokenizers, numpy, pyyaml and jinja2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.training import export, model, tokenizer
from models.training.data import Chunk, Feed, Step, StepSource
from models.training.model import PRESETS, FlatForward, RouterStats

BALANCE_WEIGHT = 0.01
Z_WEIGHT = 1e-3
WARMUP_STEPS = {"cpu": 40, "cuda": 200}
DECAY_SHARE = 0.3
"""Last part of the run in which the learning rate falls to almost nothing."""
REPORT_S = 15.0


@dataclass(frozen=True)
class Run:
    """Settings of one run."""

    preset: str
    device: str
    out: Path
    minutes: float
    seed: int
    tokens: int
    workers: int
    learning_rate: float
    steps: int
    init: Path | None
    eval_every_s: float


def on_device(step: Step, device: str) -> tuple[Step, dict[str, Tensor]]:
    """Index arrays of a step as tensors on the device."""

    def move(array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        if device == "cpu":
            return tensor.long()
        return tensor.pin_memory().to(device, non_blocking=True).long()

    chunks = tuple(
        Chunk(c.dialogs, c.width, move(c.gather), move(c.keep))  # type: ignore[arg-type]
        for c in step.chunks
    )
    names = ("ids", "positions", "source", "target", "segment")
    return replace(step, chunks=chunks), {name: move(getattr(step, name)) for name in names}


def run_step(
    net: FlatForward, step: Step, device: str
) -> tuple[Tensor, RouterStats, Tensor, Tensor]:
    """Mean loss, router figures, whether each target was the best guess, segment numbers."""
    step, at = on_device(step, device)
    precision: Any = contextlib.nullcontext()
    if device == "cuda":
        precision = torch.autocast("cuda", dtype=torch.bfloat16)
    with precision:
        logits, stats = net(at["ids"], at["positions"], step.prefix, step.chunks, at["source"])
    logits = logits.float()
    loss = F.cross_entropy(logits, at["target"])
    right = logits.detach().argmax(dim=-1) == at["target"]
    return loss, stats, right, at["segment"]


@torch.no_grad()
def exact(net: FlatForward, steps: list[Step], device: str) -> dict[str, tuple[int, int]]:
    """Greedy exact match by kind and intent: (right, all). Teacher forcing tells it, since a
    piece is decoded right exactly when every token of it is the best guess."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for step in steps:
        _, _, right, segment = run_step(net, step, device)
        wrong = torch.zeros(len(step.labels), dtype=torch.bool, device=right.device)
        wrong[segment[~right]] = True
        for (intent, kind), bad in zip(step.labels, wrong.tolist(), strict=True):
            keys = ("answer",) if kind == "answer" else ("call", intent, kind)
            for key in keys:
                table[key][0] += not bad
                table[key][1] += 1
    return {key: (right, total) for key, (right, total) in table.items()}


def percent(found: dict[str, tuple[int, int]], key: str) -> float:
    """Exact match in percent; NaN where there is nothing to count."""
    right, total = found.get(key, (0, 0))
    return 100.0 * right / total if total else math.nan


def optimizer_of(net: FlatForward, learning_rate: float, device: str) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only."""
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups, lr=learning_rate, betas=(0.9, 0.97), eps=1e-8, fused=device == "cuda"
    )


def learning_rate(peak: float, step: int, progress: float, warmup: int) -> float:
    """Warm-up, stable, decay: linear to 2 % over the last ``DECAY_SHARE`` of the run."""
    rise = min(1.0, (step + 1) / warmup)
    fall = min(1.0, (1.0 - progress) / DECAY_SHARE)
    return peak * rise * max(0.02, fall)


class Trainer:
    """One run from first weights to the exported folder."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.started = time.monotonic()
        self.preset = PRESETS[run.preset]
        self.tokenizer = tokenizer.build(run.seed)
        self.feed = Feed(
            self.tokenizer, seed=run.seed, tokens=run.tokens,
            num_chunks=6 if run.device == "cuda" else 3, workers=run.workers,
        )  # fmt: skip
        stock = model.build(self.preset, run.seed)
        if run.init is not None:
            stock.load_state_dict(torch.load(run.init, map_location="cpu", weights_only=True))
        self.stock = stock.to(run.device)
        self.net = FlatForward(self.stock)
        if self.net.use_fast_experts():
            print("experts run by grouped bf16 products", flush=True)
        self.optimizer = optimizer_of(self.net, run.learning_rate, run.device)
        size = 12000 if run.device == "cuda" else 4000
        self.tests = {
            name: [
                StepSource(self.tokenizer, 10**6 + run.seed + i, size, 3, mode).step()  # type: ignore[arg-type]
                for i in range(6 if run.device == "cuda" else 2)
            ]
            for name, mode in (("iid", "train"), ("held_out", "held_out"))
        }
        self.curve: list[dict[str, float]] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, imports of data included."""
        return time.monotonic() - self.started

    def progress(self, step: int) -> float:
        """0 to 1, by time or by steps, whichever is further."""
        reserve_s = min(25.0 if self.run.device == "cuda" else 8.0, self.run.minutes * 60 * 0.2)
        by_time = self.elapsed_s / (self.run.minutes * 60 - reserve_s)
        by_steps = step / self.run.steps if self.run.steps else 0.0
        return max(by_time, by_steps)

    def train(self) -> None:
        """Train until the time or the steps are used up, then export."""
        window: dict[str, float] = defaultdict(float)
        reported = tested = time.monotonic()
        quarter, step = 1, 0
        loss_sum: Tensor | None = None
        print(f"{sum(p.numel() for p in self.net.parameters()):,} weights, "
              f"{self.run.tokens} tokens a step, set up in {self.elapsed_s:.0f} s", flush=True)  # fmt: skip  # noqa: E501
        for batch in self.feed:
            progress = self.progress(step)
            if progress >= 1.0:
                break
            loss, stats = self._update(batch, step, progress)
            loss_sum = loss if loss_sum is None else loss_sum + loss
            step += 1
            window["steps"] += 1
            window["tokens"] += len(batch.ids) - batch.prefix
            window["dialogs"] += batch.num_dialogs
            now = time.monotonic()
            if now - reported >= REPORT_S or step == 1:
                self._report(step, progress, window, loss_sum, stats, now - reported)
                window, loss_sum, reported = defaultdict(float), None, now
            if now - tested >= self.run.eval_every_s:
                self._test(step)
                tested = time.monotonic()
            if progress > quarter / 4:
                self._checkpoint(f"step_{step}")
                quarter += 1
        self.feed.close()
        self._test(step)
        self._finish(step)

    def _update(self, batch: Step, step: int, progress: float) -> tuple[Tensor, RouterStats]:
        rate = learning_rate(self.run.learning_rate, step, progress, WARMUP_STEPS[self.run.device])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, stats, _, _ = run_step(self.net, batch, self.run.device)
        z_loss = torch.stack(stats.z).mean()
        total = loss + BALANCE_WEIGHT * stats.balance_loss() + Z_WEIGHT * z_loss
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), stats

    def _report(
        self, step: int, progress: float, window: dict[str, float], loss: Tensor,
        stats: RouterStats, seconds: float,
    ) -> None:  # fmt: skip
        print(
            f"{self.elapsed_s:6.0f} s  step {step:5d}  {progress:4.0%}  "
            f"loss {float(loss) / window['steps']:.4f}  balance {float(stats.balance_loss().detach()):.3f}  "  # noqa: E501
            f"max load {stats.max_load():.1f}  {window['tokens'] / seconds:,.0f} tokens/s  "
            f"{window['dialogs'] / seconds:,.0f} dialogs/s",
            flush=True,
        )

    def _test(self, step: int) -> None:
        line: dict[str, float] = {"step": step, "seconds": round(self.elapsed_s)}
        worst: list[str] = []
        for name, steps in self.tests.items():
            found = exact(self.net, steps, self.run.device)
            line[f"{name}_calls"] = round(percent(found, "call"), 1)
            line[f"{name}_answers"] = round(percent(found, "answer"), 1)
            if name == "held_out":
                names = sorted(found, key=lambda key: percent(found, key))
                counted = [key for key in names if found[key][1] >= 8]
                worst = [f"{key} {found[key][0]}/{found[key][1]}" for key in counted[:9]]
        self.curve.append(line)
        print("exact match % " + json.dumps(line) + "  weakest: " + ", ".join(worst), flush=True)

    def _checkpoint(self, name: str) -> None:
        folder = self.run.out / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.stock.state_dict(), folder / f"{name}.pt")

    def _finish(self, step: int) -> None:
        self._checkpoint("final")
        stock = self.stock.to("cpu").float()
        before = self.curve[-1]
        report = export.export(stock, self.tokenizer, self.run.out)
        print(f"exported {self.run.out} after {step} steps: {report}", flush=True)
        (self.run.out / "training.json").write_text(
            json.dumps({"preset": self.run.preset, "seed": self.run.seed, "steps": step,
                        "tokens_per_step": self.run.tokens, "minutes": round(self.elapsed_s / 60, 1),  # noqa: E501
                        "device": self.run.device, "torch": torch.__version__,
                        "curve": self.curve}, indent=1) + "\n",
            encoding="utf-8",
        )  # fmt: skip
        export.round_experts(stock)
        for name, steps in self.tests.items():
            self.net.grouped = False
            found = exact(self.net.to("cpu"), steps[:1], "cpu")
            print(f"INT4 {name}: calls {percent(found, 'call'):.1f} %, "
                  f"answers {percent(found, 'answer'):.1f} %  (fp32/bf16 over more text: "
                  f"{before[f'{name}_calls']} / {before[f'{name}_answers']})", flush=True)  # fmt: skip  # noqa: E501


def arguments(argv: list[str] | None = None) -> Run:
    """Settings from the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.training.train", description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="fixture")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="wall time of the whole run, export included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, help="tokens a step, prefix not counted")
    parser.add_argument("--workers", type=int, help="data processes; 0 makes data in this one")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--init", type=Path, help="a checkpoint file to start from")
    parser.add_argument("--eval-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--threads", type=int, default=2, help="torch threads on the CPU")
    given = parser.parse_args(argv)
    preset, cuda = PRESETS[given.preset], given.device == "cuda"
    torch.set_num_threads(given.threads)
    tokens = given.tokens or (preset.gpu_tokens if cuda else preset.cpu_tokens)
    return Run(
        given.preset, given.device, given.out, given.minutes or (8 if cuda else preset.cpu_minutes),
        given.seed, tokens, (14 if cuda else 0) if given.workers is None else given.workers,
        given.learning_rate or preset.learning_rate, given.steps, given.init, given.eval_every,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run one training."""
    torch.set_float32_matmul_precision("high")
    run = arguments(argv)
    run.out.mkdir(parents=True, exist_ok=True)
    Trainer(run).train()
    return 0


if __name__ == "__main__":
    sys.exit(main())
