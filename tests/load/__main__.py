"""``python -m tests.load`` (``make load``): callbacks a second into the real web process.

Every callback is a new message of one of 2,000 users: signature, decryption, XML, one Redis script,
one wake. Redis runs with ``appendfsync everysec`` and, beside it, ``always``. ``--servers``
compares the WSGI servers that are installed. Last line: JSON {callbacks_s, p99_ms} of everysec,
the median of the rounds; status 1 below 500 a second or from 100 ms up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from app.demo.local_http import local_session
from app.demo.processes import free_port
from app.simulator.caller import Caller
from app.simulator.conversations import Conversations
from app.simulator.corp import Corp
from app.simulator.crypto import new_encoding_aes_key
from app.store.server import RedisServer, connect
from tests.chaos.stack import wait_for
from tests.load.servers import CHOSEN, SERVERS

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
LEAST_CALLBACKS_S = 500
MOST_P99_MS = 100
USERS = 2_000


@dataclass(frozen=True)
class Figures:
    """One measurement. ``cpu_ms`` is of the server and Redis together, per callback."""

    server: str
    fsync: str
    callbacks_s: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    cpu_ms: float
    refused: int


def main(argv: list[str] | None = None) -> int:
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--servers", action="store_true", help="compare all servers installed")
    options = parser.parse_args(argv)
    # So that what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    corp = Corp(
        "wwload",
        1000002,
        secrets.token_urlsafe(16),
        secrets.token_hex(8),
        new_encoding_aes_key(),
    )
    chosen: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="hutong-load-") as temporary:
        folder = Path(temporary)
        for round_number in range(options.rounds):
            for server in list(SERVERS) if options.servers else [CHOSEN]:
                if not SERVERS[server].installed:
                    print(f"{server}: {SERVERS[server].module} is not installed")
                    continue
                for fsync in ("everysec",) if server != CHOSEN else ("everysec", "always"):
                    place = folder / f"{round_number}-{len(list(folder.iterdir()))}"
                    figures = _measure(server, fsync, corp, options, place)
                    _show(figures)
                    if server == CHOSEN and fsync == "everysec":
                        chosen.append(figures)
    chosen.sort(key=lambda figures: figures.callbacks_s)
    median = chosen[(len(chosen) - 1) // 2]
    print(json.dumps({"callbacks_s": median.callbacks_s, "p99_ms": median.p99_ms}))
    good = median.callbacks_s >= LEAST_CALLBACKS_S and median.p99_ms < MOST_P99_MS
    return 0 if good and not median.refused else 1


def _show(figures: Figures) -> None:
    print(
        f"{figures.server:22} {figures.fsync:8} {figures.callbacks_s:7.1f}/s  "
        f"p50 {figures.p50_ms:6.1f}  p99 {figures.p99_ms:6.1f}  worst {figures.worst_ms:7.1f} ms  "
        f"cpu {figures.cpu_ms:.2f} ms each  not 200: {figures.refused}",
        flush=True,
    )


def _measure(
    server: str, fsync: str, corp: Corp, options: argparse.Namespace, folder: Path
) -> Figures:
    """One server, fresh Redis, fresh messages."""
    with RedisServer(folder) as redis_server:
        with connect(redis_server.url) as client:
            client.config_set("appendfsync", fsync)
        with _serving(server, corp, redis_server.url) as (port, process):
            ready = folder / "requests"
            # More than any server takes in this time; the client says when it ran out.
            _write_requests(ready, corp, port, int(options.seconds * 2_500))
            assert redis_server.pid is not None
            pids = [redis_server.pid, process.pid]
            before_s = sum(_cpu_s(pid) for pid in pids)
            out = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.load.client", str(port)),
                    *(str(options.connections), str(options.seconds), str(ready)),
                ],
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
                timeout=options.seconds + 60,
            )
            cpu_s = sum(_cpu_s(pid) for pid in pids) - before_s
        found = json.loads(out.stdout)
    refused = sum(n for status, n in found["statuses"].items() if status != "200")
    return Figures(
        server,
        fsync,
        found["callbacks_s"],
        found["p50_ms"],
        found["p99_ms"],
        found["worst_ms"],
        1000 * cpu_s / max(1, found["answered"]),
        refused,
    )


@contextlib.contextmanager
def _serving(
    server: str, corp: Corp, redis_url: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The server up on a free port, its whole process group ended afterwards."""
    port = free_port(0)
    names = {"address": f"{HOST}:{port}", "host": HOST, "port": str(port)}
    argv = [part.format(**names) for part in SERVERS[server].argv]
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("WECOM_", "HUTONG_", "REDIS_"))
    }
    environment = {
        **kept,
        "REDIS_URL": redis_url,
        "WECOM_CORP_ID": corp.corp_id,
        "WECOM_AGENT_ID": str(corp.agent_id),
        "WECOM_CORP_SECRET": corp.corp_secret,
        "WECOM_TOKEN": corp.token,
        "WECOM_ENCODING_AES_KEY": corp.encoding_aes_key,
        "HUTONG_HOST": HOST,
        "HUTONG_PORT": str(port),
        # No worker runs, so everything stays queued.
        "HUTONG_MAX_QUEUED": "0",
    }
    process = subprocess.Popen(
        [sys.executable, *argv],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with local_session() as http:

            def up() -> bool:
                with contextlib.suppress(OSError):
                    return http.get(f"http://{HOST}:{port}/healthz", timeout=2).ok
                return False

            assert wait_for(up, 30, 0.1), f"{server} did not start"
        time.sleep(0.5)
        yield port, process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _write_requests(path: Path, corp: Corp, port: int, count: int) -> None:
    """Whole HTTP requests, encrypted and signed beforehand."""
    caller = Caller(corp, f"http://{HOST}:{port}/", Conversations(time.time), time.time)
    with path.open("wb") as file:
        for number in range(count):
            user = f"user{number % USERS}"
            content = {"Content": "分析华东区Q3销售TOP5产品"}
            query, body = caller.envelope(caller.message_xml(user, content, kind="text")[1])
            head = (
                f"POST /wecom/callback?{urlencode(query)} HTTP/1.1\r\nHost: {HOST}:{port}\r\n"
                f"Content-Type: text/xml; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            request = head.encode() + body
            file.write(len(request).to_bytes(4, "big") + request)


def _cpu_s(pid: int) -> float:
    """Processor time of a process and its children, dead or alive; 0 where /proc is missing."""
    total = 0.0
    with contextlib.suppress(OSError, ValueError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total = sum(int(after_name[index]) for index in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        total += sum(_cpu_s(int(child)) for child in children)
    return total


if __name__ == "__main__":
    sys.exit(main())
