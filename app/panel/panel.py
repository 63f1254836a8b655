"""What the pages of the admin page need, put together once.

Owns the record and the page's address of a tab. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis

from app.access import AccessPolicy
from app.admin import AdminApi
from app.doctor.findings import Finding
from app.panel.door import Door
from app.panel.self_check import SelfCheck
from app.settings import Settings
from app.store.app_state import AppState
from app.store.outbox import Outbox
from app.store.recent import RecentTurns
from app.store.unsent import Unsent

TABS = (
    ("doctor", "自检"),
    ("turns", "回合"),
    ("queue", "队列"),
    ("outbox", "发件箱"),
    ("users", "用户与权限"),
    ("engine", "引擎"),
    ("test", "测试"),
)


@dataclass(frozen=True)
class Panel:
    """``deliver`` is a hint to the sender that a user's outbox got something."""

    settings: Settings
    client: redis.Redis
    api: AdminApi
    policy: AccessPolicy
    deliver: Callable[[str], object]
    door: Door
    self_check: SelfCheck
    app_state: AppState
    turns: RecentTurns
    outbox: Outbox
    unsent: Unsent

    @classmethod
    def of(
        cls,
        settings: Settings,
        client: redis.Redis,
        api: AdminApi,
        policy: AccessPolicy,
        deliver: Callable[[str], object],
        examine: Callable[[], Sequence[Finding]],
    ) -> Panel:
        """Put together what the pages need; opens no connection."""
        return cls(
            settings,
            client,
            api,
            policy,
            deliver,
            door=Door(client, settings.admin_token),
            self_check=SelfCheck(client, examine),
            app_state=AppState(client),
            turns=RecentTurns(client),
            outbox=Outbox(client),
            unsent=Unsent(client),
        )

    @property
    def app(self) -> tuple[str, str]:
        """Corp id and agent id of the one app this gateway speaks for."""
        return self.settings.wecom_corp_id, self.settings.wecom_agent_id

    def held_since_ms(self) -> int:
        """When an administrator began to hold the sending, 0 when none does."""
        return self.app_state.held_since_ms(*self.app)
