"""The gateway: receives, remembers and speaks WeCom.

Owns the composition of the web application. Importing this package is cheap; Flask is imported
by ``create_app`` only, and torch never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from celery import Celery
    from flask import Flask

    from app.access import AccessPolicy
    from app.intake import Intake
    from app.metrics import Metrics
    from app.settings import Settings

MAX_BODY_BYTES = 256 * 1024
_REDIS_TIMEOUT_S = 1.0
"""Below a third of WeCom's 5 s, so that a 503 still reaches it when Redis is gone."""


def create_app(
    settings: Settings,
    redis_client: redis.Redis | None = None,
    celery_app: Celery | None = None,
    metrics: Metrics | None = None,
) -> Flask:
    """The WSGI application. Opens no connection; the clients connect at their first use.

    Raises ``EncodingAESKeyError`` for a key that cannot work and ``SettingsError`` for a broken
    access file.
    """
    from flask import Flask

    from app import access, callback, ops
    from app.boundary import register
    from app.directory import departments_of
    from app.dispatch import Dispatcher, make_celery
    from app.intake import Intake, IntakeLimits
    from app.store.server import connect
    from app.token_guard import TokenGuard
    from app.wecom.crypto import WeComCrypto

    client = redis_client or connect(settings.redis_url, timeout_s=_REDIS_TIMEOUT_S)
    dispatcher = Dispatcher(celery_app or make_celery(settings.redis_url))
    policy = access.load(
        settings.allowed_users,
        settings.allowed_departments,
        settings.admins,
        settings.access_file,
    )
    intake = Intake(
        client,
        dispatcher.wake,
        dispatcher.deliver,
        policy,
        IntakeLimits(
            settings.user_rate_per_min,
            settings.max_queued,
            ended_expiry_s=settings.ended_expiry_s,
        ),
        departments_of(settings, client),
        metrics,
    )
    crypto = WeComCrypto(
        settings.wecom_token, settings.wecom_encoding_aes_key, settings.wecom_corp_id
    )
    receiver = callback.CallbackReceiver(crypto, settings.wecom_agent_id, intake, metrics=metrics)

    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.strict_slashes = False
    app.register_blueprint(callback.blueprint(receiver))
    _register_admin(app, settings, client, intake, policy, dispatcher.deliver)
    guard = TokenGuard(client, settings.metrics_token, settings.admin_token)
    app.register_blueprint(
        ops.blueprint(client, guard, settings.wecom_corp_id, settings.wecom_agent_id)
    )
    register(app)
    return app


def _register_admin(
    app: Flask,
    settings: Settings,
    client: redis.Redis,
    intake: Intake,
    policy: AccessPolicy,
    deliver: Callable[[str], object],
) -> None:
    """The admin API and the admin page."""
    from app import admin, doctor
    from app.metrics import totals
    from app.panel import pages
    from app.panel.panel import Panel
    from app.store.app_state import AppState
    from app.store.gate import Gate
    from app.store.turns import Turns
    from app.token_guard import TokenGuard

    api = admin.AdminApi(
        admin_token=settings.admin_token,
        corp_id=settings.wecom_corp_id,
        agent_id=settings.wecom_agent_id,
        intake=intake,
        turns=Turns(client),
        app_state=AppState(client),
        counts=lambda: totals(client),
        gate=Gate(client),
        guard=TokenGuard(client, settings.admin_token),
    )
    app.register_blueprint(admin.blueprint(api))
    panel = Panel.of(settings, client, api, policy, deliver, lambda: doctor.examine(settings))
    app.register_blueprint(pages.blueprint(panel))
