"""The real turn process around the fake agent: ``python -m tests.workers.fake_turn_worker``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator

from app import log
from app.settings import Settings, load
from app.store.server import connect
from tests.workers.fakes import FakeAgent
from workers.processes import LoadedAgent, serve_turns
from workers.turn import TurnLimits

FACTS = json.loads(os.environ.get("TEST_ENGINE_FACTS", '{"model": "fake"}'))
LEASE_TTL_S = float(os.environ.get("TEST_LEASE_TTL_S", "1.5"))


@contextlib.contextmanager
def _build(settings: Settings) -> Iterator[LoadedAgent]:
    with connect(settings.redis_url) as client:
        yield LoadedAgent(FakeAgent(client), lambda: FACTS)


if __name__ == "__main__":
    log.configure()
    sys.exit(serve_turns(load(os.environ), _build, TurnLimits(lease_ttl_s=LEASE_TTL_S)))
