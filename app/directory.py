"""Which departments a member belongs to: asked of WeCom once an hour, remembered in Redis.

Owns the look-up and what its failures mean. Knows no rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import redis

from app.access import DepartmentsOf
from app.log import fields
from app.settings import Settings
from app.store.gate import DepartmentCache
from app.store.token_cache import RedisTokenCache
from app.wecom.access_token import AccessToken
from app.wecom.client import TokenFetcher, WeComClient
from app.wecom.errors import ApiError, WeComError

logger = logging.getLogger(__name__)

LOOK_UP_TIMEOUT_S = 1.5
"""The callback that waits for it has 5 s in all, gettoken may come first."""


class Directory:
    """Departments by member; ``ask`` raises ``WeComError``."""

    def __init__(self, ask: Callable[[str], frozenset[str]], cache: DepartmentCache) -> None:
        self._ask = ask
        self._cache = cache

    def departments_of(self, user: str) -> frozenset[str] | None:
        """Department ids; None when WeCom cannot be asked now. Raises ``redis.RedisError``."""
        known = self._cache.get(user)
        if known is not None:
            return known
        try:
            found = self._ask(user)
        except WeComError as error:
            logger.warning(
                "departments not found out",
                extra=fields(error=type(error).__name__, errcode=error.errcode),
            )
            if not (isinstance(error, ApiError) and error.action == "give_up"):
                return None
            found = frozenset()  # no such member
        self._cache.put(user, found)
        return found


def departments_of(settings: Settings, client: redis.Redis) -> DepartmentsOf:
    """The look-up of an installation; opens no connection before it is first asked."""
    corp_id, agent_id = settings.wecom_corp_id, settings.wecom_agent_id
    api, secret = settings.wecom_api_base, settings.wecom_corp_secret
    fetch = TokenFetcher(api, corp_id, secret, LOOK_UP_TIMEOUT_S)
    tokens = AccessToken(corp_id, agent_id, fetch, RedisTokenCache(client))
    wecom = WeComClient(api, corp_id, agent_id, secret, tokens, LOOK_UP_TIMEOUT_S)
    return Directory(wecom.departments_of, DepartmentCache(client, corp_id)).departments_of
