"""The tabs of the admin page: what each shows.

Owns which records a page reads and the page of an error. Knows nothing of signing in (``door``)
or of what buttons do (``actions``).
"""

from __future__ import annotations

import json
import time
from http import HTTPStatus

import redis
from flask import Blueprint, Response, make_response, render_template, request

from app.dispatch import SEND_QUEUE, TURNS_QUEUE, queue_key
from app.panel import actions, engine_view, formats
from app.panel.door import refusal
from app.panel.panel import TABS, Panel
from app.store import keys
from app.store.app_state import HELD
from app.store.gate import Gate
from app.store.presence import reports

TURNS_A_PAGE = 50
MOST_SHOWN = 200


def blueprint(panel: Panel) -> Blueprint:
    """``/admin`` and everything under ``/admin/ui``."""
    routes = Blueprint(
        "panel",
        __name__,
        url_prefix="/admin",
        template_folder="templates",
        static_folder="static",
        static_url_path="/ui/static",
    )
    panel.door.attach(routes)
    formats.register(routes)
    routes.context_processor(lambda: {"tabs": TABS, "said": request.args.get("said", "")})
    actions.attach(routes, panel)
    _attach_work(routes, panel)
    _attach_rest(routes, panel)

    @routes.errorhandler(redis.RedisError)
    def without_redis(error: redis.RedisError) -> Response:
        problem = (
            f"Redis 没有回答（{type(error).__name__}）。已收到的消息都在它的磁盘上。"
            "请启动 Redis，或检查 REDIS_URL；命令行的 python -m app doctor 会说明哪里不对。"
        )
        return refusal(HTTPStatus.SERVICE_UNAVAILABLE, problem)

    return routes


def _attach_work(routes: Blueprint, panel: Panel) -> None:
    """Turns, queue and outbox."""

    @routes.get("/ui/turns")
    def turns() -> str:
        count = panel.turns.count()
        last_page = max(1, -(-count // TURNS_A_PAGE))
        number = min(max(1, request.args.get("page", 1, type=int)), last_page)
        return render_template(
            "panel/turns.html",
            tab="turns",
            turns=panel.turns.newest(TURNS_A_PAGE, (number - 1) * TURNS_A_PAGE),
            count=count,
            page=number,
            last_page=last_page,
            now_ms=time.time() * 1000,
        )

    @routes.get("/ui/turns/<turn_id>")
    def turn(turn_id: str) -> Response:
        found = panel.api.turns.get(turn_id)
        if found is None:
            return refusal(HTTPStatus.NOT_FOUND, "没有这个回合：它过了保留期，或编号不对。")
        return make_response(
            render_template(
                "panel/turn.html",
                tab="turns",
                turn=found,
                position=0 if found.ended else panel.api.turns.position(turn_id),
                steps=json.loads(found.steps),
                parts=panel.outbox.about_turn(found.tag, turn_id),
                now_ms=time.time() * 1000,
            )
        )

    @routes.get("/ui/queue")
    def queue() -> str:
        waiting = panel.turns.oldest_waiting(MOST_SHOWN)
        return render_template(
            "panel/queue.html",
            tab="queue",
            turns=waiting,
            count=Gate(panel.client).queued(),
            running=sum(turn.status == "running" for turn in waiting),
            wakes={
                "回答": panel.client.llen(queue_key(TURNS_QUEUE)),
                "发送": panel.client.llen(queue_key(SEND_QUEUE)),
            },
            workers=sum(report.role == "turns" for report in reports(panel.client)),
            now_ms=time.time() * 1000,
        )

    @routes.get("/ui/outbox")
    def outbox() -> str:
        waiting = panel.unsent.waiting()
        problems = panel.unsent.problems()
        unknown = sum(entry.head.state == "unknown" for entry in waiting)
        paused = panel.app_state.paused(keys.user_tag(*panel.app, "x"))
        return render_template(
            "panel/outbox.html",
            tab="outbox",
            waiting=waiting[:MOST_SHOWN],
            users=len(waiting),
            pending=sum(entry.length for entry in waiting) - unknown,
            unknown=unknown,
            problems=problems,
            refused=sum(problem.part.state == "refused" for problem in problems),
            held_since_ms=panel.held_since_ms(),
            paused="" if paused == HELD else paused,
            alerts=panel.app_state.alerts(),
        )


def _attach_rest(routes: Blueprint, panel: Panel) -> None:
    """Self-check, users, engine and test."""

    @routes.get("/ui/doctor")
    def doctor() -> str:
        report = panel.self_check.latest()
        if report is None:
            panel.self_check.start()
        return render_template(
            "panel/doctor.html",
            tab="doctor",
            report=panel.self_check.latest(),
            running=panel.self_check.running(),
            held_since_ms=panel.held_since_ms(),
        )

    @routes.get("/ui/users")
    def users() -> str:
        refused = {
            name.removeprefix("hutong_messages{refused,").removesuffix("}"): int(count)
            for name, count in panel.api.counts().items()
            if name.startswith("hutong_messages{refused,")
        }
        return render_template(
            "panel/users.html",
            tab="users",
            policy=panel.policy,
            settings=panel.settings,
            refused=refused,
            reasons={
                "rate": "发得太快",
                "overload": "排队的人太多",
                "not_allowed": "没有权限",
                "rights_unknown": "查不到部门",
            },
        )

    @routes.get("/ui/engine")
    def engine() -> str:
        found = reports(panel.client)
        return render_template(
            "panel/engine.html",
            tab="engine",
            reports=found,
            engines=[engine_view.of(report) for report in found if report.role == "turns"],
            now_s=time.time(),
        )

    @routes.get("/ui/test")
    def test() -> str:
        return render_template("panel/test.html", tab="test", user="", text="", real=False)
