"""HTTP to our own processes: never through a proxy that the environment names."""

from __future__ import annotations

import requests


def local_session() -> requests.Session:
    """A session for addresses on this machine."""
    session = requests.Session()
    session.trust_env = False
    return session
