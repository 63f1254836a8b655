"""Images of an answer: after its text, once, whatever WeCom or the sender does in between.

Against the real store; where WeCom's own rules matter, against the simulator over HTTP.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from app.simulator.corp import Corp
from app.simulator.crypto import new_encoding_aes_key
from app.simulator.faults import Fault
from app.simulator.service import Simulator
from app.simulator.web import running
from app.store.inbox import Inbox
from app.store.keys import UserKeys, user_tag
from app.store.lease import Leases
from app.store.outbox import MEDIA_LIFE_S, Outbox, Part
from app.store.turns import Finish, Image, Turns
from app.store.unsent import Unsent
from app.wecom.client import WeComClient
from app.wecom.errors import SendUnknownError, TransportError
from app.wecom.message import InboundMessage
from tests.app.store.messages import tag_of, text_message
from tests.workers.fakes import FakeWeCom
from tests.workers.test_delivery import LIMITS, go_on, part_of, refusal, sender_of
from workers import replies
from workers.delivery import Sender

TAG = tag_of("zhang")
USER = UserKeys(TAG)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
PICTURE = Image(PNG, "[图片] 表格，20行、4列")


def answer(
    client: redis.Redis, turn_id: str, *texts: str, picture: Image = PICTURE, tag: str = TAG
) -> None:
    """End the first turn of ``tag`` with texts and a picture."""
    turns = Turns(client)
    lease = Leases(client, "turn").acquire(tag)
    assert lease
    turns.begin(lease, turn_id)
    assert turns.finish(lease, turn_id, Finish("done", "".join(texts), texts, image=picture))
    lease.release()


def fill(client: redis.Redis, turn_id: str, *texts: str, picture: Image = PICTURE) -> None:
    Inbox(client).put(text_message("zhang", turn_id), turn_id)
    answer(client, turn_id, *texts, picture=picture)


def sent(wecom: FakeWeCom) -> list[str]:
    return [what for _, what in wecom.sent]


def test_the_picture_follows_its_text_and_comes_before_the_next_answer(
    redis_client: redis.Redis,
) -> None:
    wecom = FakeWeCom()
    fill(redis_client, "t1", "甲", "乙")
    fill(redis_client, "t2", "丙")
    parts = Outbox(redis_client).of_turn(TAG, "t1")
    assert [(p.seq, p.total, p.image, p.body) for p in parts] == [
        (1, 3, False, "甲"),
        (2, 3, False, "乙"),
        (3, 3, True, PICTURE.caption),
    ]
    sender_of(redis_client, wecom).deliver(TAG)
    assert sent(wecom) == ["甲", "乙", "media1", "丙", "media2"]
    assert wecom.uploads == [PNG, PNG]
    assert all(wecom.checks), "every send may be repeated after a time-out"
    assert part_of(redis_client, "t1:3").msgid == "msg3"


def test_a_picture_lives_as_long_as_its_part(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    image = USER.image("t1:2")
    assert (redis_client.get(image), redis_client.ttl(image)) == (PNG, -1)
    sender_of(redis_client, FakeWeCom()).deliver(TAG)
    assert redis_client.ttl(image) == redis_client.ttl(USER.part("t1:2")) > 0


def test_a_dry_run_keeps_no_picture(redis_client: redis.Redis) -> None:
    Inbox(redis_client).put(text_message("zhang", "t1"), "t1", dry_run=True)
    answer(redis_client, "t1", "甲")
    assert redis_client.keys(USER.image("*")) == []
    assert redis_client.llen(USER.outbox) == 0


def test_a_send_of_unknown_outcome_is_repeated_under_the_same_media_id(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(None, None, SendUnknownError("read timed out"))
    sender_of(redis_client, wecom).deliver(TAG)
    assert part_of(redis_client, "t1:2").state == "unknown"
    assert sent(wecom) == ["甲"]
    go_on(redis_client)
    sender_of(redis_client, wecom).deliver(TAG)
    assert sent(wecom) == ["甲", "media1"]
    assert len(wecom.uploads) == 1


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_sender_killed_at_the_upload_or_the_send_is_followed_up(
    redis_client: redis.Redis, killed_at: int
) -> None:
    fill(redis_client, "t1", "甲")
    script: list[Exception | None] = [None] * killed_at
    killed = FakeWeCom(*script, SystemExit())  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        sender_of(redis_client, killed).deliver(TAG)
    assert part_of(redis_client, "t1:2").state == "unknown"
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    # Before the upload was noted nothing can have been sent; after it only the same id may be.
    assert len(wecom.uploads) == (1 if killed_at == 1 else 0)
    assert sent(wecom) == ["media1"]


@pytest.mark.parametrize("error", [TransportError("refused"), refusal(-1), refusal(60020)])
def test_an_upload_that_fails_is_tried_again(redis_client: redis.Redis, error: Exception) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(None, error)
    sender_of(redis_client, wecom).deliver(TAG)
    assert part_of(redis_client, "t1:2").state == "pending"
    assert redis_client.llen(USER.send_times) == 1, "nothing was sent: no budget is used"
    go_on(redis_client)
    sender_of(redis_client, wecom).deliver(TAG)
    assert sent(wecom) == ["甲", "media1"]


@pytest.mark.parametrize("errcode", [40004, 40006, 40009, 45001])
def test_a_picture_wecom_does_not_take_is_said_in_one_line(
    redis_client: redis.Redis, errcode: int
) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(None, refusal(errcode))
    sender_of(redis_client, wecom).deliver(TAG)
    assert sent(wecom) == ["甲", replies.IMAGE_UNSENDABLE.format(turn_id="t1")]
    assert part_of(redis_client, "t1:2").errcode == errcode
    # An administrator puts it back: it is uploaded anew.
    assert Unsent(redis_client).replay(TAG, "t1:2", 0)
    assert redis_client.ttl(USER.image("t1:2")) == -1
    sender_of(redis_client, wecom).deliver(TAG)
    assert sent(wecom)[-1] == "media1"


def test_a_picture_that_expired_at_wecom_is_uploaded_again_once(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(None, None, refusal(-1), refusal(40007), None, None)
    sender_of(redis_client, wecom).deliver(TAG)
    assert part_of(redis_client, "t1:2").state == "pending"
    go_on(redis_client)
    sender_of(redis_client, wecom).deliver(TAG)
    assert sent(wecom) == ["甲", "media2"]
    assert wecom.uploads == [PNG, PNG]


def test_a_fresh_upload_that_is_refused_is_given_up_and_not_repeated(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(None, None, refusal(40007))
    sender_of(redis_client, wecom).deliver(TAG)
    assert len(wecom.uploads) == 1
    assert part_of(redis_client, "t1:2").state == "refused"


def test_what_may_have_arrived_is_never_sent_under_another_id(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    wecom = FakeWeCom(None, None, SendUnknownError("read timed out"), refusal(40007))
    sender_of(redis_client, wecom).deliver(TAG)
    go_on(redis_client)
    sender_of(redis_client, wecom).deliver(TAG)
    assert len(wecom.uploads) == 1
    assert part_of(redis_client, "t1:2").state == "refused"


def test_an_id_of_three_days_ago_is_not_used(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    sender_of(redis_client, FakeWeCom(None, None, refusal(81013))).deliver(TAG)
    part = USER.part("t1:2")
    assert redis_client.hget(part, "media_id") == b"media1"
    redis_client.hset(part, "media_ms", int((time.time() - MEDIA_LIFE_S) * 1000))
    assert Unsent(redis_client).replay(TAG, "t1:2", 0)
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    assert len(wecom.uploads) == 1


def test_a_picture_that_is_gone_is_said_and_blocks_nothing(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1", "甲")
    fill(redis_client, "t2", "乙", picture=Image(PNG + b"2", "二"))
    redis_client.delete(USER.image("t1:2"))
    wecom = FakeWeCom()
    sender_of(redis_client, wecom).deliver(TAG)
    said = replies.IMAGE_UNSENDABLE.format(turn_id="t1")
    assert sent(wecom) == ["甲", "乙", "media1", said]


def test_an_upload_after_the_lease_was_lost_is_not_sent(redis_client: redis.Redis) -> None:
    fill(redis_client, "t1")
    other = FakeWeCom()

    class Slow(FakeWeCom):
        def upload_image(self, filename: str, png: bytes) -> str:
            media_id = super().upload_image(filename, png)
            redis_client.delete(USER.lease("send"))
            sender_of(redis_client, other).deliver(TAG)
            return media_id + "-late"

    slow = Slow()
    sender_of(redis_client, slow).deliver(TAG)
    assert (sent(other), sent(slow)) == (["media1"], [])


def test_eight_senders_at_once_send_each_picture_once(redis_client: redis.Redis) -> None:
    wecom = FakeWeCom()
    for number in range(6):
        fill(redis_client, f"t{number}", f"第{number}段")
    senders = [sender_of(redis_client, wecom) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda sender: sender.deliver(TAG), senders))
    expected = [what for n in range(6) for what in (f"第{n}段", f"media{n + 1}")]
    assert sent(wecom) == expected


class Service:
    """A simulated WeCom, a sender with the real client, and one employee."""

    def __init__(self, client: redis.Redis, simulator: Simulator, url: str) -> None:
        corp = simulator.corp
        self.simulator = simulator
        self.redis = client
        self.address = (corp.corp_id, str(corp.agent_id))
        self.tag = user_tag(*self.address, "WangFang")
        self.wecom = WeComClient(url, *self.address, corp.corp_secret, timeout_s=0.5)
        self.sender = Sender(client, {self.address: self.wecom}, LIMITS, jitter=lambda: 1.0)

    def fill(self, turn_id: str, *texts: str) -> None:
        message = InboundMessage(*self.address, "WangFang", "text", turn_id, 1_700_000_000, "问")
        Inbox(self.redis).put(message, turn_id)
        answer(self.redis, turn_id, *texts, tag=self.tag)

    def deliver(self) -> None:
        self.redis.delete(UserKeys(self.tag).send_wait)
        self.sender.deliver(self.tag)

    def pictures(self) -> list[bytes]:
        """What the employee sees, as bytes."""
        seen = self.simulator.conversations.messages("WangFang", 0)
        return [self.simulator.media.get(m.media_id).content for m in seen if m.kind == "image"]

    def part(self, part_id: str) -> Part:
        part = Outbox(self.redis).read(self.tag, part_id)
        assert part is not None
        return part


@pytest.fixture
def service(redis_client: redis.Redis) -> Service:
    corp = Corp("wwcorp1234567890", 1000002, "the-secret", "theToken", new_encoding_aes_key())
    simulator = Simulator(corp, "http://127.0.0.1:9/")
    with running(simulator) as url:
        service = Service(redis_client, simulator, url)
        with service.wecom:
            yield service


def test_the_simulated_service_takes_the_upload_and_shows_the_picture(service: Service) -> None:
    service.fill("t1", "甲")
    service.deliver()
    seen = service.simulator.conversations.messages("WangFang", 0)
    assert [(m.kind, m.text) for m in seen] == [("text", "甲"), ("image", "[图片] t1.png")]
    assert service.pictures() == [PNG]
    assert service.part("t1:2").state == "sent"


def test_a_lost_answer_of_the_service_shows_the_picture_once(service: Service) -> None:
    service.fill("t1")
    service.simulator.faults.add(Fault("message/send", "reset_after", times=1))
    service.deliver()
    assert service.part("t1:1").state == "unknown"
    assert service.pictures() == [PNG]
    service.deliver()
    assert service.part("t1:1").state == "sent"
    assert service.pictures() == [PNG]


def test_a_lost_answer_to_the_upload_shows_the_picture_once(service: Service) -> None:
    service.fill("t1")
    service.simulator.faults.add(Fault("media/upload", "reset_after", times=1))
    service.deliver()
    assert service.part("t1:1").state == "pending"
    service.deliver()
    assert service.pictures() == [PNG]


def test_a_token_that_died_is_renewed_for_the_upload(service: Service) -> None:
    service.fill("t1")
    service.simulator.faults.add(Fault("media/upload", "errcode", 42001, times=1))
    service.deliver()
    assert service.pictures() == [PNG]


def test_what_is_no_picture_is_refused_by_the_service_and_said(service: Service) -> None:
    service.fill("t1", "甲")
    service.redis.set(UserKeys(service.tag).image("t1:2"), b"not a picture")
    service.deliver()
    assert service.part("t1:2").errcode == 40009
    seen = service.simulator.conversations.messages("WangFang", 0)
    assert seen[-1].text == replies.IMAGE_UNSENDABLE.format(turn_id="t1")
