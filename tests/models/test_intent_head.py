"""The head against the call: where decisions are, what a fit learns, and states of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.checkpoint.loader import load_model
from inference.llm import LLM
from inference.tokenizer import Tokenizer
from models.training import dialogs, intent_head
from models.training.evaluate import GREEDY
from models.training.human_questions import TODAY
from models.training.intent_head import AFTER, NAMES, QUESTIONS, Decision
from models.training.turns import Call, Turn

FIXTURE = Path(__file__).parents[2] / "models" / "fixture-moe"
PROMPT = dialogs.demo_prompt(TODAY)
FAULTY = Call("sql_query", {"sql": "SELECT x"}, "no such column", trained=False)
REPAIR = Call("sql_query", {"sql": "SELECT 1"}, "1")
STATISTIC = Call("python_exec", {"code": "print(1)"}, "1")


def names(found: list[Decision]) -> list[tuple[str, str]]:
    return [(decision.kind, NAMES[decision.right]) for decision in found]


def test_a_turn_is_decided_at_the_question_and_after_each_result() -> None:
    turns = [Turn("你好", (), "您好", "greet"), Turn("波动", (REPAIR, STATISTIC), "1", "")]
    found = list(intent_head.of_dialog("tools", PROMPT, turns))
    assert names(found) == [("tools", "sql_query"), (AFTER, "python_exec"), (AFTER, "none")]
    assert [d.messages[-1].content for d in found] == ["波动", "1", "1"]
    assert [message.role for message in found[2].messages[-3:]] == ["tool", "assistant", "tool"]


def test_a_faulty_call_is_never_the_right_choice() -> None:
    found = list(intent_head.of_dialog("k", PROMPT, [Turn("q", (FAULTY, REPAIR), "1", "")]))
    assert names(found) == [(AFTER, "sql_query"), (AFTER, "none")]


def test_the_same_seed_draws_the_same_decisions() -> None:
    tokenizer = Tokenizer(FIXTURE)
    once, again = (intent_head.drawn(tokenizer, 5, "train", 25) for _ in range(2))
    assert once == again
    assert len({decision.messages[0] for decision in once}) == 2
    assert len({decision.right for decision in once}) > 1


def test_files_give_every_class_and_only_offered_names() -> None:
    found = intent_head.from_files(12)
    assert {d.kind for d in found} >= {*intent_head.CLASSES, AFTER, "people, zh", "people, en"}
    offered = intent_head.offered(found)
    assert all(offered[row, decision.right] for row, decision in enumerate(found))


def test_a_fit_separates_what_is_separable_and_never_names_what_is_missing() -> None:
    generator = torch.Generator().manual_seed(3)
    right = torch.arange(120) % len(NAMES)
    noise = torch.randn(120, len(NAMES), generator=generator) / 10
    states = torch.nn.functional.one_hot(right, len(NAMES)) + noise
    allowed = torch.ones(120, len(NAMES), dtype=torch.bool)
    weight = intent_head.fit((states, allowed, right), len(NAMES), 1e-4)
    assert torch.equal(intent_head.scores(weight, states, allowed).argmax(dim=1), right)
    allowed[:, 1] = False
    assert 1 not in intent_head.scores(weight, states, allowed).argmax(dim=1)
    strong = intent_head.fit((states, allowed | True, right), len(NAMES), 10.0)
    assert strong[:-1].norm() < weight[:-1].norm() / 5


def test_mcnemar_counts_only_where_the_two_differ() -> None:
    assert intent_head.mcnemar(0, 0) == 1.0
    assert intent_head.mcnemar(3, 3) == 1.0
    assert intent_head.mcnemar(0, 6) == intent_head.mcnemar(6, 0) == 2 / 64


def test_the_table_counts_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    rights = {"call": [True, True, False], "head": [False, True, False]}
    rows = intent_head.table(["a", AFTER, "b"], rights)
    assert rows["a"] == {"n": 1, "call": 1, "head": 0, "p head": 1.0}
    assert rows[QUESTIONS] == {"n": 2, "call": 1, "head": 0, "p head": 1.0}
    assert rows[AFTER]["head"] == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0][2:] for line in printed[2:]] == ["a", "b", QUESTIONS, AFTER]
    assert " 1 / 0 (1) |" in printed[2]


@pytest.mark.model
def test_states_are_those_of_the_whole_prompt() -> None:
    """What is kept of the prompt before changes nothing."""
    reader = intent_head.Reader(FIXTURE)
    turns = [Turn("华东区今年销售额", (REPAIR,), "1", "")]
    found = list(intent_head.of_dialog("k", PROMPT, turns))
    *_, state = [reader.state(decision) for decision in found]
    ids = reader.tokenizer.encode(reader.tokenizer.render(found[-1].messages, found[-1].tools))
    stock = load_model(FIXTURE).model
    with torch.inference_mode():
        whole = stock.model(torch.tensor([ids])).last_hidden_state[0]
    said = len(ids) - len(reader.tokenizer.encode("<|im_start|>assistant\n"))
    start = max(i for i, token in enumerate(ids[:said]) if token == ids[said])
    expected = torch.cat((whole[-1], whole[start:said].mean(dim=0)))
    torch.testing.assert_close(state, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.model
def test_the_engine_is_asked_for_a_name_or_words() -> None:
    """A few tokens show the choice that the whole reply makes."""
    found = intent_head.from_files(1)
    seen = set()
    with LLM(FIXTURE) as llm:
        for decision in found[:6]:
            name, short = intent_head.decoded(llm, decision, 16)
            whole = llm.chat(decision.messages, decision.tools, GREEDY)
            assert short.completion_tokens <= 16
            assert NAMES[name] == (whole.tool_calls[0].name if whole.tool_calls else "none")
            seen.add(NAMES[name])
    assert len(seen) > 1
