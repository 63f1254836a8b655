"""Template files: syntax, intents, slots and the split."""

import random

import pytest

from models.training import templates
from models.training.templates import Template


def test_every_file_belongs_to_an_intent_and_every_language_has_the_core_intents():
    found = templates.load()
    for lang in templates.LANGUAGES:
        intents = {template.intent for template in found if template.lang == lang}
        assert {"total", "top", "trend", "share", "doc", "calc", "follow_scope"} <= intents


def test_file_names_carry_intent_and_variant():
    assert templates.intent_of("top1_person") == ("top", "1_person")
    assert templates.intent_of("having_over") == ("having", "over")
    assert templates.intent_of("peak_month") == ("peak_month", "")
    with pytest.raises(templates.TemplateError, match="gossip"):
        templates.intent_of("gossip")


def test_choices_and_options_expand_and_plain_brackets_stay():
    rng = random.Random(0)
    template = Template("zh", "total", "", "", "[请](查|看)下(合计){metric}")
    texts = {template.choose(rng) for _ in range(60)}
    assert texts == {
        "请查下(合计){metric}", "请看下(合计){metric}", "查下(合计){metric}", "看下(合计){metric}",
    }  # fmt: skip


def test_split_is_stable_and_disjoint():
    found = templates.load()
    first, second = templates.split(found), templates.split(found)
    assert first == second
    for key, held in first.held_out.items():
        train = {template.text for template in first.train[key]}
        assert train
        assert not train & {template.text for template in held}
    total = sum(len(group) for group in first.held_out.values())
    assert 0.05 < total / len(found) < 0.15


def test_a_trained_template_never_says_what_a_held_out_one_says():
    rng = random.Random(2)
    kept = templates.held_out_phrasings()
    for template in templates.load():
        if not template.held_out and "(" in template.text:
            assert not kept & {templates.bare(template.choose(rng)) for _ in range(30)}, template


def test_kinds_and_comments(tmp_path):
    path = tmp_path / "returns.txt"
    path.write_text("# Note\n# kind: top\ntop {n} returned\n\ntop {n} returned\n", "utf-8")
    (only,) = templates.load_file(path, "en")
    assert (only.intent, only.tag, only.slots) == ("returns", "top", {"n"})
