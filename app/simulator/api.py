"""The service's API over HTTP: /cgi-bin/gettoken and /cgi-bin/message/send.

Answers are always HTTP 200 with errcode and errmsg, as the real ones are.
"""

from __future__ import annotations

import secrets
import time

from flask import Blueprint, Response, jsonify, request

from app.simulator.service import Simulator
from app.simulator.tokens import TokenVerdict

_VERDICTS = {
    TokenVerdict.MISSING: "access_token missing",
    TokenVerdict.INVALID: "invalid access_token",
    TokenVerdict.EXPIRED: "access_token expired",
}


def _error(errcode: int, reason: str) -> Response:
    hint = f"[{int(time.time())}_{secrets.token_hex(12)}]"
    errmsg = (
        f"{reason}, hint: {hint}, from ip: {request.remote_addr}, more info at "
        f"https://open.work.weixin.qq.com/devtool/query?e={errcode}"
    )
    return jsonify(errcode=errcode, errmsg=errmsg)


def blueprint(simulator: Simulator) -> Blueprint:
    """The /cgi-bin routes of ``simulator``."""
    routes = Blueprint("api", __name__, url_prefix="/cgi-bin")
    conversations = simulator.conversations

    @routes.get("/gettoken")
    def gettoken() -> Response:
        corp_id = request.args.get("corpid", "")
        corp_secret = request.args.get("corpsecret", "")
        if not corp_id:
            answer = _error(41002, "corpid missing")
        elif not corp_secret:
            answer = _error(41004, "corpsecret missing")
        elif corp_id != simulator.corp.corp_id:
            answer = _error(40013, "invalid corpid")
        elif not secrets.compare_digest(corp_secret.encode(), simulator.corp.corp_secret.encode()):
            answer = _error(40001, "invalid credential")
        else:
            token = simulator.tokens.issue()
            conversations.log("in", "gettoken", f"剩余 {token.expires_in_s} 秒", ok=True)
            return jsonify(
                errcode=0,
                errmsg="ok",
                access_token=token.access_token,
                expires_in=token.expires_in_s,
            )
        conversations.log("in", "gettoken", f"errcode {answer.get_json()['errcode']}", ok=False)
        return answer

    @routes.post("/message/send")
    def message_send() -> Response:
        verdict = simulator.tokens.check(request.args.get("access_token", ""))
        if verdict is not TokenVerdict.OK:
            conversations.log("in", "message/send", f"errcode {verdict.value}", ok=False)
            return _error(verdict.value, _VERDICTS[verdict])
        body = request.get_data()
        answer = simulator.message_send.send(body)
        detail = f"errcode {answer.errcode}，{len(body)} 字节"
        if answer.invaliduser:
            detail += f"，invaliduser {answer.invaliduser}"
        good = answer.errcode == 0 and not answer.invaliduser
        conversations.log("in", "message/send", detail, ok=good)
        if answer.errcode:
            return _error(answer.errcode, answer.errmsg)
        fields = {"errcode": 0, "errmsg": answer.errmsg, "msgid": answer.msgid}
        if answer.invaliduser:
            fields["invaliduser"] = answer.invaliduser
        return jsonify(fields)

    return routes
