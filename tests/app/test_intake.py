"""In front of the inbox: commands, rights, rates and overload, each answered by one line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from app import replies
from app.access import AccessPolicy, Group
from app.intake import Intake, IntakeLimits, Taken
from app.metrics import Metrics, totals
from app.store import keys
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.turns import Finish, Turns
from tests.app.store.messages import event_message, tag_of, text_message

TAG = tag_of("zhang")


class Hints:
    """Remembers hints."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.delivered: list[str] = []


class Desk:
    """An intake and its users."""

    def __init__(self, client: redis.Redis, **options: object) -> None:
        self.client = client
        self.hints = Hints()
        self.metrics = Metrics(client)
        self.intake = Intake(
            client,
            self.hints.woken.append,
            self.hints.delivered.append,
            metrics=self.metrics,
            **options,  # type: ignore[arg-type]
        )
        self._sent = 0

    def send(self, text: str, user: str = "zhang", msg_id: str = "") -> Taken:
        """A message of ``user``, with a new id unless one is given."""
        self._sent += 1
        message = text_message(user, msg_id or f"m{self._sent}", text)
        return self.intake.take(message, f"t{self._sent}")

    def said(self, user: str = "zhang") -> list[str]:
        """What the outbox of ``user`` holds."""
        user_keys = UserKeys(tag_of(user))
        ids = self.client.lrange(user_keys.outbox, 0, -1)
        return [self.client.hget(user_keys.part(i.decode()), "body").decode() for i in ids]

    def waiting(self, user: str = "zhang") -> list[str]:
        """Ids of the turns in the inbox of ``user``."""
        tag = tag_of(user)
        return Inbox(self.client).pending([tag])[tag]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("/new", replies.NEW_SESSION),
        ("#清除记忆", replies.NEW_SESSION),
        (" ／HELP ", replies.HELP),
        ("／ｈｅｌｐ", replies.HELP),
        ("＃清除记忆", replies.NEW_SESSION),
        ("/foo", replies.UNKNOWN_COMMAND),
        ("／Ｆｏｏ＿2 ", replies.UNKNOWN_COMMAND),
        ("/stop", replies.NOTHING_TO_STOP),
    ],
)
def test_commands_are_answered_with_no_worker_at_all(
    redis_client: redis.Redis, text: str, reply: str
) -> None:
    desk = Desk(redis_client)
    assert desk.send(text).outcome == "answered"
    assert desk.said() == [reply]
    assert desk.waiting() == []
    assert (desk.hints.woken, desk.hints.delivered) == ([], [TAG])
    turn = Turns(redis_client).get("t1")
    assert turn is not None
    assert (turn.status, turn.answer) == ("done", reply)


def test_commands_pass_a_busy_inbox_and_what_waits_stays(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client)
    desk.send("一")
    desk.send("/help")
    desk.send("/stop")
    assert desk.said() == [replies.HELP, replies.NOTHING_TO_STOP]
    assert desk.waiting() == ["t1"]


def test_a_redelivered_command_is_answered_once(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client)
    outcomes = [desk.send("/help", msg_id="same").outcome for _ in range(3)]
    assert outcomes == ["answered", "duplicate", "duplicate"]
    assert desk.said() == [replies.HELP]


def test_stop_ends_the_running_turn_in_one_line(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client)
    desk.send("一")
    desk.send("二")
    lease = Leases(redis_client, "turn").acquire(TAG)
    assert lease
    turns = Turns(redis_client)
    turns.begin(lease, "t1")
    assert desk.send("/stop").outcome == "answered"
    assert desk.said() == [replies.STOPPED]
    assert desk.waiting() == ["t2"]
    assert turns.ended(lease, "t1")
    assert turns.position("t2") == 0
    assert not turns.finish(lease, "t1", Finish("done", "太晚", ("太晚",)))
    assert not turns.record_steps(lease, "t1", "[1]")
    assert desk.said() == [replies.STOPPED]


def test_a_text_that_only_begins_like_a_command_is_a_question(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client)
    for text in ("/new 是什么意思", "/华东销售额", "/2+3", "/usr/bin", "foo"):
        assert desk.send(text).outcome == "queued"


def test_complaint_41_outsiders_get_one_line_and_are_counted(redis_client: redis.Redis) -> None:
    """langbot-app/LangBot#193: everybody in the corp could use SQL and Python."""
    desk = Desk(redis_client, policy=AccessPolicy(Group(frozenset({"zhang"}))))
    assert desk.send("一", "Zhang").outcome == "queued"
    for _ in range(3):
        taken = desk.send("一", "mallory")
        assert (taken.outcome, taken.reason) == ("refused", "not_allowed")
    assert desk.said("mallory") == [replies.NOT_ALLOWED], "told once a minute"
    assert desk.waiting("mallory") == []
    assert desk.send("/new", "mallory").outcome == "refused"
    desk.metrics.flush()
    counts = totals(redis_client)
    assert counts["hutong_messages{refused,not_allowed}"] == 4
    assert counts["hutong_messages{queued,}"] == 1


def test_departments_open_the_door_and_unknown_ones_do_not(redis_client: redis.Redis) -> None:
    known: dict[str, frozenset[str] | None] = {
        "li": frozenset({"2", "7"}),
        "wang": frozenset({"3"}),
        "away": None,
    }
    policy = AccessPolicy(Group(frozenset({"boss"}), frozenset({"2"})))
    desk = Desk(redis_client, policy=policy, departments_of=known.__getitem__)
    assert desk.send("一", "boss").outcome == "queued", "listed members need no look-up"
    assert desk.send("一", "li").outcome == "queued"
    assert desk.send("一", "wang").reason == "not_allowed"
    assert desk.send("一", "away").reason == "rights_unknown"
    assert desk.said("away") == [replies.RIGHTS_UNKNOWN]


def test_an_event_of_an_outsider_is_dropped_in_silence(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client, policy=AccessPolicy(Group(frozenset({"zhang"}))))
    taken = desk.intake.take(event_message("mallory", "enter_agent", "<x/>"), "t1")
    assert taken.outcome == "refused"
    assert desk.said("mallory") == []


def test_rate_limit_counts_each_message_once_and_spares_stop_and_admins(
    redis_client: redis.Redis,
) -> None:
    policy = AccessPolicy(admins=frozenset({"admin"}))
    desk = Desk(redis_client, policy=policy, limits=IntakeLimits(user_rate_per_min=2))
    assert [desk.send("一", msg_id="a").outcome for _ in range(3)] == [
        "queued",
        "duplicate",
        "duplicate",
    ]
    assert desk.send("二").outcome == "queued"
    assert desk.send("三").reason == "rate"
    assert desk.said() == [replies.TOO_OFTEN]
    assert desk.send("/stop").outcome == "answered"
    assert desk.send("一", "li").outcome == "queued", "others have their own limit"
    assert {desk.send("一", "admin").outcome for _ in range(5)} == {"queued"}
    redis_client.delete(UserKeys(TAG).rate)  # a minute later
    assert desk.send("四").outcome == "queued"


def test_overload_is_said_and_commands_still_work(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client, limits=IntakeLimits(most_queued=2, queue_look_s=0))
    desk.send("一", "li")
    desk.send("一", "wang")
    assert desk.send("一").reason == "overload"
    assert desk.said() == [replies.OVERLOADED]
    assert desk.send("/help").outcome == "answered"
    redis_client.delete(keys.QUEUE)
    assert desk.send("二").outcome == "queued"


def test_a_retry_of_a_queued_message_is_never_refused(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client, limits=IntakeLimits(most_queued=1, queue_look_s=0))
    assert desk.send("一", msg_id="same").outcome == "queued"
    assert desk.send("一", msg_id="same").outcome == "duplicate"
    assert desk.said() == []


def test_a_message_refused_once_is_not_worked_on_later(redis_client: redis.Redis) -> None:
    """The user was told that it is not; a late re-delivery must not contradict that."""
    desk = Desk(redis_client, limits=IntakeLimits(most_queued=1, queue_look_s=0))
    desk.send("一", "li")
    assert desk.send("一", msg_id="same").reason == "overload"
    redis_client.delete(keys.QUEUE)
    assert desk.send("一", msg_id="same").outcome == "duplicate"
    assert desk.waiting() == []


def test_dry_run_of_a_command_says_nothing(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client)
    message = replace(text_message("zhang", "1", "/help"))
    assert desk.intake.take(message, "t1", dry_run=True).outcome == "answered"
    assert desk.said() == []


def test_dry_run_of_an_outsider_tells_the_administrator_only(redis_client: redis.Redis) -> None:
    desk = Desk(redis_client, policy=AccessPolicy(Group(frozenset({"li"}))))
    taken = desk.intake.take(text_message("zhang", "1", "你好"), "t1", dry_run=True)
    assert (taken.outcome, taken.reason, desk.said()) == ("refused", "not_allowed", [])
    turn = Turns(redis_client).get("t1")
    assert turn is not None
    assert (turn.answer, turn.dry_run) == (replies.NOT_ALLOWED, True)
    # Nor is the user's own line of this minute used up.
    assert desk.send("你好").outcome == "refused"
    assert desk.said() == [replies.NOT_ALLOWED]
