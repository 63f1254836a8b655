"""Tool choice by a head or by the call itself: ``python -m models.training.intent_head MODEL``.

Owns the comparison behind docs/decisions/0004: a linear softmax head, fitted on the engine's own
states over training dialogs, against the call that the engine decodes, on the fixed evaluation
files, on fresh held-out dialogs and on the questions written by people. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from inference.checkpoint.loader import load_model
from inference.config import EngineConfig
from inference.engine.model_runner import ModelRunner
from inference.llm import LLM
from inference.protocol import ChatOutput, Message, ToolSpec
from inference.tokenizer import Tokenizer
from models.training import dialogs, human_questions, rendering
from models.training.dialogs import Mode, Prompt, Sampler
from models.training.eval_files import MAX_TOKENS
from models.training.eval_items import CLASSES, Item, PastTurn, read_items, read_prompts
from models.training.evaluate import EVAL_DIR, GREEDY
from models.training.judging import wilson
from models.training.turns import Call, Turn
from tools import schemas

NAMES = ("none", *(tool.name for tool in schemas.ALL))
EXPECTED = {"sql": "sql_query", "docs": "search_docs", "python": "python_exec"}
DIALOGS_A_PROMPT = 20
STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
AFTER, QUESTIONS = "after a result", "all questions"
Examples = tuple[Tensor, ...]
"""States [n, 2 * hidden], what each prompt offers [n, names], right names [n]."""
PRELUDE = '<tool_call>\n{{"name": "{}", "arguments": '


@dataclass(frozen=True)
class Decision:
    """A place where the assistant calls a tool or answers; ``right`` is an index of ``NAMES``."""

    kind: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    right: int


def of_dialog(kind: str, prompt: Prompt, turns: Sequence[Turn]) -> Iterator[Decision]:
    """The decisions of the last turn; none before a call that training would not teach."""
    specs = tuple(ToolSpec(t.name, t.description, t.parameters) for t in prompt.tools)
    said = rendering.messages(prompt, turns)
    calls = turns[-1].calls
    asked = len(said) - 2 * len(calls) - 1
    for number in range(len(calls) + 1):
        name = calls[number].name if number < len(calls) else "none"
        if number == len(calls) or calls[number].trained:
            seen = tuple(said[: asked + 2 * number])
            yield Decision(AFTER if number else kind, seen, specs, NAMES.index(name))


def drawn(tokenizer: Tokenizer, seed: int, mode: Mode, num_dialogs: int) -> list[Decision]:
    """Decisions of generated dialogs, ``DIALOGS_A_PROMPT`` a prompt."""
    rng = random.Random(seed)
    sampler, found = Sampler(rng, mode), list[Decision]()
    for number in range(num_dialogs):
        if number % DIALOGS_A_PROMPT == 0:
            prompt = dialogs.make_prompt(rng)
        turns = sampler.dialog(prompt).turns
        text = rendering.prefix(prompt) + "".join(p.text for p in rendering.pieces(turns))
        if len(tokenizer.encode(text)) <= MAX_TOKENS:
            found += of_dialog("fresh dialogs", prompt, turns)
    return found


def from_files(limit: int) -> list[Decision]:
    """Decisions of the fixed files and of people's first questions; ``limit`` 0 takes all."""
    known = {tool.name: tool for tool in schemas.ALL}
    demo = dialogs.demo_prompt(human_questions.TODAY)
    prompts = {
        p.id: Prompt(p.system, tuple(known[name] for name in p.tools), demo.today, demo.schema)
        for p in read_prompts(EVAL_DIR).values()
    }
    found: list[Decision] = []
    for kind in CLASSES:
        items = read_items(EVAL_DIR, kind)
        for item in items[:: max(1, -(-len(items) // limit))] if limit else items:
            turns = [_turn(asked) for asked in (*item.history, item)]
            found += of_dialog(kind, prompts[item.prompt], turns)
    for lang in ("zh", "en"):
        first = [q for q in human_questions.load(lang) if not q.get("history")]
        for question in first[: limit or None]:
            two_steps = question["expect"] == "python" and question.get("answer") is None
            name = "sql_query" if two_steps else EXPECTED.get(question["expect"])
            turn = Turn(question["question"], (Call(name, {}, ""),) if name else (), "", "")
            found.append(next(of_dialog(f"people, {lang}", demo, [turn])))
    return found


def _turn(asked: PastTurn | Item) -> Turn:
    calls = tuple(Call(step.name, step.arguments, step.content) for step in asked.steps)
    return Turn(asked.question, calls, asked.answer, "")


class Reader:
    """States of the engine's own prefill, what a prompt shares with the one before not repeated."""

    def __init__(self, folder: Path) -> None:
        loaded = load_model(folder)
        self.tokenizer = Tokenizer(folder)
        self.runner = ModelRunner(loaded, max_num_seqs=1, max_model_len=2048)
        self.slot = self.runner.kv_cache.allocate()
        self._start = self.tokenizer.special_ids["<|im_start|>"]
        self.ids: list[int] = []
        self._normed: list[Tensor] = []
        loaded.model.model.norm.register_forward_hook(lambda m, x, out: self._normed.append(out))

    def state(self, decision: Decision) -> Tensor:
        """[2 * hidden]: the last token's, then the mean over the last message's tokens."""
        ids = self.tokenizer.encode(self.tokenizer.render(decision.messages, decision.tools))
        *_, message, answer = (i for i, token in enumerate(ids) if token == self._start)
        same = 0
        while same < min(message, len(self.ids)) and self.ids[same] == ids[same]:
            same += 1
        self._normed.clear()
        self.runner.prefill(ids[same:], self.slot, same)
        self.ids = ids
        states = self._normed[-1][0]
        return torch.cat((states[-1], states[message - same : answer - same].mean(dim=0)))


def offered(decisions: Sequence[Decision]) -> Tensor:
    """[n, names], true where the prompt has the tool."""
    names = [{"none", *(tool.name for tool in d.tools)} for d in decisions]
    return torch.tensor([[name in each for name in NAMES] for each in names])


def scores(weight: Tensor, states: Tensor, allowed: Tensor) -> Tensor:
    """[n, names] logits of ``weight`` [width + 1, names], the last row its bias, on the first
    ``width`` entries; what is not ``allowed`` is out of the question."""
    logits = states[:, : len(weight) - 1] @ weight[:-1] + weight[-1]
    return logits.masked_fill(~allowed, -math.inf)


def fit(examples: Examples, width: int, strength: float) -> Tensor:
    """The weight with the least cross-entropy plus ``strength`` times its mean squared column."""
    weight = torch.zeros(width + 1, len(NAMES), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = _loss(weight, examples) + strength * weight[:-1].square().sum() / len(NAMES)
        torch.autograd.backward(loss)
        return loss

    optimiser.step(closure)
    return weight.detach()


def best_strength(examples: Examples, width: int) -> float:
    """The strength whose fit on four fifths does best on the last fifth."""
    cut = len(examples[0]) * 4 // 5
    first, last = (tuple(part[at] for part in examples) for at in (slice(cut), slice(cut, None)))
    return min(STRENGTHS, key=lambda s: float(_loss(fit(first, width, s), last)))


def _loss(weight: Tensor, examples: Examples) -> Tensor:
    states, allowed, right = examples
    return cross_entropy(scores(weight, states, allowed), right)


def decoded(llm: LLM, decision: Decision, num_tokens: int) -> tuple[int, ChatOutput]:
    """What the engine chooses greedily, read from the first ``num_tokens`` tokens, too few for a
    whole call; -1: unknown."""
    output = llm.chat(decision.messages, decision.tools, replace(GREEDY, max_tokens=num_tokens))
    if not output.malformed_tool_call:
        return 0, output
    name = re.search(r'"name": "(\w+)"', output.malformed_tool_call)
    return NAMES.index(name[1]) if name else -1, output


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p of McNemar's test from the two discordant counts."""
    total = only_first + only_second
    ways = sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2 * ways / 2**total))


def table(kinds: Sequence[str], rights: dict[str, list[bool]]) -> dict[str, Any]:
    """Print the rows as markdown, the call first; return the figures."""
    call, *heads = rights
    columns = "".join(f" {head} | only {call} / only head (p) |" for head in heads)
    print(f"| decisions | n | {call} |{columns}\n|---|---|---|" + "---|---|" * len(heads))
    found: dict[str, Any] = {}
    for row in (*(kind for kind in dict.fromkeys(kinds) if kind != AFTER), QUESTIONS, AFTER):
        places = [i for i, kind in enumerate(kinds)
                  if kind == row or (row == QUESTIONS and kind != AFTER)]  # fmt: skip
        picked = {name: [right[i] for i in places] for name, right in rights.items()}
        found[row] = {"n": len(places)} | {name: sum(p) for name, p in picked.items()}
        line = f"| {row} | {len(places)} | {_share(picked[call])} |"
        for head in heads:
            pairs = list(zip(picked[call], picked[head], strict=True))
            only = pairs.count((True, False)), pairs.count((False, True))
            p = mcnemar(*only)
            found[row][f"p {head}"] = round(p, 5)
            line += f" {_share(picked[head])} | {only[0]} / {only[1]} ({p:.2g}) |"
        print(line)
    return found


def _share(right: Sequence[bool]) -> str:
    low, high = wilson(sum(right), len(right))
    return f"{100 * sum(right) / len(right):.1f} % ({low:.1f}-{high:.1f})"


def main(argv: list[str] | None = None) -> int:
    """Compare on one model folder."""
    parser = argparse.ArgumentParser(prog="python -m models.training.intent_head")
    parser.add_argument("model", type=Path)
    parser.add_argument("--n", type=int, default=0, help="at most so many items a class")
    parser.add_argument("--dialogs", type=int, default=4000, help="training dialogs of the head")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    reader = Reader(given.model)
    taught = drawn(reader.tokenizer, 11, "train", given.dialogs)
    asked = from_files(given.n) + drawn(reader.tokenizer, 12, "held_out", given.n or 400)
    states, seen = (torch.stack([reader.state(d) for d in part]) for part in (taught, asked))
    mean, scale = states.mean(dim=0), states.std(dim=0) + 1e-6
    seen, may = (seen - mean) / scale, offered(asked)
    right = torch.tensor([d.right for d in taught])
    examples = ((states - mean) / scale, offered(taught), right)
    prelude = max((reader.tokenizer.encode(PRELUDE.format(n)) for n in NAMES), key=len)
    behind = partial(reader.runner.prefill, prelude, reader.slot, len(reader.ids))
    figures: dict[str, Any] = {"taught": len(taught), "prelude_tokens": len(prelude)}
    figures["forced_prelude_ms"] = _median_ms(behind)
    with LLM(given.model, config=EngineConfig(max_num_seqs=1, num_threads=1)) as llm:
        outputs = [decoded(llm, decision, len(prelude)) for decision in asked]
    steps_s = [(out.duration_s - out.time_to_first_token_s) / (out.completion_tokens - 1)
               for name, out in outputs if name]  # fmt: skip
    figures["decode_step_ms"] = round(1000 * statistics.median(steps_s), 3)
    chosen = {"call": [name for name, _ in outputs]}
    for name, width in (("head, last token", len(mean) // 2), ("head, with the mean", len(mean))):
        strength = best_strength(examples, width)
        weight = fit(examples, width, strength)
        chosen[name] = scores(weight, seen, may).argmax(dim=1).tolist()
        took_ms = _median_ms(partial(scores, weight, seen[:1], may[:1]))
        figures[name] = {"strength": strength, "ms": took_ms}
    print(json.dumps(figures), end="\n\n")
    rights = {name: [choice == d.right for choice, d in zip(choices, asked, strict=True)]
              for name, choices in chosen.items()}  # fmt: skip
    figures["rows"] = table([decision.kind for decision in asked], rights)
    print(json.dumps(figures))
    return 0


def _median_ms(action: Callable[[], object]) -> float:
    return round(1000 * statistics.median(timeit.repeat(action, number=1, repeat=50)), 3)


if __name__ == "__main__":
    sys.exit(main())
