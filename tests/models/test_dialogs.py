"""Dialogs: prompt, rendering, loss mask, answers."""

import random
import re

import pytest
from transformers import AutoTokenizer

from models.training import calc, dialogs, rendering, tokenizer, turns
from models.training.data import encode
from models.training.dialogs import Sampler
from models.training.eval_items import read_items
from models.training.evaluate import EVAL_DIR


@pytest.fixture(scope="module")
def vocabulary():
    return tokenizer.build()


@pytest.fixture(scope="module")
def stock(vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(vocabulary, folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def samples():
    rng = random.Random(11)
    found = []
    for _ in range(4):
        prompt = dialogs.make_prompt(rng)
        sampler = Sampler(rng)
        found += [(prompt, sampler.dialog(prompt)) for _ in range(60)]
    return found


def test_rendering_equals_the_chat_template(stock, vocabulary, samples):
    for prompt, dialog in samples:
        messages = rendering.template_messages(rendering.messages(prompt, dialog.turns))
        tools = [rendering.tool_json(tool) for tool in prompt.tools]
        wanted = stock.apply_chat_template(messages, tools=tools, tokenize=False)
        pieces = rendering.pieces(dialog.turns)
        assert wanted == rendering.prefix(prompt) + "".join(piece.text for piece in pieces)
        ids = vocabulary.encode(rendering.prefix(prompt)).ids + encode(vocabulary, dialog).ids
        assert stock(wanted, verbose=False)["input_ids"] == ids


def test_loss_covers_exactly_what_the_assistant_says(vocabulary, samples):
    for _, dialog in samples:
        item = encode(vocabulary, dialog)
        trained = [i for i, s in zip(item.ids, item.segment, strict=True) if s >= 0]
        text = vocabulary.decode(trained, skip_special_tokens=False)
        said = [
            part
            for turn in dialog.turns
            for part in (
                *(rendering.call_text(call) for call in turn.calls if call.trained),
                turn.answer,
            )
        ]
        assert text == "".join(f"{part}<|im_end|>" for part in said)


def test_tokenizer_is_lossless_with_one_token_a_character(vocabulary):
    assert vocabulary.get_vocab_size() == tokenizer.VOCAB_SIZE
    text = (
        '分析华东区2024年Q3，😀 tab\t emoji é ㊙ 龘 <tool_call>\n{"a": 1}\n</tool_call><|im_end|>'
    )
    ids = vocabulary.encode(text).ids
    assert vocabulary.decode(ids, skip_special_tokens=False) == text
    for char in "分析华东区销售额0123456789，。":
        assert len(vocabulary.encode(char).ids) == 1
    for token in tokenizer.SPECIAL_TOKENS:
        assert len(vocabulary.encode(token).ids) == 1


def test_answers_copy_their_figures_from_the_last_result(samples):
    checked = 0
    for prompt, dialog in samples:
        turn = dialog.turns[-1]
        if not turn.calls or turn.calls[-1].name != "sql_query":
            continue
        known = prompt.system + "".join(c.content + str(dict(c.arguments)) for c in turn.calls)
        known += turn.question
        figures = re.findall(r"\d+\.\d+[万亿]?", turn.answer)
        checked += len(figures)
        assert all(figure in known for figure in figures), turn
    assert checked > 30


def test_tools_that_a_dialog_calls_are_in_its_prompt(samples):
    for prompt, dialog in samples:
        names = {tool.name for tool in prompt.tools}
        assert all(turn.tools <= names for turn in dialog.turns)


def test_statistics_are_right():
    rows = [{"销售额": value} for value in (4.0, 1.0, 3.0, 2.0)]
    printed = {
        name: calc.run(code.format(c="销售额"), [rows]) for name, code in calc.STATISTICS.items()
    }
    assert printed["median"] == "2.5"
    assert printed["mean"] == "2.5"
    assert printed["std"] == "1.12"
    assert printed["range"] == "3.0"
    assert printed["cumulative"] == "[4.0, 5.0, 8.0, 10.0]"


def test_training_never_says_a_held_out_talk_phrasing():
    rng = random.Random(4)
    kept = turns.kept_for_evaluation()
    asked = {turns.plain(i.question) for i in read_items(EVAL_DIR, "no_tool")}
    assert len(asked & kept) > 50
    sampler = Sampler(rng)
    prompt = dialogs.make_prompt(rng, vary_schema=False)
    said = [sampler.dialog(prompt, turns.TALK_INTENTS).turns[-1].question for _ in range(6000)]
    assert len(set(said)) > 3000
    assert not [question for question in said if turns.plain(question) in kept]
