"""What a container is asked every few seconds: does this process do its work?

Owns the check of each role. The web check is a signed URL verification over HTTP, as WeCom sends
it; the others need a fresh heartbeat of a process on this very host. Knows nothing of Docker.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
import xml.etree.ElementTree as ElementTree

import redis
import requests

from app.callback import PATH
from app.settings import Settings
from app.store.presence import Role, reports
from app.store.server import connect
from app.wecom.crypto import WeComCrypto

TIMEOUT_S = 5.0


def check(role: Role, settings: Settings) -> str:
    """ "" when the process of ``role`` on this host works, else what is wrong, for people."""
    if role == "web":
        return verify_callback(settings, local_callback_url(settings))
    try:
        with connect(settings.redis_url, timeout_s=TIMEOUT_S) as client:
            here = [r for r in reports(client) if r.role == role and r.host == socket.gethostname()]
    except redis.RedisError as error:
        return f"Redis 没有回答（{type(error).__name__}）"
    return "" if here else f"本机没有 {role} 进程的心跳：还在启动，或者已经停了"


def local_callback_url(settings: Settings) -> str:
    """Where a gateway of this host with these settings takes callbacks."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"http://{host}:{settings.port}{PATH}"


def verify_callback(settings: Settings, url: str) -> str:
    """Send the URL verification WeCom would send to ``url``; "" when it is answered rightly."""
    crypto = WeComCrypto(
        settings.wecom_token, settings.wecom_encoding_aes_key, settings.wecom_corp_id
    )
    plain, nonce, timestamp = secrets.token_hex(8), secrets.token_hex(4), str(int(time.time()))
    sealed = ElementTree.fromstring(crypto.encrypt(plain, nonce, timestamp))
    query = {
        "msg_signature": sealed.findtext("MsgSignature") or "",
        "timestamp": timestamp,
        "nonce": nonce,
        "echostr": sealed.findtext("Encrypt") or "",
    }
    try:
        with requests.Session() as session:
            session.trust_env = "127.0.0.1" not in url
            answer = session.get(url, params=query, timeout=TIMEOUT_S, allow_redirects=False)
    except requests.RequestException as error:
        return f"{url} 没有回答（{type(error).__name__}）"
    if answer.status_code != 200 or answer.text != plain:
        return f"{url} 回答了 {answer.status_code}，不是解密后的 echostr"
    return ""


def main(role: Role, settings: Settings) -> int:
    """Print one line of JSON; 0 healthy, 1 not."""
    problem = check(role, settings)
    print(json.dumps({"role": role, "ok": not problem, "problem": problem}, ensure_ascii=False))
    return 1 if problem else 0
