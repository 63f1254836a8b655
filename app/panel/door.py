"""Who may see the admin page: signing in and out, and what every answer of it says to browsers.

Owns the cookies, the limit on logins, the check of every form's token and the security headers.
Knows no tab. Logins are counted by the address of the connection, as bearer tokens are
(``app.token_guard``), but apart from them.
"""

from __future__ import annotations

import logging
import re
import secrets
from http import HTTPStatus

import redis
from flask import Blueprint, Response, g, make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from app.boundary import error_json
from app.log import fields
from app.panel.session import EXPIRY_S, AdminSession, SessionSigner, same
from app.store.admin_sessions import EndedSessions
from app.store.wrong_tokens import WrongTokens
from app.token_guard import network_of

logger = logging.getLogger(__name__)

MOST_WRONG_LOGINS = 5
SESSION_COOKIE = "hutong_admin"
VISITOR_COOKIE = "hutong_login"
"""Random; the login form must carry the same value, so no other site can sign a browser in."""
_VISITOR = re.compile(r"[A-Za-z0-9_-]{32}")
_PATH = "/admin"
_OPEN = frozenset({"panel.entry", "panel.login", "panel.static"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Door:
    """Guards the blueprint it is attached to. ``admin_token`` "" turns the page off."""

    def __init__(self, client: redis.Redis, admin_token: str) -> None:
        self._admin_token = admin_token
        self._signer = SessionSigner(admin_token) if admin_token else None
        self._ended = EndedSessions(client)
        self._wrong = WrongTokens(client)

    def attach(self, routes: Blueprint) -> None:
        """Register the checks and the pages for signing in and out."""
        routes.before_request(self._check)
        routes.after_request(_say_to_browsers)
        routes.add_url_rule("", "entry", self._entry)
        routes.add_url_rule("/login", "login", self._login, methods=["POST"])
        routes.add_url_rule("/logout", "logout", self._logout, methods=["POST"])
        routes.context_processor(lambda: {"form_token": self._form_token()})

    def _check(self) -> AnyResponse | None:
        """404 without a configured token; no page without a session, no deed without its token."""
        if self._signer is None:
            message = "the admin page is off: ADMIN_TOKEN is not set"
            return error_json(HTTPStatus.NOT_FOUND, "not_found", message)
        if request.endpoint == "panel.static":
            return None
        session = self._session(self._signer)
        g.admin_session = session
        if request.endpoint in _OPEN:
            return None
        if session is None:
            if request.method == "GET":
                return redirect(url_for("panel.entry"))
            return refusal(HTTPStatus.FORBIDDEN, "登录已过期或已退出。请重新登录，再做一次。")
        if request.method == "POST" and not self._signer.form_token_matches(
            session, request.form.get("form_token", "")
        ):
            logger.warning("form without its token refused", extra=fields(path=request.path[:200]))
            return refusal(HTTPStatus.FORBIDDEN, "这个表单已失效，什么也没有做。请回到页面再试。")
        return None

    def _session(self, signer: SessionSigner) -> AdminSession | None:
        session = signer.read(request.cookies.get(SESSION_COOKIE, ""))
        return None if session is None or self._ended.has(session.id) else session

    def _form_token(self) -> str:
        session: AdminSession | None = g.get("admin_session")
        return self._signer.form_token(session) if self._signer and session else ""

    def _entry(self) -> AnyResponse:
        if g.admin_session is not None:
            return redirect(url_for("panel.doctor"))
        return self._login_page(HTTPStatus.OK)

    def _login(self) -> AnyResponse:
        visitor = request.cookies.get(VISITOR_COOKIE, "")
        if not visitor or not same(request.form.get("form_token", ""), visitor):
            return self._login_page(HTTPStatus.FORBIDDEN, "这个登录页已失效，请再试一次。")
        network = network_of(request.remote_addr or "")
        wait_s = self._wrong.blocked_s(f"login {network}", MOST_WRONG_LOGINS)
        if wait_s:
            problem = f"错误的次数太多，请 {wait_s} 秒后再试。"
            refused = self._login_page(HTTPStatus.TOO_MANY_REQUESTS, problem)
            refused.headers["Retry-After"] = str(wait_s)
            return refused
        if not same(request.form.get("token", "").strip(), self._admin_token):
            self._wrong.count(f"login {network}")
            logger.warning("admin login refused", extra=fields(address=network))
            return self._login_page(HTTPStatus.FORBIDDEN, "令牌不对。它是网关的 ADMIN_TOKEN。")
        assert self._signer is not None, "_check lets nobody here without one"
        _, cookie = self._signer.new()
        logger.info("admin signed in", extra=fields(address=network))
        response = redirect(url_for("panel.doctor"), HTTPStatus.SEE_OTHER)
        _set_cookie(response, SESSION_COOKIE, cookie, EXPIRY_S)
        response.delete_cookie(VISITOR_COOKIE, path=_PATH)
        return response

    def _logout(self) -> AnyResponse:
        self._ended.end(g.admin_session.id, EXPIRY_S)
        response = redirect(url_for("panel.entry"), HTTPStatus.SEE_OTHER)
        response.delete_cookie(SESSION_COOKIE, path=_PATH)
        return response

    @staticmethod
    def _login_page(status: HTTPStatus, problem: str = "") -> Response:
        visitor = request.cookies.get(VISITOR_COOKIE, "")
        if not _VISITOR.fullmatch(visitor):  # else a second tab would void the first one's form
            visitor = secrets.token_urlsafe(24)
        page = render_template("panel/login.html", problem=problem, visitor=visitor)
        response = make_response(page, status)
        _set_cookie(response, VISITOR_COOKIE, visitor, 3600)
        return response


def refusal(status: HTTPStatus, problem: str) -> Response:
    """A page that says why nothing was done."""
    return make_response(render_template("panel/problem.html", problem=problem), status)


def _set_cookie(response: AnyResponse, name: str, value: str, max_age_s: int) -> None:
    outermost = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip()
    secure = request.is_secure or outermost == "https"
    response.set_cookie(
        name,
        value,
        max_age=max_age_s,
        path=_PATH,
        secure=secure,
        httponly=True,
        samesite="Strict",
    )


def _say_to_browsers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if request.endpoint != "panel.static":
        response.headers["Cache-Control"] = "no-store"
    return response
