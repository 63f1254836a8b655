"""The real processes on free ports, each of which may be killed and comes back.

Owns process groups and the Redis. The simulator runs in the calling process: it stands for WeCom,
which does not die. Ends everything it started, by pid.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import requests

from app.demo.local_http import local_session
from app.demo.processes import free_port
from app.simulator.corp import Corp, Employee
from app.simulator.crypto import new_encoding_aes_key
from app.simulator.service import Simulator
from app.simulator.web import make_http_server
from app.store.presence import alive
from app.store.server import RedisServer, connect

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
AGENT_ID = 1000002
READY_LIMIT_S = 300.0


@dataclass
class Part:
    """One process that is always brought back; ``kind`` is what it is counted as."""

    kind: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    exits: int = 0

    def start(self) -> None:
        """Start it in a process group of its own."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.argv,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """To the whole group; one that is gone already is fine."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def end(self, number: int) -> None:
        """Signal and wait for the end, by force after 30 s."""
        if self.process is None:
            return
        self.signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.signal(signal.SIGKILL)
        self.process.wait()


class Stack:
    """Everything between the employees and the (fake) model."""

    def __init__(
        self,
        folder: Path,
        users: int,
        worker: Sequence[str],
        workers: int = 2,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``worker`` is the command line of a turn worker after ``python``; ``variables`` join
        the environment of every process."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server = RedisServer(folder)
        self.redis_lock = threading.Lock()
        employees = tuple(
            Employee(f"u{n:04d}", f"员工{n}", f"部门{n % 7}", "#888") for n in range(users)
        )
        self.corp = Corp(
            f"wwchaos{secrets.token_hex(4)}",
            AGENT_ID,
            secrets.token_urlsafe(16),
            secrets.token_hex(8),
            new_encoding_aes_key(),
            employees=employees,
        )
        self.web_port = free_port(0)
        self.web_url = f"http://{HOST}:{self.web_port}"
        self.simulator = Simulator(
            self.corp, f"{self.web_url}/wecom/callback", max_events=2_000_000, fault_seed=1
        )
        self._api = make_http_server(self.simulator, HOST, 0)
        self._workers = workers
        self._variables = dict(variables or {})
        self._worker = tuple(worker)
        self.parts: list[Part] = []

    def _environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("WECOM_", "HUTONG_", "REDIS_"))
        }
        return {
            **kept,
            "REDIS_URL": self.server.url,
            "WECOM_CORP_ID": self.corp.corp_id,
            "WECOM_AGENT_ID": str(AGENT_ID),
            "WECOM_CORP_SECRET": self.corp.corp_secret,
            "WECOM_TOKEN": self.corp.token,
            "WECOM_ENCODING_AES_KEY": self.corp.encoding_aes_key,
            "WECOM_API_BASE": f"http://{HOST}:{self._api.server_port}",
            "HUTONG_HOST": HOST,
            "HUTONG_PORT": str(self.web_port),
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": HOST,
            "no_proxy": HOST,
            **self._variables,
        }

    def of_kind(self, kind: str) -> list[Part]:
        """The processes of one kind."""
        return [part for part in self.parts if part.kind == kind]

    @contextlib.contextmanager
    def running(self) -> Iterator[Stack]:
        """All processes up and ready inside the block, all of them ended after it."""
        self.server.start()
        api = threading.Thread(target=self._api.serve_forever, args=(0.05,), daemon=True)
        api.start()
        watching = threading.Event()
        watch = threading.Thread(target=self._bring_back, args=(watching,), daemon=True)
        try:
            self._start_all()
            self._wait_until_ready()
            watch.start()
            yield self
        finally:
            watching.set()
            if watch.is_alive():
                watch.join()
            for part in self.parts:
                part.signal(signal.SIGCONT)
                part.end(signal.SIGTERM)
            if self.server.pid is not None:
                os.kill(self.server.pid, signal.SIGCONT)
            self.server.stop()
            self._api.shutdown()
            api.join(5)
            self._api.server_close()

    def _start_all(self) -> None:
        commands = [
            ("web", ("-m", "app", "web")),
            *([("worker", self._worker)] * self._workers),
            ("sender", ("-m", "workers", "sender")),
            ("sender", ("-m", "workers", "sender")),
            ("sweeper", ("-m", "workers", "sweeper")),
        ]
        environment = self._environment()
        for number, (kind, argv) in enumerate(commands):
            log = self.folder / f"{kind}-{number}.log"
            part = Part(kind, (sys.executable, *argv), environment, log)
            self.parts.append(part)
            part.start()

    def _wait_until_ready(self) -> None:
        limit_s = time.monotonic() + READY_LIMIT_S
        with local_session() as http, connect(self.server.url) as client:
            while not (len(alive(client)) >= self._workers and _answers(http, self.web_url)):
                for part in self.parts:
                    assert part.process is not None
                    assert part.process.poll() is None, part.log.read_text()[-3000:]
                assert time.monotonic() < limit_s, "the processes did not become ready"
                time.sleep(0.1)

    def _bring_back(self, stop: threading.Event) -> None:
        """Whoever started a process starts it again; here that is us, within a second."""
        while not stop.wait(0.3):
            for part in self.parts:
                with part.lock:
                    if part.process is not None and part.process.poll() is not None:
                        part.exits += 1
                        # Children of a killed web master may hold its port a little longer.
                        part.signal(signal.SIGKILL)
                        part.start()


def _answers(http: requests.Session, url: str) -> bool:
    try:
        return http.get(f"{url}/healthz", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def wait_for(condition: Callable[[], bool], limit_s: float, pause_s: float = 0.5) -> bool:
    """Whether ``condition`` became true within ``limit_s``."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(pause_s)
    return True
