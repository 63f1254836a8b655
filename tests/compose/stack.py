"""One composed demo stack under a project name of its own, run by ``deploy/deploy.sh``.

Owns its containers, volumes and image tags, and removes them all. Every port is on loopback.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from app.demo.processes import free_port
from tests.compose.files import COMPOSE, ROOT

HOST = "127.0.0.1"
UP_LIMIT_S = 1800.0
"""The first build fetches torch."""
_UNITS = {"B": 1e-6, "KiB": 2**10 / 1e6, "MiB": 2**20 / 1e6, "GiB": 2**30 / 1e6}


class StackError(Exception):
    """The stack did not do what it was told; the message says what was seen."""


def engine_runs() -> bool:
    """Whether there are a Docker engine, the compose plugin and the right to use them."""
    try:
        for command in (["docker", "info"], ["docker", "compose", "version"]):
            subprocess.run(command, capture_output=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@dataclass(frozen=True)
class Deployed:
    """One run of deploy.sh: seconds to build images, then to replace or start everything."""

    build_s: float
    start_s: float


class Stack:
    """``folder`` takes the state of deploy.sh. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        name = f"hutong-test-{secrets.token_hex(3)}"
        self.project = name
        self.folder = folder
        self.simulator_url = f"http://{HOST}:{free_port(0)}"
        self._tags: list[str] = []
        self._environment = {
            **os.environ,
            "PROFILES": "cpu demo",
            "COMPOSE_PROJECT_NAME": name,
            "HUTONG_DEPLOY_STATE": str(folder),
            # The simulator plays WeCom, which is not replaced when Hutong is.
            "HUTONG_SIMULATOR_IMAGE": f"hutong-gateway:{name}-a",
            "DEPLOY_PUBLISH": f"{HOST}:{free_port(0)}",
            "DEPLOY_PUBLISH2": f"{HOST}:{free_port(0)}",
            "DEPLOY_SIMULATOR_PUBLISH": self.simulator_url.removeprefix("http://"),
            "DOCKER_BUILDKIT": "1",
        }
        self._environment.pop("HUTONG_ENV_FILE", None)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def env_file(self) -> Path:
        """The settings that deploy.sh wrote for the demo."""
        return self.folder / "demo.env"

    @property
    def redis_url(self) -> str:
        """Redis inside the project's network, which this machine reaches without a port."""
        shape = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = _docker("inspect", self.container("redis"), "--format", shape)
        return f"redis://{address}:6379/0"

    def container(self, service: str) -> str:
        """Name of the container of ``service``."""
        return f"{self.project}-{service}-1"

    def deploy(self, command: str, tag: str = "") -> Deployed:
        """Run deploy.sh. Raises ``StackError`` with the end of its output."""
        environment = dict(self._environment)
        if tag:
            environment["HUTONG_TAG"] = f"{self.project}-{tag}"
            self._tags.append(environment["HUTONG_TAG"])
        started_s = time.monotonic()
        done = subprocess.run(
            ["deploy/deploy.sh", command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=UP_LIMIT_S,
            check=False,
        )
        took_s = time.monotonic() - started_s
        (self.folder / f"{command}-{tag}.log").write_text(done.stdout, "utf-8")
        if done.returncode:
            raise StackError(
                f"deploy.sh {command} ended with {done.returncode}:\n{done.stdout[-500:]}\n"
                + self.last_words()
            )
        begun = re.search(r"^\[(\d+)s\] starting", done.stdout, re.MULTILINE)
        build_s = float(begun[1]) if begun else 0.0
        return Deployed(build_s, took_s - build_s)

    def crash(self, service: str) -> float:
        """Kill -9 what runs in the container; seconds until the engine has started it again."""
        name = self.container(service)
        before = _docker("inspect", name, "--format", "{{.State.StartedAt}}")
        subprocess.run(
            ["docker", "exec", name, "sh", "-c", "kill -9 -1"], capture_output=True, check=False
        )
        started_s = time.monotonic()
        while time.monotonic() - started_s < 60:
            state = _docker("inspect", name, "--format", "{{.State.StartedAt}} {{.State.Running}}")
            now, _, running = state.partition(" ")
            if now != before and running == "true":
                return time.monotonic() - started_s
            time.sleep(0.2)
        raise StackError(f"{service} did not come back within 60 s after kill -9")

    def wait_healthy(self, service: str, limit_s: float = 180.0) -> float:
        """Seconds until the health check of ``service`` passes again."""
        started_s = time.monotonic()
        shape = "{{.State.Health.Status}}"
        while time.monotonic() - started_s < limit_s:
            if _docker("inspect", self.container(service), "--format", shape) == "healthy":
                return time.monotonic() - started_s
            time.sleep(0.5)
        raise StackError(f"{service} is not healthy after {limit_s:.0f} s")

    def memory_mb(self) -> dict[str, float]:
        """By service: memory of the container as ``docker stats`` shows it, MB (10^6 bytes)."""
        names = _docker("ps", "-q", "--filter", f"label=com.docker.compose.project={self.project}")
        lines = _docker("stats", "--no-stream", "--format", "{{json .}}", *names.split())
        found = {}
        for line in lines.splitlines():
            row = json.loads(line)
            used = row["MemUsage"].split(" / ")[0]
            number, unit = re.fullmatch(r"([\d.]+)(\w+)", used).groups()  # type: ignore[union-attr]
            service = row["Name"].removeprefix(f"{self.project}-").removesuffix("-1")
            found[service] = round(float(number) * _UNITS[unit], 1)
        return dict(sorted(found.items()))

    def images_mb(self) -> dict[str, int]:
        """Sizes of both images and of the base image in them, MB."""
        tag = self._tags[0]
        images = {
            "gateway": f"hutong-gateway:{tag}",
            "engine": f"hutong-engine:cpu-{tag}",
            "base": "python:3.11-slim",
        }
        return {
            name: round(int(_docker("image", "inspect", image, "--format", "{{.Size}}")) / 1e6)
            for name, image in images.items()
        }

    def last_words(self) -> str:
        """The end of the logs of containers that are not healthy, and of their checks."""
        mine = ("--filter", f"label=com.docker.compose.project={self.project}")
        shape = "{{json .State}}"
        found = []
        for name in _docker("ps", "-a", "--format", "{{.Names}}", *mine).split():
            state = json.loads(_docker("inspect", name, "--format", shape))
            health = state.get("Health", {})
            if health.get("Status") == "healthy":
                continue
            logs = subprocess.run(
                ["docker", "logs", "--tail", "15", name],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            checks = [check["Output"].strip() for check in health.get("Log") or []]
            found.append(f"{name} {state['Status']}: {checks[-2:]}\n{logs.stdout}")
        return "\n".join(found)

    def remove(self) -> None:
        """Containers, networks, volumes and tags of this project; nothing else."""
        command = ["docker", "compose", "-p", self.project, "-f", str(COMPOSE)]
        for profile in ("cpu", "demo", "data"):
            command += ["--profile", profile]
        subprocess.run(
            [*command, "down", "-v", "-t", "10", "--remove-orphans"],
            env=self._environment,
            capture_output=True,
            check=False,
        )
        for tag in self._tags:
            for image in (f"hutong-gateway:{tag}", f"hutong-engine:cpu-{tag}"):
                subprocess.run(["docker", "image", "rm", image], capture_output=True, check=False)


def _docker(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise StackError(f"docker {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
