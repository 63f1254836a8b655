"""The warm process that forks one child per run. Started as a script with an empty environment.

Preloads a fixed list before any filter, tries the filters once on a child, then waits: each
message on its socket brings one end of a connection for a new child, and the child's pidfd goes
back. Jobs never pass through this process, so that a later child finds no earlier user's data in
its memory. Its arguments are the folders of numpy and pandas. Ends when its socket does.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import sysconfig
import time
from pathlib import Path

PRELOADED = (
    "math", "statistics", "datetime", "json", "re", "itertools", "collections", "decimal",
    "fractions", "random", "numpy", "pandas",
)  # fmt: skip
"""Fixed: what a setting could add would run before the filters. numpy, pandas when installed."""
_NOT_LOADED = ("pyarrow", "numexpr", "bottleneck", "matplotlib", "scipy")
"""What pandas would load by itself: threads and memory for nothing."""
_PACKAGES = ("numpy", "pandas", "dateutil", "six", "tzdata", "pytz")
_LIBRARY_DIRS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_ZONE_DIR = "/usr/share/zoneinfo"
_SELF_TEST_MEMORY_BYTES = 64 * 1024 * 1024


def main() -> None:
    """Serve the socket on descriptor 0 until it ends."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    os.closerange(control.fileno() + 1, 256)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TZ": "CST-8"}
    time.tzset()
    own = list(sys.path)
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), *sys.argv[1:]]
    try:
        from tools.sandbox import child, syscalls

        loaded = _preload()
        architecture = syscalls.ARCHITECTURES[os.uname().machine]
        readable = readable_paths()
        # numpy and pandas find their own parts; other installed packages are not there at all.
        sys.path[:] = own
        sys.argv[:] = sys.orig_argv[:] = [""]
        _check_threads()
        _self_test(child, architecture, readable)
    except Exception as error:  # noqa: BLE001 - the process boundary: the reason goes to the parent
        control.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    control.sendall(json.dumps({"modules": loaded}).encode() + b"\n")
    serve(control, lambda end, parent: child.run(end, parent, architecture, readable))


def _preload() -> list[str]:
    for name in _NOT_LOADED:
        sys.modules[name] = None  # type: ignore[assignment]
    loaded = []
    for name in PRELOADED:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
            loaded.append(name)
    if "pandas" in loaded:
        pandas = importlib.import_module("pandas")
        pandas.set_option("display.width", 160)
        pandas.set_option("display.max_columns", 20)
        pandas.set_option("display.unicode.east_asian_width", True)
    return loaded


def readable_paths() -> tuple[str, ...]:
    """The standard library, the preloaded packages, shared libraries and time zones."""
    # A virtual environment's own platstdlib would hold every installed package.
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    paths = [sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")]
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            place = Path(spec.origin)
            paths.append(str(place.parent if place.name == "__init__.py" else place))
            libraries = place.parent.parent / f"{name}.libs"
            if libraries.is_dir():
                paths.append(str(libraries))
    return (*dict.fromkeys(paths), *_LIBRARY_DIRS, _ZONE_DIR)


def _check_threads() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads before the first fork")


def _self_test(child: object, architecture: object, readable: tuple[str, ...]) -> None:
    """Raises ``RuntimeError`` with the child's reason when a protection does not hold here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child.protect(  # type: ignore[attr-defined]
                architecture, readable, memory_bytes=_SELF_TEST_MEMORY_BYTES, time_s=1.0
            )
            child.verify()  # type: ignore[attr-defined]
            os.write(writer, b"ok")
        except BaseException as error:  # noqa: BLE001 - the process boundary
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1000)
    os.close(reader)
    os.waitpid(pid, 0)
    if answer != b"ok":
        raise RuntimeError(answer.decode("utf-8", "replace") or "the self-test's child died")


def serve(control: socket.socket, run: object) -> None:
    """Fork for every message; reap children as they end."""
    parent = os.getpid()
    poller = select.poll()
    poller.register(control, select.POLLIN)
    children: dict[int, int] = {}
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in children:
                poller.unregister(descriptor)
                os.waitpid(children.pop(descriptor), 0)
                os.close(descriptor)
                continue
            message, ends, _, _ = socket.recv_fds(control, 1, 1)
            if not message or not ends:
                for pidfd in children:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                for pidfd in children:
                    os.close(pidfd)
                run(socket.socket(fileno=ends[0]), parent)  # type: ignore[operator]
                os._exit(0)
            os.close(ends[0])
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            poller.register(pidfd, select.POLLIN)
            socket.send_fds(control, [b"p"], [pidfd])


if __name__ == "__main__":
    main()
