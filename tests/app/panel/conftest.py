"""A signed-in browser, as far as Flask's test client is one, on a real Redis."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence

import pytest
import redis
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.doctor.findings import Finding, fail, ok
from app.store.inbox import Inbox
from app.store.keys import user_tag
from app.store.lease import Leases
from app.store.outbox import Outbox, Outcome
from app.store.turns import Finish, Turns
from app.wecom.message import InboundMessage
from tests.app.conftest import ADMIN_TOKEN
from tests.app.wecom.sealing import AGENT, CORP

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"
TAG = user_tag(CORP, AGENT, "zhangsan")
REFUSED = Outcome("refused", errcode=81013, errmsg=f"user not in scope {HOSTILE}")
_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


def form_token(page: TestResponse) -> str:
    """The token in the first form of a page."""
    found = _TOKEN.search(page.get_data(as_text=True))
    assert found, page.get_data(as_text=True)
    return found[1]


def sign_in(http: FlaskClient, token: str = ADMIN_TOKEN, **headers: str) -> TestResponse:
    """Open the login page and send its form."""
    page = http.get("/admin", headers=headers)
    data = {"token": token, "form_token": form_token(page)}
    return http.post("/admin/login", data=data, headers=headers)


class Admin:
    """Somebody who signed in; ``post`` sends forms with the session's token."""

    def __init__(self, http: FlaskClient) -> None:
        self.http = http
        assert sign_in(http).status_code == 303
        self.token = form_token(http.get("/admin/ui/test"))

    def page(self, path: str) -> str:
        """The text of a page under ``/admin/ui`` that must be there."""
        response = self.http.get(f"/admin/ui/{path}")
        assert response.status_code == 200, response.get_data(as_text=True)
        return response.get_data(as_text=True)

    def post(self, path: str, **form: str) -> TestResponse:
        """Send a form."""
        return self.http.post(f"/admin/ui/{path}", data={"form_token": self.token, **form})


@pytest.fixture(autouse=True)
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check has tests of its own; the engine's part takes seconds."""

    def examine(_settings: object) -> Sequence[Finding]:
        return [ok("redis", "Redis 有回答"), fail("wecom_token", "取不到", f"改 {HOSTILE}")]

    monkeypatch.setattr("app.doctor.examine", examine)


@pytest.fixture
def admin(http: FlaskClient) -> Admin:
    """A signed-in administrator."""
    return Admin(http)


def ask(client: redis.Redis, turn_id: str, text: str = "你好", user: str = "zhangsan") -> None:
    """A message of the configured app arrives."""
    message = InboundMessage(CORP, AGENT, user, "text", turn_id, 1, text)
    Inbox(client).put(message, turn_id)


def end(
    client: redis.Redis,
    turn_id: str,
    *parts: str,
    steps: Sequence[object] = (),
    user: str = "zhangsan",
) -> None:
    """Its worker answers it."""
    turns = Turns(client)
    lease = Leases(client, "turn").acquire(user_tag(CORP, AGENT, user))
    assert lease is not None
    assert turns.begin(lease, turn_id).verdict == "begun"
    text = "".join(parts)
    written = json.dumps(steps, ensure_ascii=False)
    assert turns.finish(lease, turn_id, Finish("done", text, parts, written))
    lease.release()


def settle(client: redis.Redis, outcome: Outcome, user: str = "zhangsan") -> None:
    """The sender tries the first part of the user."""
    lease = Leases(client, "send").acquire(user_tag(CORP, AGENT, user))
    assert lease is not None
    outbox = Outbox(client)
    part = outbox.head(lease.tag)
    assert part is not None
    assert outbox.claim(lease, part).verdict == "claimed"
    assert outbox.settle(lease, part, outcome)
    lease.release()


def safe(page: str) -> str:
    """The page, in which nothing of what users wrote is markup."""
    assert "<script>alert" not in page
    assert page.count("<script") == page.count('<script src="/admin/ui/static/panel.js"')
    assert " style=" not in page
    return page


def shown(text: str, page: str) -> bool:
    """True when the page shows ``text`` to a reader."""
    return text in html.unescape(page)


# --- turns ---
