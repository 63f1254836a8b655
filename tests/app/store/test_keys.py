"""Key names: one hash tag per user, nothing that can break it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.store.keys import UserAddress, UserKeys, split_tag, user_tag


@given(st.text(), st.text(), st.text())
def test_tag_survives_any_name(corp_id: str, agent_id: str, user: str) -> None:
    names = tuple(n.encode("utf-8", "replace").decode() for n in (corp_id, agent_id, user))
    tag = user_tag(*names)
    assert split_tag(tag) == UserAddress(*names)
    assert not set(tag) & set("{} \n")


@given(st.tuples(st.text(max_size=5), st.text(max_size=5)))
def test_different_users_have_different_tags(pair: tuple[str, str]) -> None:
    one, other = (user_tag("c", "1", n.encode("utf-8", "replace").decode()) for n in pair)
    assert (one == other) == (split_tag(one) == split_tag(other))


def test_all_keys_of_a_user_share_the_hash_tag() -> None:
    user = UserKeys(user_tag("corp", "1", "张三"))
    names = [
        *(
            user.inbox,
            user.session(),
            user.session(2),
            user.epoch,
            user.outbox,
            user.send_times,
            user.send_wait,
            user.greeted,
            user.rate,
            user.refused,
            user.unreachable,
        ),
        *(user.dedupe("x"), user.turn("t"), user.part("p"), user.sent_body("b")),
        *(user.lease("turn"), user.fence("turn"), user.woken("turn")),
    ]
    assert len(set(names)) == len(names)
    assert {name[name.index("{") : name.index("}") + 1] for name in names} == {f"{{{user.tag}}}"}
