"""What the buttons of the admin page do.

Owns the forms: pause and resume of sending, replay, the test message, the self-check. Every one
of them is a POST whose form carries the session's token (``door`` looks at it first).
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from flask import Blueprint, make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from app.admin import TestMessage
from app.log import fields
from app.panel.panel import Panel
from app.wecom.message import is_user_name
from app.wecom.xml import strip_controls

logger = logging.getLogger(__name__)

MOST_WOKEN = 100
REFUSED = {
    "rate": "这位成员一分钟内发得太多，没有排队。",
    "overload": "排队的问题太多，没有排队。",
    "not_allowed": "这位成员不在允许的名单里，没有排队。",
    "rights_unknown": "现在查不到这位成员的部门，没有排队。",
}


def attach(routes: Blueprint, panel: Panel) -> None:
    """Register the forms."""

    @routes.post("/ui/self-check")
    def self_check() -> AnyResponse:
        panel.self_check.start()
        return _back_to("doctor")

    @routes.post("/ui/sending")
    def sending() -> AnyResponse:
        hold = request.form.get("do") == "hold"
        if hold:
            panel.app_state.hold(*panel.app)
        else:
            panel.app_state.release(*panel.app)
            # The sweeper wakes a sender for the rest.
            for waiting in panel.unsent.waiting()[:MOST_WOKEN]:
                panel.deliver(waiting.tag)
        logger.warning("sending held" if hold else "sending released by an administrator")
        return _back_to("outbox", said="held" if hold else "released")

    @routes.post("/ui/replay")
    def replay() -> AnyResponse:
        return _back_to("outbox", said=_replay(panel))

    @routes.post("/ui/test")
    def send_test() -> AnyResponse:
        return _test(panel)


def _replay(panel: Panel) -> str:
    """Replay the part of the form, or all refused ones (``part`` "*"); what to say then."""
    wanted = request.form.get("part", "")
    seen = request.form.get("replays", 0, type=int)
    done = 0
    # Oldest first; only what is listed as a problem can be named.
    for problem in reversed(panel.unsent.problems()):
        part = problem.part
        if wanted == "*":
            if part.state != "refused":
                continue
            replays = part.replays
        elif wanted == part.id and request.form.get("user", "") == problem.user:
            replays = seen
        else:
            continue
        if panel.unsent.replay(problem.tag, part.id, replays):
            done += 1
            panel.deliver(problem.tag)
            logger.warning("part replayed by an administrator", extra=fields(part_id=part.id))
    return "replayed" if done else "not_replayed"


def _test(panel: Panel) -> AnyResponse:
    user = request.form.get("user", "").strip()
    text = strip_controls(request.form.get("text", ""))
    real = request.form.get("mode") == "real"
    problem = ""
    if not is_user_name(user):
        problem = "请填一位成员的 UserID。"
    elif not text.strip():
        problem = "请写一个问题。"
    if not problem:
        taken = panel.api.submit(TestMessage(user, text, not real))
        if taken.outcome != "refused":
            return redirect(url_for("panel.turn", turn_id=taken.turn_id), HTTPStatus.SEE_OTHER)
        problem = REFUSED.get(taken.reason, "没有排队。")
    page = render_template(
        "panel/test.html", tab="test", user=user, text=text, real=real, problem=problem
    )
    return make_response(page, HTTPStatus.BAD_REQUEST)


def _back_to(tab: str, said: str | None = None) -> AnyResponse:
    return redirect(url_for(f"panel.{tab}", said=said), HTTPStatus.SEE_OTHER)
