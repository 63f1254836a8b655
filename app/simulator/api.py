"""The service's API over HTTP: every /cgi-bin route, behind faults, addresses and limits.

Owns the order of the checks and the HTTP form. Answers are HTTP 200 with errcode and errmsg, as the
real ones are; a fault may have it otherwise.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping

from flask import Blueprint, Response, jsonify, request, send_file

from app.simulator.errcodes import errmsg_of
from app.simulator.faults import Fault
from app.simulator.media import MediaError
from app.simulator.send import SendAnswer
from app.simulator.service import Simulator
from app.simulator.tokens import TokenVerdict

Handler = Callable[[], Response]
CALLBACK_ADDRESSES = ("127.0.0.1",)
"""Where our callbacks come from; the real service lists many."""


def error(errcode: int, errmsg: str = "") -> Response:
    """An error in the service's form: reason, hint, the caller's address and a link."""
    hint = f"[{int(time.time())}_{secrets.token_hex(12)}]"
    text = (
        f"{errmsg or errmsg_of(errcode)}, hint: {hint}, from ip: {request.remote_addr}, "
        f"more info at https://open.work.weixin.qq.com/devtool/query?e={errcode}"
    )
    return jsonify(errcode=errcode, errmsg=text)


def blueprint(simulator: Simulator) -> Blueprint:
    """The /cgi-bin routes of ``simulator``."""
    routes = Blueprint("api", __name__, url_prefix="/cgi-bin")
    send = simulator.message_send

    def serve(api: str, handle: Handler) -> Response:
        return _Call(simulator, api).answer(handle)

    @routes.get("/gettoken")
    def gettoken() -> Response:
        return serve("gettoken", lambda: _gettoken(simulator))

    def posting(api: str, call: Callable[[bytes], SendAnswer]) -> None:
        def view() -> Response:
            return serve(api, lambda: _sent(call(request.get_data())))

        routes.add_url_rule(f"/{api}", api.replace("/", "_"), view, methods=["POST"])

    posting("message/send", send.send)
    posting("message/recall", send.recall)
    posting("message/update_template_card", send.update_card)

    @routes.post("/media/upload")
    def upload() -> Response:
        return serve("media/upload", lambda: _upload(simulator))

    @routes.get("/media/get")
    def get_media() -> Response:
        return serve("media/get", lambda: _get_media(simulator))

    @routes.get("/user/get")
    def user() -> Response:
        return serve("user/get", lambda: _user(simulator))

    @routes.get("/department/list")
    def departments() -> Response:
        return serve("department/list", lambda: _departments(simulator))

    for name in ("getcallbackip", "get_api_domain_ip"):
        routes.add_url_rule(
            f"/{name}",
            name,
            lambda name=name: serve(
                name, lambda: jsonify(errcode=0, errmsg="ok", ip_list=CALLBACK_ADDRESSES)
            ),
        )
    return routes


class _Call:
    """One call of ``api``: its fault, then the checks in order, then the handler."""

    def __init__(self, simulator: Simulator, api: str) -> None:
        self._simulator = simulator
        self._api = api

    def answer(self, handle: Handler) -> Response:
        """The answer, logged; may never reach the caller, if the fault says so."""
        fault = self._simulator.faults.take(self._api)
        if fault is not None:
            self._log(f"故障：{fault.kind} {fault.value:g}", ok=False)
            early = _instead(fault)
            if early is not None:
                return early
        with self._simulator.throttle.running() as within:
            answer = self._refusal(within) or handle()
        self._log_answer(answer)
        if fault is not None and fault.kind == "late":
            time.sleep(fault.value)
        if fault is not None and fault.kind == "reset_after":
            return _reset()
        return answer

    def _refusal(self, within: bool) -> Response | None:
        simulator = self._simulator
        if not within:
            return error(45033)
        if not simulator.trusts(request.remote_addr or ""):
            return error(60020)
        if self._api != "gettoken":
            verdict = simulator.tokens.check(request.args.get("access_token", ""))
            if verdict is not TokenVerdict.OK:
                return error(verdict.value)
        return error(45009) if simulator.throttle.refuses_call(self._api) else None

    def _log_answer(self, answer: Response) -> None:
        if answer.mimetype != "application/json":
            self._log(f"{answer.content_length or 0} 字节", ok=True)
            return
        fields = answer.get_json()
        detail = f"errcode {fields['errcode']}"
        if request.content_length:
            detail += f"，{request.content_length} 字节"
        if fields.get("invaliduser"):
            detail += f"，invaliduser {fields['invaliduser']}"
        self._log(detail, ok=not fields["errcode"] and not fields.get("invaliduser"))

    def _log(self, detail: str, *, ok: bool) -> None:
        self._simulator.conversations.log("in", self._api, detail, ok=ok)


def _gettoken(simulator: Simulator) -> Response:
    corp_id = request.args.get("corpid", "")
    corp_secret = request.args.get("corpsecret", "")
    if not corp_id:
        return error(41002)
    if not corp_secret:
        return error(41004)
    if corp_id != simulator.corp.corp_id:
        return error(40013)
    if not secrets.compare_digest(corp_secret.encode(), simulator.corp.corp_secret.encode()):
        return error(40001)
    token = simulator.tokens.issue()
    return jsonify(
        errcode=0, errmsg="ok", access_token=token.access_token, expires_in=token.expires_in_s
    )


def _sent(answer: SendAnswer) -> Response:
    if answer.errcode:
        return error(answer.errcode, answer.errmsg)
    named = {
        "msgid": answer.msgid,
        "invaliduser": answer.invaliduser,
        "response_code": answer.response_code,
    }
    given: Mapping[str, str] = {name: value for name, value in named.items() if value}
    return jsonify(errcode=0, errmsg=answer.errmsg, **given)


def _upload(simulator: Simulator) -> Response:
    file = request.files.get("media")
    if file is None:
        return error(40058)
    kind = request.args.get("type", "")
    try:
        media = simulator.media.upload(kind, file.filename or "media", file.read())
    except MediaError as refused:
        return error(refused.errcode, refused.errmsg)
    return jsonify(
        errcode=0,
        errmsg="ok",
        type=media.kind,
        media_id=media.media_id,
        created_at=str(media.created_at_s),
    )


def _get_media(simulator: Simulator) -> Response:
    try:
        media = simulator.media.get(request.args.get("media_id", ""))
    except MediaError as refused:
        return error(refused.errcode, refused.errmsg)
    return send_file(
        io.BytesIO(media.content),
        mimetype="application/octet-stream",
        as_attachment=True,
        download_name=media.filename,
    )


def _user(simulator: Simulator) -> Response:
    employee = simulator.corp.employee(request.args.get("userid", ""))
    if employee is None:
        return error(60111)
    department = simulator.corp.departments[employee.department]
    return jsonify(
        errcode=0,
        errmsg="ok",
        userid=employee.user_id,
        name=employee.name,
        department=[department],
        order=[0],
        is_leader_in_dept=[0],
        main_department=department,
        status=1,
    )


def _departments(simulator: Simulator) -> Response:
    root = {"id": 1, "name": simulator.corp.name, "parentid": 0, "order": 1}
    others = [
        {"id": number, "name": name, "parentid": 1, "order": number}
        for name, number in simulator.corp.departments.items()
    ]
    return jsonify(errcode=0, errmsg="ok", department=[root, *others])


def _instead(fault: Fault) -> Response | None:
    """The end of a call that is not carried out; None when it goes on (after a wait or not)."""
    if fault.kind == "slow":
        time.sleep(fault.value)
    if fault.kind == "errcode":
        return error(int(fault.value))
    if fault.kind == "http":
        page = f"<html><body><h1>{fault.value:g}</h1></body></html>"
        return Response(page, int(fault.value), mimetype="text/html")
    return _reset() if fault.kind == "reset" else None


def _reset() -> Response:
    """An answer that never comes: the caller sees its connection reset."""
    connection = request.environ["werkzeug.socket"]

    def cut() -> Iterator[bytes]:
        # Linger 0 makes the end of a socket a reset. The descriptor stays valid for the server's
        # own clean-up: it becomes a pair whose other end is gone.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            ours, other = socket.socketpair()
            with ours:
                other.close()
                os.dup2(ours.fileno(), connection.fileno())
        raise ConnectionAbortedError
        yield b""

    return Response(cut())
