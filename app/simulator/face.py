"""The face of the simulator: the chat page, its live events, and the JSON API of the tests.

| route | does |
|---|---|
| GET / | the chat page |
| GET /sim/state | company, employees, example questions |
| GET /sim/stream | events since ``Last-Event-ID`` or ``?after=``, as server-sent events |
| POST /sim/messages | {user, text, kind?, wait?}: an employee sends; answers {msg_id, seq} |
| POST /sim/events | {user, event, event_key?}: an event such as enter_agent |
| POST /sim/approvals | {count}: that many approval events of one second |
| POST /sim/press | {user, msg_id, card, key}: a button of a template card |
| GET, POST, DELETE /sim/faults | the rules; add {api, kind, value?, times?, probability?} |
| GET, POST /sim/trusted-ips | {ips: [...]} or {ips: null}: 企业可信IP |
| GET, POST /sim/pathological | the names; {name}: what the app answers to it |
| GET /sim/conversations/<user> | bubbles after ``?after=``, waiting up to ``?wait_s=`` |
| GET /sim/media/<media_id> | an uploaded image, as the page shows it |
| GET /sim/log | log lines after ``?after=`` |
| POST /sim/verify | the console's URL check |
| POST /sim/token/expire | ends the access token before its time |
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from flask import Blueprint, Response, jsonify, render_template, request, send_file

from app.simulator import callback_xml, pathological
from app.simulator.conversations import Change, ChatMessage, DeliveryState, Event, LogLine
from app.simulator.corp import EXAMPLES
from app.simulator.faults import Fault, FaultError
from app.simulator.media import MediaError
from app.simulator.service import (
    MAX_TYPED_BYTES,
    Simulator,
    UnknownEmployeeError,
    UnknownKindError,
)

KEEP_ALIVE_S = 15.0
MAX_WAIT_S = 60.0
MAX_APPROVALS = 50
JsonAnswer = Response | tuple[Response, int]

_EVENT_NAMES: dict[type[Event], str] = {
    ChatMessage: "message",
    Change: "change",
    DeliveryState: "delivery",
    LogLine: "log",
}


def _problem(status: HTTPStatus, text: str) -> JsonAnswer:
    return jsonify(error=text), status


def _fields() -> dict[str, Any]:
    body = request.get_json(silent=True)
    return body if isinstance(body, dict) else {}


def _int_arg(name: str) -> int:
    return request.args.get(name, 0, type=int)


def blueprint(simulator: Simulator) -> Blueprint:
    """Page and JSON API of ``simulator``."""
    routes = Blueprint("face", __name__)
    corp = simulator.corp
    conversations = simulator.conversations

    @routes.get("/")
    def page() -> str:
        return render_template("chat.html", corp=corp)

    @routes.get("/sim/state")
    def state() -> Response:
        return jsonify(
            boot_id=simulator.boot_id,
            company=corp.name,
            app=corp.app_name,
            employees=[dataclasses.asdict(e) for e in corp.employees],
            examples=EXAMPLES,
            kinds=dict(callback_xml.KIND_TITLES),
            events=sorted(callback_xml.EVENTS),
        )

    @routes.post("/sim/messages")
    def say() -> JsonAnswer:
        fields = _fields()
        user_id, text, kind = fields.get("user"), fields.get("text", ""), fields.get("kind", "text")
        if not isinstance(user_id, str) or not isinstance(text, str) or not isinstance(kind, str):
            return _problem(HTTPStatus.BAD_REQUEST, "需要 JSON：{user, text}")
        if len(text.encode("utf-8", "surrogatepass")) > MAX_TYPED_BYTES:
            return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "消息太长")
        try:
            bubble, delivering = simulator.say(user_id, text, kind=kind)
        except UnknownEmployeeError:
            return _problem(HTTPStatus.NOT_FOUND, "没有这位员工")
        except UnknownKindError:
            return _problem(HTTPStatus.BAD_REQUEST, "没有这种消息类型")
        if fields.get("wait"):
            delivering.join()
        return jsonify(msg_id=bubble.msg_id, seq=bubble.seq), HTTPStatus.ACCEPTED

    @routes.post("/sim/events")
    def event() -> JsonAnswer:
        fields = _fields()
        try:
            delivering = simulator.event(
                str(fields.get("user", "")),
                str(fields.get("event", "enter_agent")),
                str(fields.get("event_key", "")),
            )
        except UnknownEmployeeError:
            return _problem(HTTPStatus.NOT_FOUND, "没有这位员工")
        if fields.get("wait"):
            delivering.join()
        return jsonify(ok=True), HTTPStatus.ACCEPTED

    @routes.get("/sim/conversations/<user_id>")
    def conversation(user_id: str) -> JsonAnswer:
        employee = corp.employee(user_id)
        if employee is None:
            return _problem(HTTPStatus.NOT_FOUND, "没有这位员工")
        wait_s = min(request.args.get("wait_s", 0.0, type=float), MAX_WAIT_S)
        found = conversations.messages(employee.user_id, _int_arg("after"), wait_s=wait_s)
        return jsonify(messages=[dataclasses.asdict(m) for m in found])

    @routes.get("/sim/media/<media_id>")
    def media(media_id: str) -> JsonAnswer:
        try:
            found = simulator.media.get(media_id, "image")
        except MediaError:
            return _problem(HTTPStatus.NOT_FOUND, "图片不在了")
        kind = "image/png" if found.content.startswith(b"\x89PNG") else "image/jpeg"
        answer = send_file(io.BytesIO(found.content), mimetype=kind, max_age=3600)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    @routes.get("/sim/log")
    def log() -> Response:
        found = conversations.since(_int_arg("after"))
        return jsonify(lines=[dataclasses.asdict(e) for e in found if isinstance(e, LogLine)])

    @routes.get("/sim/stream")
    def stream() -> Response:
        after = request.headers.get("Last-Event-ID", type=int) or _int_arg("after")
        return Response(
            _stream(simulator, after),
            mimetype="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    @routes.post("/sim/verify")
    def verify() -> Response:
        return jsonify(dataclasses.asdict(simulator.verify_url()))

    @routes.post("/sim/token/expire")
    def expire_token() -> Response:
        simulator.tokens.expire_now()
        return jsonify(ok=True)

    _fault_routes(routes, simulator)
    return routes


def _fault_routes(routes: Blueprint, simulator: Simulator) -> None:
    """Everything that makes the service misbehave."""

    @routes.get("/sim/faults")
    def faults() -> Response:
        rules = [dataclasses.asdict(rule) for rule in simulator.faults.rules]
        return jsonify(rules=rules, hits=simulator.faults.hits)

    @routes.post("/sim/faults")
    def add_fault() -> JsonAnswer:
        fields = _fields()
        known = {field.name for field in dataclasses.fields(Fault)}
        try:
            fault = Fault(**{name: value for name, value in fields.items() if name in known})
            simulator.faults.add(fault)
        except (FaultError, TypeError) as error:
            return _problem(HTTPStatus.BAD_REQUEST, f"没有加上：{error}")
        return faults()

    @routes.delete("/sim/faults")
    def clear_faults() -> Response:
        simulator.faults.clear()
        return faults()

    @routes.get("/sim/trusted-ips")
    def trusted() -> Response:
        ips = simulator.trusted_ips
        return jsonify(ips=None if ips is None else sorted(ips))

    @routes.post("/sim/trusted-ips")
    def trust() -> JsonAnswer:
        ips = _fields().get("ips")
        if ips is not None and not (
            isinstance(ips, list) and all(isinstance(ip, str) for ip in ips)
        ):
            return _problem(HTTPStatus.BAD_REQUEST, "需要 JSON：{ips: [地址, …]} 或 {ips: null}")
        simulator.trusted_ips = None if ips is None else frozenset(ips)
        return trusted()

    @routes.post("/sim/approvals")
    def approvals() -> JsonAnswer:
        count = _fields().get("count", 2)
        if not isinstance(count, int) or not 1 <= count <= MAX_APPROVALS:
            return _problem(HTTPStatus.BAD_REQUEST, f"count 是 1 到 {MAX_APPROVALS}")
        for delivering in simulator.approvals(count):
            delivering.join()
        return jsonify(ok=True)

    @routes.post("/sim/press")
    def press() -> JsonAnswer:
        fields = {name: str(_fields().get(name, "")) for name in ("user", "msg_id", "card", "key")}
        try:
            simulator.press_button(
                fields["user"], fields["msg_id"], fields["card"], fields["key"]
            ).join()
        except UnknownEmployeeError:
            return _problem(HTTPStatus.NOT_FOUND, "没有这位员工")
        except ValueError:
            return _problem(HTTPStatus.BAD_REQUEST, "card 不是 JSON 对象")
        return jsonify(ok=True), HTTPStatus.ACCEPTED

    @routes.get("/sim/pathological")
    def pathological_names() -> Response:
        cases = pathological.CASES.items()
        return jsonify(cases=[{"name": name, "title": case.title} for name, case in cases])

    @routes.post("/sim/pathological")
    def try_pathological() -> JsonAnswer:
        name = str(_fields().get("name", ""))
        if name not in pathological.CASES:
            return _problem(HTTPStatus.NOT_FOUND, "没有这种请求")
        verdict = pathological.try_case(name, simulator.caller, simulator.corp)
        simulator.conversations.log(
            "out", f"异常请求：{verdict.title}", f"HTTP {verdict.status}", ok=verdict.ok
        )
        return jsonify(**dataclasses.asdict(verdict), ok=verdict.ok)


def _stream(simulator: Simulator, after: int) -> Iterator[str]:
    """Server-sent events without end; a comment keeps an idle connection alive."""
    yield f"retry: 1000\nevent: boot\ndata: {json.dumps(simulator.boot_id)}\n\n"
    while True:
        events = simulator.conversations.since(after, wait_s=KEEP_ALIVE_S)
        if not events:
            yield ": still here\n\n"
        for event in events:
            after = event.seq
            data = json.dumps(dataclasses.asdict(event), ensure_ascii=False)
            yield f"id: {event.seq}\nevent: {_EVENT_NAMES[type(event)]}\ndata: {data}\n\n"
