"""The WeCom API: gettoken, message/send, media/upload and user/get, with every outcome typed.

Owns HTTP to ``api_base``. Does not know the store, queues or retry schedules: it tells the caller
what happened and what may be done. Secrets and tokens travel in URLs here, so no exception of
requests, whose text holds the URL, leaves this module.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import requests
import urllib3.exceptions

from app.wecom.access_token import FetchedToken
from app.wecom.errors import ApiError, SendUnknownError, TransportError, action_for
from app.wecom.xml import strip_controls

DUPLICATE_CHECK_INTERVAL_S: Final = 4 * 3600
_CONNECT_TIMEOUT_S: Final = 5.0
_T = TypeVar("_T")


class TokenSource(Protocol):
    """Where the client gets its access token from; see ``AccessToken``."""

    def get(self) -> str:
        """A token believed to be valid."""

    def discard(self, failed: str) -> None:
        """Forget the token that the API refused."""


@dataclass(frozen=True)
class SendResult:
    """A message that WeCom took for its receiver."""

    errcode: int
    errmsg: str
    msgid: str
    invaliduser: str


class TokenFetcher:
    """Calls gettoken. Kept apart from the client so that a ``TokenSource`` can own it."""

    def __init__(
        self, api_base: str, corp_id: str, corp_secret: str, timeout_s: float = 5.0
    ) -> None:
        self._url = f"{api_base}/cgi-bin/gettoken"
        self._params = {"corpid": corp_id, "corpsecret": corp_secret}
        self._timeout_s = timeout_s

    def __call__(self) -> FetchedToken:
        """One gettoken. Raises ``ApiError`` (40001: the secret is wrong) or ``TransportError``."""
        try:
            response = requests.get(
                self._url,
                params=self._params,
                timeout=(min(_CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise TransportError(f"gettoken: {type(error).__name__}") from None
        answer = _answer(response, "gettoken")
        if answer is None:
            raise TransportError("gettoken: the answer is not JSON")
        errcode, errmsg = _verdict(answer)
        if errcode is None:
            raise TransportError("gettoken: errcode is not a number")
        if errcode:
            raise ApiError(errcode, errmsg, action_for(errcode, on_gettoken=True))
        value, expires_in_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(value, str) or not value or not isinstance(expires_in_s, int):
            raise TransportError("gettoken: the answer holds no access_token")
        return FetchedToken(value, expires_in_s)


class WeComClient:
    """Sends messages of one app."""

    def __init__(
        self,
        api_base: str,
        corp_id: str,
        agent_id: str,
        corp_secret: str,
        token_source: TokenSource | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        """``token_source`` None: every send fetches its own token (for a single test message)."""
        self._url = f"{api_base}/cgi-bin/message/send"
        self._upload_url = f"{api_base}/cgi-bin/media/upload"
        self._user_url = f"{api_base}/cgi-bin/user/get"
        self._agent_id = agent_id
        fetch = TokenFetcher(api_base, corp_id, corp_secret, timeout_s)
        self._token_source = token_source or _Uncached(fetch)
        self._timeout_s = timeout_s
        self._session = requests.Session()

    def send_text(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        """Send one text part to one member.

        ``duplicate_check`` lets WeCom drop a request identical to one of the last four hours: for
        resending after ``SendUnknownError``. The request is the same bytes for the same arguments.

        Raises ``ApiError`` (also for errcode 0 when WeCom names the receiver invalid),
        ``TransportError`` when the message surely was not taken, ``SendUnknownError`` otherwise.
        """
        return self._send("text", user, {"content": strip_controls(text)}, duplicate_check)

    def send_markdown(self, user: str, text: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``send_text``, as a message of type markdown: not shown in the WeChat plugin."""
        return self._send("markdown", user, {"content": strip_controls(text)}, duplicate_check)

    def send_image(self, user: str, media_id: str, *, duplicate_check: bool = False) -> SendResult:
        """As ``send_text``, for an image uploaded before. ``ApiError`` 40007: it is gone there."""
        return self._send("image", user, {"media_id": media_id}, duplicate_check)

    def upload_image(self, filename: str, png: bytes) -> str:
        """Upload a PNG of at most 10 MB; its media_id, good for three days.

        Raises ``ApiError`` or ``TransportError``: an upload that nobody names does nothing, so it
        may always be repeated.
        """
        return self._with_token(lambda token: self._upload(filename, png, token))

    def _send(
        self, kind: str, user: str, fields: dict[str, str], duplicate_check: bool
    ) -> SendResult:
        payload: dict[str, Any] = {
            "touser": user,
            "msgtype": kind,
            "agentid": int(self._agent_id) if self._agent_id.isdecimal() else self._agent_id,
            kind: fields,
            "safe": 0,
        }
        if duplicate_check:
            payload["enable_duplicate_check"] = 1
            payload["duplicate_check_interval"] = DUPLICATE_CHECK_INTERVAL_S
        # Real UTF-8: WeCom refuses \uxxxx escapes of some characters (40033).
        body = json.dumps(payload, ensure_ascii=False).encode()
        return self._with_token(lambda token: self._post(body, token))

    def departments_of(self, user: str) -> frozenset[str]:
        """Ids of the departments of a member.

        Raises ``ApiError`` (``give_up``: no such member) or ``TransportError``.
        """
        return self._with_token(lambda token: self._get_departments(user, token))

    def close(self) -> None:
        """Close the kept connections."""
        self._session.close()

    def __enter__(self) -> WeComClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with_token(self, call: Callable[[str], _T]) -> _T:
        """``call`` with a token, and once more with a fresh one when that was refused."""
        token = self._token_source.get()
        try:
            return call(token)
        except ApiError as error:
            if error.action != "refresh_token":
                raise
        self._token_source.discard(token)
        try:
            return call(self._token_source.get())
        except ApiError as error:
            if error.action != "refresh_token":
                raise
            # A fresh token was refused as well: never a second refresh in one call.
            raise ApiError(error.errcode or 0, error.errmsg, "retry") from None

    def _get_departments(self, user: str, token: str) -> frozenset[str]:
        try:
            response = self._session.get(
                self._user_url,
                params={"access_token": token, "userid": user},
                timeout=(min(_CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise TransportError(f"user/get: {type(error).__name__}") from None
        answer = _granted(response, "user/get")
        departments = answer.get("department")
        if not isinstance(departments, list):
            raise TransportError("user/get: the answer holds no department")
        return frozenset(str(department) for department in departments)

    def _upload(self, filename: str, png: bytes, token: str) -> str:
        try:
            response = self._session.post(
                self._upload_url,
                params={"access_token": token, "type": "image"},
                files={"media": (filename, png, "image/png")},
                timeout=(min(_CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise TransportError(f"media/upload: {type(error).__name__}") from None
        answer = _granted(response, "media/upload")
        media_id = _names(answer, "media_id")
        if not media_id:
            raise TransportError("media/upload: the answer holds no media_id")
        return media_id

    def _post(self, body: bytes, token: str) -> SendResult:
        try:
            response = self._session.post(
                self._url,
                params={"access_token": token},
                data=body,
                headers={"Content-Type": "application/json; charset=utf-8"},
                timeout=(min(_CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            if _never_left(error):
                raise TransportError(f"message/send: {type(error).__name__}") from None
            raise SendUnknownError(f"message/send: {type(error).__name__}") from None
        answer = _answer(response, "message/send")
        if answer is None:
            raise SendUnknownError("message/send: the answer is not JSON")
        errcode, errmsg = _verdict(answer)
        if errcode is None:
            raise SendUnknownError("message/send: errcode is not a number")
        if errcode:
            raise ApiError(errcode, errmsg, action_for(errcode))
        refused = _names(answer, "invaliduser") or _names(answer, "unlicenseduser")
        if refused:
            raise ApiError(0, f"receiver refused: {refused}", "give_up")
        return SendResult(errcode, errmsg, _names(answer, "msgid"), refused)


class _Uncached:
    def __init__(self, fetch: TokenFetcher) -> None:
        self._fetch = fetch

    def get(self) -> str:
        return self._fetch().value

    def discard(self, failed: str) -> None:
        """Nothing is kept."""


def _never_left(error: requests.RequestException) -> bool:
    """True when the request cannot have reached WeCom: no connection was made."""
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.ProxyError):
        return True
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
        return True
    cause: object = error.args[0] if error.args else None
    cause = getattr(cause, "reason", cause)
    if isinstance(cause, urllib3.exceptions.SSLError):
        return bool(cause.args) and isinstance(cause.args[0], ssl.SSLCertVerificationError)
    return isinstance(
        cause, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
    )


def _answer(response: requests.Response, call: str) -> dict[str, Any] | None:
    """The JSON object of a 200, None when it is none. Raises ``TransportError`` for a non-200."""
    if response.status_code != 200:
        retryable = response.status_code >= 500 or response.status_code in (408, 429)
        raise TransportError(f"{call}: HTTP {response.status_code}", retryable=retryable)
    try:
        answer = json.loads(response.content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _granted(response: requests.Response, call: str) -> dict[str, Any]:
    """The answer to a call that may be repeated. Raises ``ApiError`` or ``TransportError``."""
    answer = _answer(response, call)
    errcode, errmsg = _verdict(answer) if answer is not None else (None, "")
    if answer is None or errcode is None:
        raise TransportError(f"{call}: the answer is not what it should be")
    if errcode:
        raise ApiError(errcode, errmsg, action_for(errcode))
    return answer


def _verdict(answer: dict[str, Any]) -> tuple[int | None, str]:
    errcode = answer.get("errcode", 0)
    return (errcode if isinstance(errcode, int) else None), str(answer.get("errmsg", ""))


def _names(answer: dict[str, Any], name: str) -> str:
    return str(answer.get(name) or "")
