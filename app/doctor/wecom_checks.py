"""Do the credentials work, does WeCom reach us, do the clocks agree?

Owns the calls to WeCom's API and to our own public URL. Knows nothing of the engine.
No secret is ever part of a finding.
"""

from __future__ import annotations

import email.utils
import socket
import time
from urllib.parse import urlsplit

import requests

from app.callback import PATH
from app.doctor.findings import Finding, fail, ok, skip, warn
from app.doctor.store_checks import live
from app.healthcheck import local_callback_url, verify_callback
from app.settings import Settings
from app.wecom.client import TokenFetcher
from app.wecom.crypto import WeComCrypto
from app.wecom.errors import ApiError, EncodingAESKeyError, TransportError

TIMEOUT_S = 5.0
LARGE_SKEW_S = 60.0
_REQUIRED = (
    "WECOM_CORP_ID",
    "WECOM_AGENT_ID",
    "WECOM_CORP_SECRET",
    "WECOM_TOKEN",
    "WECOM_ENCODING_AES_KEY",
)


def check(settings: Settings) -> list[Finding]:
    """Settings, token, clock, callback."""
    missing = [name for name in _REQUIRED if not getattr(settings, name.lower())]
    if missing:
        remedy = "在企业微信后台找到它们，写进 .env（每个从哪里来见 deploy/.env.example）"
        return [fail("wecom_settings", f"没有设置 {'、'.join(missing)}", remedy)]
    try:
        WeComCrypto(settings.wecom_token, settings.wecom_encoding_aes_key, settings.wecom_corp_id)
    except EncodingAESKeyError:
        remedy = "从后台「接收消息」整行复制 EncodingAESKey，一共 43 位"
        return [fail("wecom_settings", "WECOM_ENCODING_AES_KEY 不是有效的密钥", remedy)]
    return [
        ok("wecom_settings", "企业微信的设置齐全"),
        _token(settings),
        _clock(settings),
        _callback(settings),
    ]


def _token(settings: Settings) -> Finding:
    fetch = TokenFetcher(
        settings.wecom_api_base, settings.wecom_corp_id, settings.wecom_corp_secret, TIMEOUT_S
    )
    try:
        fetch()
    except ApiError as error:
        return fail("wecom_token", f"取不到 access_token（errcode {error.errcode}）", _mend(error))
    except TransportError as error:
        host = urlsplit(settings.wecom_api_base).netloc
        remedy = f"检查本机到 {host} 的网络、代理（HTTPS_PROXY）和 WECOM_API_BASE"
        return fail("wecom_token", f"企业微信 API 没有回答（{error}）", remedy)
    return ok("wecom_token", "取到了 access_token：企业 ID 和 Secret 是对的")


def _mend(error: ApiError) -> str:
    if error.errcode in (40001, 42001):
        return "WECOM_CORP_SECRET 不对：从后台这个自建应用的页面重新复制 Secret"
    if error.errcode == 40013:
        return "WECOM_CORP_ID 不对：见后台「我的企业 → 企业信息」"
    if error.errcode == 60020:
        ip = error.egress_ip or "本机的出口 IP（错误信息里有）"
        return f"在后台这个应用的「企业可信IP」里加上 {ip}"
    return f"按错误码查企业微信文档；它说：{error.errmsg[:120]}"


def _clock(settings: Settings) -> Finding:
    try:
        answer = requests.head(settings.wecom_api_base, timeout=TIMEOUT_S, allow_redirects=False)
        theirs = email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (requests.RequestException, KeyError, TypeError, ValueError):
        return skip("clock", "没能和企业微信对时（没有拿到它的时间）")
    off_s = time.time() - theirs
    if abs(off_s) <= LARGE_SKEW_S:
        return ok("clock", f"时钟和企业微信相差 {abs(off_s):.0f} 秒")
    side = "快" if off_s > 0 else "慢"
    return fail(
        "clock",
        f"本机时钟{side}了 {abs(off_s):.0f} 秒：签名会被当成过期，令牌会提前失效",
        "打开时间同步（timedatectl set-ntp true，或 chronyd），容器随主机",
    )


def _callback(settings: Settings) -> Finding:
    if not settings.public_url:
        problem = verify_callback(settings, local_callback_url(settings))
        if problem and _gateway_elsewhere(settings):
            return skip("callback", "网关在别的容器或机器里：在那里运行同样的命令看回调")
        if problem:
            remedy = "启动网关（python -m app web）；它要和这里用同一份 .env"
            return fail("callback", f"本机的回调地址没有通过验证：{problem}", remedy)
        return warn(
            "callback",
            "本机的回调地址通过了验证；公网地址没有设置，没有试",
            "设置 HUTONG_PUBLIC_URL=https://你的域名，再运行一次，就能从公网那一头验证",
        )
    url = settings.public_url + PATH
    problem = verify_callback(settings, url)
    if not problem:
        return ok("callback", f"{url} 通过了验证，企业微信能到达这里")
    return fail("callback", f"公网回调地址没有通过验证：{problem}", _reach(problem))


def _gateway_elsewhere(settings: Settings) -> bool:
    """Whether all gateways that live are of other hosts; a container is one."""
    hosts = {report.host for report in live(settings) if report.role == "web"}
    return bool(hosts) and socket.gethostname() not in hosts


def _reach(problem: str) -> str:
    if "回答了 502" in problem or "回答了 504" in problem:
        return "反向代理连不到网关：检查它转发到的地址和端口，容器里不能写 127.0.0.1"
    if "回答了 404" in problem:
        return f"路径不对：后台和代理里都应是 {PATH}，代理不要去掉前缀"
    if "回答了 403" in problem:
        return "Token 或 EncodingAESKey 和网关用的不一样：两处从同一份 .env 读，改后重启网关"
    if "没有回答" in problem:
        return "域名、端口、证书、防火墙或内网穿透的隧道：从外网 curl 这个地址，看断在哪里"
    return "看网关日志里的 callback refused；后台里的地址要和 HUTONG_PUBLIC_URL 一致"
