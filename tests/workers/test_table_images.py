"""Wide tables from the agent to the outbox, and what the setting means."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import redis

from app.settings import SettingsError, load
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.outbox import Outbox
from app.store.turns import MAX_IMAGE_BYTES
from inference.protocol import Message
from tests.app.store.messages import tag_of, text_message
from tests.e2e.fake_turns import WIDE
from tests.workers.test_turn import ask, turn_of
from tools.base import Table
from tools.table_image import MAX_BYTES, TableImage, find_font
from workers.agent.steps import AgentResult, Step
from workers.table_images import drawer
from workers.turn import Draw, TurnRunner

TAG = tag_of("zhang")
SMALL = Table(("产品", "销售额"), (("手机", 3), ("平板", 2)))


class TableAgent:
    """Answers with the table it was given."""

    def __init__(self, table: Table | None) -> None:
        self._table = table

    def run(
        self,
        question: str,
        history: Sequence[Message] = (),
        *,
        user: str,
        deadline_s: float,
        cancelled: Callable[[], bool],
        on_step: Callable[[Step], None],
    ) -> AgentResult:
        """As ``workers.agent.loop.Agent.run``."""
        return AgentResult("见下表。", "ok", table=self._table)


def image_of(client: redis.Redis, table: Table | None, draw: Draw | None) -> bytes | None:
    """Answer one question; the picture in the outbox after the text."""
    (turn_id,) = ask(client, "问")
    TurnRunner(client, TableAgent(table), draw=draw).drain(TAG)
    assert turn_of(client, turn_id).status == "done"
    text, *rest = Outbox(client).of_turn(TAG, turn_id)
    assert (text.body, text.image) == ("见下表。", False)
    assert [part.image for part in rest] in ([], [True])
    return Outbox(client).image(TAG, rest[0].id) if rest else None


def test_a_wide_table_follows_the_text_as_a_picture(redis_client: redis.Redis) -> None:
    draw = TableImage(find_font())
    png = image_of(redis_client, WIDE, draw)
    assert png == draw(WIDE)
    assert png
    (picture,) = [p for p in (Outbox(redis_client).read(TAG, "zhang-1:2"),) if p]
    assert picture.body == "[图片] 表格，20行、4列"


@pytest.mark.parametrize("table", [SMALL, None])
def test_other_answers_are_text_only(redis_client: redis.Redis, table: Table | None) -> None:
    assert image_of(redis_client, table, TableImage(find_font())) is None


def test_nothing_is_drawn_when_it_is_off(redis_client: redis.Redis) -> None:
    assert image_of(redis_client, WIDE, None) is None


def test_a_font_that_went_away_costs_the_picture_and_not_the_answer(
    redis_client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert image_of(redis_client, WIDE, TableImage(tmp_path / "gone.ttf")) is None
    assert "table not drawn" in caplog.messages


def test_a_dry_run_draws_nothing(redis_client: redis.Redis) -> None:
    drawn: list[Table] = []
    Inbox(redis_client).put(text_message("zhang", "t1"), "t1", dry_run=True)
    TurnRunner(redis_client, TableAgent(WIDE), draw=lambda table: drawn.append(table) or b"").drain(
        TAG
    )
    assert drawn == []
    assert redis_client.keys(UserKeys(TAG).image("*")) == []


def test_the_store_takes_whatever_the_tool_draws() -> None:
    assert MAX_BYTES <= MAX_IMAGE_BYTES


def test_the_setting_is_off_on_or_a_font(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    assert drawer(load({})) is None
    assert drawer(load({"HUTONG_TABLE_IMAGES": "0"})) is None
    assert caplog.messages == []
    assert drawer(load({"HUTONG_TABLE_IMAGES": "1"})) is not None
    assert drawer(load({"HUTONG_TABLE_IMAGES": str(find_font())})) is not None
    caplog.clear()
    assert drawer(load({"HUTONG_TABLE_IMAGES": str(tmp_path / "none.ttf")})) is None
    none = dataclasses.replace(load({}), table_images=True)
    monkeypatch.setattr("workers.table_images.find_font", lambda chosen: find_font(chosen, ()))
    assert drawer(none) is None
    assert caplog.messages == ["wide tables are sent as text only"] * 2
    with pytest.raises(SettingsError, match="HUTONG_TABLE_IMAGES=maybe"):
        load({"HUTONG_TABLE_IMAGES": "maybe"})
