"""Delivery: order, resume, unknown outcomes and what each error asks for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from app.metrics import Metrics, totals
from app.store.app_state import AppState
from app.store.inbox import Inbox
from app.store.keys import UserKeys
from app.store.lease import Leases
from app.store.outbox import Outbox, Part
from app.store.unsent import Unsent
from app.wecom.client import SendResult
from app.wecom.errors import ApiError, SendUnknownError, TransportError, action_for
from tests.app.store.messages import AGENT_ID, CORP_ID, tag_of, text_message
from tests.app.store.test_outbox import end, fill
from tests.workers.fakes import FakeWeCom
from workers import replies
from workers.delivery import DeliveryLimits, Sender

TAG = tag_of("zhang")
LIMITS = DeliveryLimits(gap_s=0.0)


def sender_of(client: redis.Redis, wecom: FakeWeCom, metrics: Metrics | None = None) -> Sender:
    """A sender of the tests' app that does not wait between parts."""
    apps = {(CORP_ID, AGENT_ID): wecom}
    return Sender(client, apps, LIMITS, jitter=lambda: 1.0, metrics=metrics)


def part_of(client: redis.Redis, part_id: str) -> Part:
    """A part that must exist."""
    part = Outbox(client).read(TAG, part_id)
    assert part is not None
    return part


def go_on(client: redis.Redis) -> None:
    """As if the waiting time after a failure had passed."""
    client.delete(UserKeys(TAG).send_wait)
    for key in client.scan_iter("hutong:send-pause:*"):
        client.delete(key)


def refusal(errcode: int, errmsg: str = "") -> ApiError:
    """An error code with the action the policy table gives it."""
    return ApiError(errcode, errmsg, action_for(errcode))


def test_parts_go_out_in_order(redis_client: redis.Redis) -> None:
    wecom = FakeWeCom()
    fill(redis_client, "t1", "甲", "乙")
    fill(redis_client, "t2", "丙")
    sender_of(redis_client, wecom).deliver(TAG)
    assert wecom.sent == [("zhang", "甲"), ("zhang", "乙"), ("zhang", "丙")]
    assert part_of(redis_client, "t2:1").msgid == "msg3"
    assert Outbox(redis_client).head(TAG) is None


def test_markdown_parts_go_out_as_markdown(redis_client: redis.Redis) -> None:
    wecom = FakeWeCom()
    fill(redis_client, "t1", "**甲**")
    redis_client.hset(UserKeys(TAG).part("t1:1"), "markdown", 1)
    fill(redis_client, "t2", "乙")
    sender_of(redis_client, wecom).deliver(TAG)
    assert wecom.markdown == ["**甲**"]
    assert [text for _, text in wecom.sent] == ["**甲**", "乙"]


def test_eight_senders_at_once_send_each_part_once(redis_client: redis.Redis) -> None:
    wecom = FakeWeCom()
    texts = [f"第{n}段" for n in range(25)]
    fill(redis_client, "t1", *texts)
    senders = [sender_of(redis_client, wecom) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda sender: sender.deliver(TAG), senders))
    assert [text for _, text in wecom.sent] == texts


def test_gap_between_parts(redis_client: redis.Redis) -> None:
    waits: list[float] = []
    fill(redis_client, "t1", "甲", "乙")
    clients = {(CORP_ID, AGENT_ID): FakeWeCom()}
    Sender(redis_client, clients, sleep=waits.append).deliver(TAG)
    assert waits == [0.3, 0.3]


def test_resumes_at_the_first_unsent_part(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙", "丙")
    first = FakeWeCom(None, TransportError("connection refused"))
    sender_of(redis_client, first).deliver(TAG)
    assert [text for _, text in first.sent] == ["甲"]
    assert part_of(redis_client, "t1:2").state == "pending"
    second = FakeWeCom()
    sender_of(redis_client, second).deliver(TAG)
    assert second.sent == [], "it must wait after a failure"
    go_on(redis_client)
    sender_of(redis_client, second).deliver(TAG)
    assert [text for _, text in second.sent] == ["乙", "丙"]


def test_a_sender_killed_in_mid_send_leaves_unknown_and_it_is_resent_checked(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲", "乙")
    killed = FakeWeCom(SystemExit())  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        sender_of(redis_client, killed).deliver(TAG)
    assert part_of(redis_client, "t1:1").state == "unknown"
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    assert [text for _, text in wecom.sent] == ["甲", "乙"]
    assert wecom.checks[0]


def test_time_out_is_unknown_then_resent_with_the_same_check(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    wecom = FakeWeCom(SendUnknownError("read timed out"))
    sender = sender_of(redis_client, wecom)
    sender.deliver(TAG)
    assert part_of(redis_client, "t1:1").state == "unknown"
    assert wecom.sent == []
    go_on(redis_client)
    sender.deliver(TAG)
    assert part_of(redis_client, "t1:1").state == "sent"
    # Byte for byte the same request: WeCom compares all of it, the wish for a check included.
    assert wecom.checks[:2] == [True, True]


@pytest.mark.parametrize("errcode", [81013, 82001, 50002, 60011, 46004, 60111, 43004, 95018])
def test_given_up_parts_do_not_block_the_next(redis_client: redis.Redis, errcode: int) -> None:
    fill(redis_client, "t1", "甲", "乙")
    wecom = FakeWeCom(refusal(errcode, "no"))
    sender_of(redis_client, wecom).deliver(TAG)
    part = part_of(redis_client, "t1:1")
    assert (part.state, part.errcode, part.errmsg) == ("refused", errcode, "no")
    assert [text for _, text in wecom.sent] == ["乙"]


def test_invalid_receiver_with_errcode_0_is_refused(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(ApiError(0, "receiver refused: zhang", "give_up"))
    sender_of(redis_client, wecom).deliver(TAG)
    assert part_of(redis_client, "t1:1").state == "refused"


@pytest.mark.parametrize(("errcode", "least_s"), [(-1, 0.9), (45033, 0.9), (45009, 59)])
def test_passing_errors_wait_and_keep_the_part(
    redis_client: redis.Redis, errcode: int, least_s: float
) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(refusal(errcode))
    sender_of(redis_client, wecom).deliver(TAG)
    part = part_of(redis_client, "t1:1")
    assert (part.state, part.errcode) == ("pending", errcode)
    assert redis_client.pttl(UserKeys(TAG).send_wait) > least_s * 1000 - 500
    go_on(redis_client)
    sender_of(redis_client, wecom).deliver(TAG)
    assert [text for _, text in wecom.sent] == ["甲"]


def test_untrusted_ip_pauses_the_whole_app_and_replays_after_the_fix(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(refusal(60020, "not allow to access from your ip, from ip: 203.0.113.7, x"))
    sender = sender_of(redis_client, wecom)
    sender.deliver(TAG)
    app = AppState(redis_client)
    assert "203.0.113.7" in app.paused(tag_of("li"))
    assert [alert.allow_ip for alert in app.alerts().values()] == ["203.0.113.7"]
    sender.deliver(TAG)
    assert wecom.sent == []
    go_on(redis_client)
    sender.deliver(TAG)
    assert wecom.sent == [("zhang", "甲")]
    assert app.alerts() == {}


@pytest.mark.parametrize("errcode", [40001, 40013, 40056, 40091, 48002, 50003, 301002])
def test_wrong_configuration_pauses_with_an_alert(redis_client: redis.Redis, errcode: int) -> None:
    fill(redis_client, "t1", "甲")
    error = ApiError(errcode, "no", action_for(errcode, on_gettoken=True))
    wecom = FakeWeCom(error)
    sender_of(redis_client, wecom).deliver(TAG)
    assert [a.errcode for a in AppState(redis_client).alerts().values()] == [errcode]
    assert part_of(redis_client, "t1:1").state == "pending"


def test_frequency_limit_stops_the_app_longer_each_time_it_comes_again(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲")
    waits = []
    for _ in range(6):
        go_on(redis_client)
        sender_of(redis_client, FakeWeCom(refusal(45009))).deliver(TAG)
        (pause,) = redis_client.scan_iter("hutong:send-pause:*")
        waits.append(round(redis_client.pttl(pause) / 1000))
    assert waits == [60, 60, 300, 900, 3600, 3600]
    go_on(redis_client)
    sender_of(redis_client, FakeWeCom()).deliver(TAG)
    assert AppState(redis_client).limited(TAG) == 1, "forgotten once something got through"


def test_a_receiver_wecom_does_not_know_is_marked_and_counted(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    metrics = Metrics(redis_client)
    sender_of(redis_client, FakeWeCom(refusal(60111)), metrics=metrics).deliver(TAG)
    assert Outbox(redis_client).unreachable(TAG) == 60111
    metrics.flush()
    assert totals(redis_client)["hutong_sends{refused,60111}"] == 1


def test_an_answer_wecom_does_not_accept_is_said_in_one_line(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    wecom = FakeWeCom(refusal(40033), refusal(40033))
    sender_of(redis_client, wecom).deliver(TAG)
    assert [text for _, text in wecom.sent] == [replies.UNSENDABLE.format(turn_id="t1")]


def test_an_ack_does_not_follow_its_answer(redis_client: redis.Redis) -> None:
    Inbox(redis_client).put(text_message("zhang", "t1"), "t1")
    Outbox(redis_client).acknowledge(TAG, "t1", "收到")
    end(redis_client, "t1", "答")
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    assert wecom.sent == [("zhang", "答")]


def test_backoff_grows_and_is_bounded(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    waits = []
    for _ in range(9):
        go_on(redis_client)
        sender_of(redis_client, FakeWeCom(refusal(-1))).deliver(TAG)
        waits.append(round(redis_client.pttl(UserKeys(TAG).send_wait) / 1000))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_delivery_that_finds_the_lease_held_returns_at_once(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    assert Leases(redis_client, "send").acquire(TAG)
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    assert wecom.sent == []


def test_used_up_budget_holds_the_rest_back(redis_client: redis.Redis) -> None:
    texts = [f"第{n}段" for n in range(32)]
    fill(redis_client, "t1", *texts)
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    assert len(wecom.sent) == 30
    assert Outbox(redis_client).held(TAG)
    redis_client.delete(UserKeys(TAG).send_times)  # a minute later
    go_on(redis_client)
    sender_of(redis_client, wecom).deliver(TAG)
    assert [text for _, text in wecom.sent] == texts


def test_stopped_sender_keeps_the_rest(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲", "乙")
    wecom = FakeWeCom()
    sender = Sender(
        redis_client, {(CORP_ID, AGENT_ID): wecom}, LIMITS, sleep=lambda _: sender.stop()
    )
    sender.deliver(TAG)
    assert wecom.sent == [("zhang", "甲")]
    assert part_of(redis_client, "t1:2").state == "pending"


def test_other_apps_outboxes_are_kept(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    Sender(redis_client, {("other", "1"): FakeWeCom()}, LIMITS).deliver(TAG)
    assert part_of(redis_client, "t1:1").state == "pending"


class HoldingWeCom(FakeWeCom):
    """An administrator holds the app while the first message is being sent."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._state = AppState(client)

    def send_text(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        self._state.hold(CORP_ID, AGENT_ID)
        return super().send_text(user, text, duplicate_check=duplicate_check)


def test_a_hold_ends_after_the_part_in_flight_and_goes_on_in_order(
    redis_client: redis.Redis,
) -> None:
    wecom = HoldingWeCom(redis_client)
    fill(redis_client, "t1", "甲", "乙", "丙")
    sender_of(redis_client, wecom).deliver(TAG)
    assert wecom.sent == [("zhang", "甲")]
    sender_of(redis_client, wecom).deliver(TAG)
    assert wecom.sent == [("zhang", "甲")]
    assert AppState(redis_client).release(CORP_ID, AGENT_ID)
    going_on = FakeWeCom()
    sender_of(redis_client, going_on).deliver(TAG)
    assert going_on.sent == [("zhang", "乙"), ("zhang", "丙")]


def test_a_refused_part_is_replayed_once_among_many_senders_and_clicks(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲", "乙")
    sender_of(redis_client, FakeWeCom(refusal(81013), refusal(81013))).deliver(TAG)
    problems = Unsent(redis_client).problems()
    assert sorted(problem.part.id for problem in problems) == ["t1:1", "t1:2"]
    wecom = FakeWeCom()

    def click_or_send(turn: int) -> None:
        if turn % 2:
            sender_of(redis_client, wecom).deliver(TAG)
        else:
            for problem in problems:
                Unsent(redis_client).replay(TAG, problem.part.id, 0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(click_or_send, range(24)))
    sender_of(redis_client, wecom).deliver(TAG)
    assert sorted(wecom.sent) == [("zhang", "乙"), ("zhang", "甲")]
    assert Unsent(redis_client).problems() == []
