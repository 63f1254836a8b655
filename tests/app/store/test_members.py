"""Everything of one member is found, shown and removed, and nothing of anybody else."""

from __future__ import annotations

import base64
import json

import pytest
import redis

from app.dispatch import Dispatcher, make_celery
from app.store import keys
from app.store.gate import DepartmentCache
from app.store.inbox import Inbox
from app.store.keys import UserKeys, user_tag
from app.store.lease import Leases
from app.store.members import MemberBusyError, Members
from app.store.outbox import Outbox
from app.store.pending import PendingIndex
from app.store.turns import Finish, Turns
from tests.app.store.messages import CORP_ID, tag_of, text_message


def fill(client: redis.Redis, user: str) -> None:
    """One answered turn with an unsent part, one waiting turn, memory, departments, a wake."""
    for number in (1, 2):
        Inbox(client).put(
            text_message(user, str(number), f"{user}的问题{number}"), f"{user}-{number}"
        )
    tag, turns = tag_of(user), Turns(client)
    lease = Leases(client, "turn").acquire(tag)
    assert lease
    turns.begin(lease, f"{user}-1")
    document = json.dumps([{"role": "user", "content": f"{user}的问题1"}], ensure_ascii=False)
    steps = json.dumps([{"text": "想"}], ensure_ascii=False)
    finish = Finish("done", "答", ("答一", "答二"), steps=steps, session_document=document)
    assert turns.finish(lease, f"{user}-1", finish)
    lease.release()
    DepartmentCache(client, CORP_ID).put(user, frozenset({"2"}))
    client.zadd(keys.PROBLEM_PARTS, {f"{tag} {user}-1:2": 1})


def everything(client: redis.Redis) -> str:
    """All names and values of the store, Celery's bodies in the clear."""
    said = []
    for name in client.keys("*"):
        said.append(name.decode())
        kind = client.type(name)
        if kind == b"list":
            said += [item.decode() for item in client.lrange(name, 0, -1)]
        elif kind == b"zset":
            said += [item.decode() for item in client.zrange(name, 0, -1)]
        elif kind == b"hash":
            said += [item.decode() for pair in client.hgetall(name).items() for item in pair]
        elif kind == b"string":
            said.append((client.get(name) or b"").decode())
    for text in said[:]:
        if text.startswith("{") and '"body"' in text:
            said.append(base64.b64decode(json.loads(text)["body"]).decode())
    return "\n".join(said)


def test_the_export_holds_what_was_asked_answered_and_remembered(
    redis_client: redis.Redis,
) -> None:
    fill(redis_client, "zhang")
    fill(redis_client, "li")
    records = list(Members(redis_client).export("ZHANG"))
    assert "li的" not in json.dumps(records, ensure_ascii=False)
    by_kind: dict[str, list[dict[str, object]]] = {}
    for record in records:
        by_kind.setdefault(record["record"], []).append(record)
    turns = {record["value"]["id"]: record for record in records if record["record"] == "turn"}
    assert turns["zhang-1"]["value"]["steps"] == [{"text": "想"}]
    assert turns["zhang-1"]["expires_in_s"] == pytest.approx(keys.ENDED_EXPIRY_S, abs=60)
    assert turns["zhang-2"]["value"]["text"] == "zhang的问题2"
    assert turns["zhang-2"]["expires_in_s"] is None
    assert [r["value"]["body"] for r in records if r["record"] == "part"] == ["答一", "答二"]
    (session,) = by_kind["session"]
    assert session["value"] == [[{"role": "user", "content": "zhang的问题1"}]]
    assert [r["value"] for r in by_kind["departments"]] == ["2"]
    assert len(by_kind["dedupe"]) == 2
    (indexes,) = by_kind["indexes"]
    assert indexes["turn_ids"] == ["zhang-1", "zhang-2"]
    assert indexes["entries"] == {
        keys.PENDING_USERS: [tag_of("zhang")],
        keys.PENDING_OUTBOXES: [tag_of("zhang")],
        keys.QUEUE: ["zhang-2"],
        keys.RECENT_TURNS: ["zhang-1", "zhang-2"],
        keys.PROBLEM_PARTS: [f"{tag_of('zhang')} zhang-1:2"],
    }
    # Every key of the member is there, whatever it is for.
    own = {r["key"] for r in records if "key" in r}
    assert own >= {k.decode() for k in redis_client.keys(UserKeys(tag_of("zhang")).base + "*")}


def test_deleting_leaves_no_trace_and_touches_nobody_else(
    redis_client: redis.Redis, redis_url: str
) -> None:
    fill(redis_client, "li")
    before = everything(redis_client)
    fill(redis_client, "zhang")
    other_app = user_tag(CORP_ID, "1000009", "Zhang")
    redis_client.set(UserKeys(other_app).epoch, 1)
    Dispatcher(make_celery(redis_url)).wake(tag_of("zhang"))
    Dispatcher(make_celery(redis_url)).deliver(tag_of("li"))
    assert "zhang" in everything(redis_client)
    removed = Members(redis_client).delete("zhang")
    assert "zhang" not in everything(redis_client).lower()
    assert removed["turn"] == removed["part"] == removed["dedupe"] == 2
    assert (removed["wakes"], removed["epoch"], removed["departments"]) == (1, 1, 1)
    assert set(before.splitlines()) <= set(everything(redis_client).splitlines())
    assert tag_of("li") in everything(redis_client)
    assert Members(redis_client).delete("zhang") == {}
    assert list(Members(redis_client).export("zhang")) == []


def test_a_turn_index_whose_turn_expired_is_removed_too(redis_client: redis.Redis) -> None:
    redis_client.set(keys.turn_index("old"), tag_of("zhang"))
    assert Members(redis_client).delete("zhang") == {"indexes": 1}
    assert redis_client.keys("*") == []


@pytest.mark.parametrize("kind", ["turn", "send"])
def test_nothing_is_removed_while_somebody_works_for_the_member(
    redis_client: redis.Redis, kind: str
) -> None:
    fill(redis_client, "zhang")
    lease = Leases(redis_client, kind).acquire(tag_of("zhang"))
    assert lease
    with pytest.raises(MemberBusyError):
        Members(redis_client).delete("zhang")
    assert Inbox(redis_client).head(tag_of("zhang")) == "zhang-2"
    lease.release()
    # The refusal holds nobody up.
    assert Leases(redis_client, "turn").acquire(tag_of("zhang"))


def test_forced_removal_voids_the_work_that_runs(redis_client: redis.Redis) -> None:
    fill(redis_client, "zhang")
    lease = Leases(redis_client, "turn").acquire(tag_of("zhang"))
    turns = Turns(redis_client)
    assert lease
    turns.begin(lease, "zhang-2")
    Members(redis_client).delete("zhang", force=True)
    assert not turns.record_steps(lease, "zhang-2", "[1]")
    assert not turns.finish(lease, "zhang-2", Finish("done", "迟到", ("迟到",)))
    assert not lease.renew()
    lease.release()
    assert Outbox(redis_client).head(tag_of("zhang")) is None
    assert PendingIndex(redis_client, "turn").waiting() == []
    assert PendingIndex(redis_client, "send").waiting() == []
    assert "zhang" not in everything(redis_client)
