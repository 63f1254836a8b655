"""The real turn process around the fake agent: ``python -m tests.workers.fake_turn_worker``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from app import log
from app.settings import Settings, load
from app.store.server import connect
from tests.workers.fakes import FakeAgent
from workers.processes import serve_turns
from workers.turn import TurnLimits

LEASE_TTL_S = float(os.environ.get("TEST_LEASE_TTL_S", "1.5"))


@contextlib.contextmanager
def _build(settings: Settings) -> Iterator[FakeAgent]:
    with connect(settings.redis_url) as client:
        yield FakeAgent(client)


if __name__ == "__main__":
    log.configure()
    sys.exit(serve_turns(load(os.environ), _build, TurnLimits(lease_ttl_s=LEASE_TTL_S)))
