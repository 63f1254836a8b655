"""Training: ``python -m models.training.train --preset fixture --device cpu --out DIR``.

Owns the optimiser, the schedule (fitted to the minutes given), the progress lines and the final
export. Needs this repository, torch, transformers, tokenizers, numpy, pyyaml and jinja2.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.training import export, model, tokenizer, warm_start
from models.training.data import NO_TARGET, Feed, Layout, Step, StepSource
from models.training.model import PRESETS, FlatForward, RouterStats, Routing
from models.training.muon import Muon
from models.training.updater import Updater, on_device, run_step

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
    routing: Routing
    graph: bool
    optimizer: str


@torch.no_grad()
def exact(net: FlatForward, steps: list[Step], device: str) -> dict[str, tuple[int, int]]:
    """Greedy exact match by kind and intent: (right, all). Teacher forcing tells it, since a
    piece is decoded right exactly when every token of it is the best guess."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for step in steps:
        batch = on_device(step, device)
        _, _, right = run_step(net, batch, step.layout)
        wrong = torch.zeros(len(step.labels), dtype=torch.bool, device=right.device)
        wrong[batch.segment[~right & (batch.target != NO_TARGET)]] = True
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


def optimizers_of(
    net: FlatForward, learning_rate: float, device: str, kind: str
) -> tuple[torch.optim.Optimizer, ...]:
    """AdamW; of the kind ``muon``, Muon for attention and experts beside it. Weight decay on
    matrices only. On CUDA the rate is a tensor that a graph can read."""
    cuda = device == "cuda"
    rate: Any = torch.tensor(learning_rate, device=device) if cuda else learning_rate
    outer = ("embed_tokens.weight", "gate.weight")
    inner = [
        weight for name, weight in net.named_parameters()
        if kind == "muon" and weight.dim() > 1 and not name.endswith(outer)
    ]  # fmt: skip
    taken = {id(weight) for weight in inner}
    rest = [weight for weight in net.parameters() if id(weight) not in taken]
    groups = [
        {"params": [weight for weight in rest if weight.dim() > 1], "weight_decay": 0.05},
        {"params": [weight for weight in rest if weight.dim() == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        groups, lr=rate, betas=(0.9, 0.97), eps=1e-8, fused=cuda, capturable=cuda
    )
    return (Muon(inner, rate), adamw) if inner else (adamw,)


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
        shape: Layout | int = run.tokens
        if run.device == "cuda" and not run.tokens:
            shape = self.preset.gpu_layout
        self.feed = Feed(self.tokenizer, seed=run.seed, shape=shape, workers=run.workers)
        stock = model.build(self.preset, run.seed)
        if run.init is not None:
            self._start_from(stock, run.init)
        self.stock = stock.to(run.device)
        self.net = FlatForward(self.stock, run.routing).train()
        if self.net.use_fast_experts():
            print("experts run by grouped bf16 products", flush=True)
        if self.net.use_fast_attention():
            print("dialogs attend by flash attention", flush=True)
        optimizers = optimizers_of(self.net, run.learning_rate, run.device, run.optimizer)
        self.updater = Updater(self.net, optimizers, run.routing, graph=run.graph)
        size = 12000 if run.device == "cuda" else 4000
        self.tests = {
            name: [
                StepSource(self.tokenizer, 10**6 + run.seed + i, size, mode).step()  # type: ignore[arg-type]
                for i in range(6 if run.device == "cuda" else 2)
            ]
            for name, mode in (("iid", "train"), ("held_out", "held_out"))
        }
        self.curve: list[dict[str, float]] = []
        self.stats = RouterStats([], [], [])

    def _start_from(self, stock: Any, source: Path) -> None:
        """A checkpoint of a run, or the folder of a finished model."""
        if source.is_dir():
            unknown = warm_start.load(stock, source, self.tokenizer)
            print(f"starting from {source}; {unknown} tokens are new to it", flush=True)
        else:
            stock.load_state_dict(torch.load(source, map_location="cpu", weights_only=True))

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
              f"set up in {self.elapsed_s:.0f} s", flush=True)  # fmt: skip
        while (progress := self.progress(step)) < 1.0:
            asked = time.monotonic()
            batch = self.feed.next()
            window["waited"] += time.monotonic() - asked
            rate = learning_rate(
                self.run.learning_rate, step, progress, WARMUP_STEPS[self.run.device]
            )
            loss, stats = self.updater(batch, rate)
            self.stats = stats
            loss_sum = loss if loss_sum is None else loss_sum + loss
            step += 1
            window["steps"] += 1
            window["tokens"] += batch.num_tokens
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

    def _report(
        self, step: int, progress: float, window: dict[str, float], loss: Tensor,
        stats: RouterStats, seconds: float,
    ) -> None:  # fmt: skip
        balance = float(stats.balance_loss(self.run.routing.balance))
        print(
            f"{self.elapsed_s:6.0f} s  step {step:5d}  {progress:4.0%}  "
            f"loss {float(loss) / window['steps']:.4f}  balance {balance:.3f}  "
            f"max load {stats.max_load():.1f}  entropy {min(stats.entropies()):.3f}  "
            f"{window['tokens'] / seconds:,.0f} tokens/s  "
            f"{window['dialogs'] / seconds:,.0f} dialogs/s  "
            f"waited for data {window['waited'] / seconds:.0%}",
            flush=True,
        )

    def _test(self, step: int) -> None:
        self.net.eval()
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
        self.net.train()
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
                        "optimizer": self.run.optimizer,
                        "learning_rate": self.run.learning_rate,
                        "routing": vars(self.run.routing), "minutes": round(self.elapsed_s / 60, 1),
                        "device": self.run.device, "torch": torch.__version__,
                        "router": {"entropy": [round(e, 4) for e in self.stats.entropies()],
                                   "shares": [[round(x, 4) for x in layer]
                                              for layer in self.stats.shares()]},
                        "curve": self.curve}, indent=1) + "\n",
            encoding="utf-8",
        )  # fmt: skip
        export.round_experts(stock)
        self.net.eval().to(self.run.device)
        for name, steps in self.tests.items():
            found = exact(self.net, steps[:2], self.run.device)
            print(f"INT4 {name}: calls {percent(found, 'call'):.1f} %, "
                  f"answers {percent(found, 'answer'):.1f} %  (before rounding, on more text: "
                  f"{before[f'{name}_calls']} / {before[f'{name}_answers']})", flush=True)  # fmt: skip  # noqa: E501


def arguments(argv: list[str] | None = None) -> Run:
    """Settings from the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.training.train", description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="fixture")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="wall time of the whole run, export included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--tokens", type=int, help="tokens a step, prefix not counted; on CUDA the preset's layout"
    )
    parser.add_argument("--workers", type=int, help="data processes; 0 makes data in this one")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--init", type=Path, help="a checkpoint or a model folder to start from")
    parser.add_argument("--eval-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--balance", choices=("switch", "pooled", "cv2"), default="switch")
    parser.add_argument("--balance-weight", type=float, help="0.01, for cv2 0.011")
    parser.add_argument("--gumbel", type=float, default=0.0, help="Gumbel-softmax temperature")
    parser.add_argument("--optimizer", choices=("adamw", "muon"))
    parser.add_argument("--no-graph", action="store_true", help="no CUDA graph")
    parser.add_argument("--threads", type=int, default=2, help="torch threads on the CPU")
    given = parser.parse_args(argv)
    preset, cuda = PRESETS[given.preset], given.device == "cuda"
    torch.set_num_threads(given.threads)
    tokens = given.tokens or (0 if cuda else preset.cpu_tokens)
    weight = given.balance_weight or (0.011 if given.balance == "cv2" else 0.01)
    routing = Routing(given.balance, weight, given.gumbel)
    return Run(
        given.preset, given.device, given.out, given.minutes or (8 if cuda else preset.cpu_minutes),
        given.seed, tokens, (14 if cuda else 0) if given.workers is None else given.workers,
        given.learning_rate or preset.learning_rate, given.steps, given.init, given.eval_every,
        routing, not given.no_graph, given.optimizer or preset.optimizer,
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
