"""The Celery worker around a Redis that goes away at the worst moment."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from app.dispatch import Dispatcher, make_celery
from app.store.server import RedisServer, connect
from tests.workers.fakes import wait_for

ROOT = Path(__file__).parents[2]
BUSY_S = 1.5
WORKER = f"""
import sys, time, redis
from app.dispatch import SEND_QUEUE
from app.store.server import connect
from workers.celery_app import make_app, serve
from workers.tasks import register_deliver

client = connect(sys.argv[1])

def deliver(tag):
    client.rpush("ran", tag)
    time.sleep({BUSY_S})

app = make_app(sys.argv[1])
register_deliver(app, deliver)
serve(app, SEND_QUEUE, 2)
"""


def test_acknowledgements_lost_with_redis_do_not_leave_the_worker_deaf(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    url = server.start()
    worker = subprocess.Popen([sys.executable, "-c", WORKER, url], cwd=ROOT)
    try:
        dispatcher = Dispatcher(make_celery(url))
        with connect(url) as client:
            for tag in ("a", "b"):
                assert dispatcher.deliver(tag)
            # Both threads are busy: no place of the prefetch limit is free.
            wait_for(lambda: client.llen("ran") == 2)
            server.kill()
            # Both tasks end, and cannot be acknowledged.
            time.sleep(BUSY_S + 1)
            server.start()
            wait_for(lambda: dispatcher.deliver("c"))
            wait_for(lambda: b"c" in client.lrange("ran", 0, -1))
    finally:
        worker.kill()
        worker.wait()
        server.stop()
