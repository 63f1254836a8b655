"""A load generator that costs almost nothing: requests made beforehand, raw sockets, one process.

Runs apart from the server: ``python -m tests.load.client PORT CONNECTIONS SECONDS FILE``. ``FILE``
holds whole HTTP requests, each after its length (4 bytes, big-endian); each is sent once. Prints
one JSON object.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"


@dataclass
class _Connection:
    """One kept-alive connection with at most one request on its way."""

    socket: socket.socket
    sent_s: float = 0.0
    received: bytearray = field(default_factory=bytearray)


class Client:
    """A closed loop: every connection sends its next request as soon as it has an answer."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._port = port
        self._requests = iter(requests)
        self._selector = selectors.DefaultSelector()
        self.latencies_ms: list[float] = []
        self.statuses: dict[str, int] = {}
        self.ran_out = False

    def run(self, connections: int, seconds: float) -> float:
        """Send for ``seconds``; how long it took in fact."""
        started_s = time.perf_counter()
        end_s = started_s + seconds
        for _ in range(connections):
            self._send(self._connect())
        open_count = connections
        while open_count:
            ready = self._selector.select(10)
            if not ready:
                self._count("no answer")
                break
            for key, _ in ready:
                connection: _Connection = key.data
                if not self._receive(connection):
                    continue
                if time.perf_counter() >= end_s or not self._send(connection):
                    self._selector.unregister(connection.socket)
                    connection.socket.close()
                    open_count -= 1
        return time.perf_counter() - started_s

    def _connect(self) -> _Connection:
        connected = socket.create_connection((HOST, self._port), 10)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(connected)
        self._selector.register(connected, selectors.EVENT_READ, connection)
        return connection

    def _send(self, connection: _Connection) -> bool:
        request = next(self._requests, None)
        if request is None:
            self.ran_out = True
            return False
        connection.received.clear()
        connection.sent_s = time.perf_counter()
        connection.socket.sendall(request)
        return True

    def _receive(self, connection: _Connection) -> bool:
        """Read what is there; True when the answer is whole (or the connection is gone)."""
        data = connection.socket.recv(65536)
        connection.received += data
        head, separator, body = bytes(connection.received).partition(b"\r\n\r\n")
        if data and not separator:
            return False
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value)
        if data and len(body) < length:
            return False
        self.latencies_ms.append((time.perf_counter() - connection.sent_s) * 1000)
        self._count(head[9:12].decode() if data else "closed")
        if not data or b"connection: close" in head.lower():
            self._reconnect(connection)
        return True

    def _reconnect(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        connection.socket = socket.create_connection((HOST, self._port), 10)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _count(self, status: str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1


def read_requests(path: Path) -> list[bytes]:
    """The requests of a file."""
    content = path.read_bytes()
    found, at = [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        found.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def main() -> int:
    """Run once and print the figures."""
    port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    client = Client(port, read_requests(Path(sys.argv[4])))
    took_s = client.run(connections, seconds)
    answered = len(client.latencies_ms)
    print(
        json.dumps(
            {
                "answered": answered,
                "callbacks_s": round(answered / took_s, 1),
                "p50_ms": round(percentile(client.latencies_ms, 0.50), 2),
                "p99_ms": round(percentile(client.latencies_ms, 0.99), 2),
                "worst_ms": round(max(client.latencies_ms, default=0.0), 2),
                "statuses": client.statuses,
                "ran_out": client.ran_out,
                "cpu_s": round(time.process_time(), 2),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
