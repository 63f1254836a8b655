"""What can be said of the deployment files without a Docker engine.

Owns reading the Dockerfile, ``.dockerignore`` and the compose file. ``problems()`` lists what is
wrong, for people; an empty list is what is wanted.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from compose_spec import PyCompose

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "docker-compose.yml"
PROFILES = ("gpu", "cpu", "demo", "monitoring", "data")
OWN_IMAGES = ("HUTONG_GATEWAY_IMAGE", "HUTONG_ENGINE_IMAGE")
RUN_ONCE = ("demo-data",)
_VARIABLE = re.compile(r"\$\{\w+(?::-([^${}]*))?}")
_SECRET_NAME = re.compile(r"(SECRET|TOKEN|AES_KEY|PASSWORD)")


def compose() -> dict[str, Any]:
    """The compose file as YAML gives it, anchors resolved, variables not."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return found


def problems() -> list[str]:
    """Everything that is wrong with the files."""
    return [
        *schema_problems(),
        *service_problems(),
        *secret_problems(),
        *copy_problems(),
        *(cli_problems() or []),
    ]


def schema_problems() -> list[str]:
    """Against the compose specification; the first thing it objects to."""
    text, replaced = COMPOSE.read_text("utf-8"), 1
    while replaced:  # a default may hold another variable
        text, replaced = _VARIABLE.subn(lambda found: found[1] or "", text)
    try:
        PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text)))  # merge keys resolved
    except ValueError as error:
        return [f"compose specification: {error}"]
    return []


def cli_problems() -> list[str] | None:
    """As ``docker compose config`` sees it; None where there is no such command."""
    if shutil.which("docker") is None:
        return None
    command = ["docker", "compose", "--env-file", str(ROOT / "deploy" / ".env.example")]
    command += ["-f", str(COMPOSE), *(f"--profile={name}" for name in PROFILES)]
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return None
    done = subprocess.run([*command, "config", "-q"], capture_output=True, text=True)
    return [f"docker compose config: {done.stderr.strip()}"] if done.returncode else []


def service_problems() -> list[str]:
    """Health checks, read-only roots, rights, published ports."""
    found = []
    for name, service in compose()["services"].items():
        if name not in RUN_ONCE and "healthcheck" not in service:
            found.append(f"{name}: no health check")
        if name not in RUN_ONCE and service.get("restart") != "unless-stopped":
            found.append(f"{name}: does not come back after a crash")
        if any(image in service["image"] for image in OWN_IMAGES):
            if service.get("read_only") is not True or service.get("cap_drop") != ["ALL"]:
                found.append(f"{name}: root not read-only, or capabilities kept")
            if service.get("init") is not True:
                found.append(f"{name}: no init, so a crash or SIGTERM in starting is not handled")
        for port in service.get("ports", []):
            if not re.match(r"\$\{\w+:-127\.0\.0\.1:\d+}:\d+$", port):
                found.append(f"{name}: {port} is published beyond loopback by default")
    return found


def secret_problems() -> list[str]:
    """Secrets are written in no file that is shipped."""
    found = []
    for name, service in compose()["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            if _SECRET_NAME.search(variable) and not re.fullmatch(r"\$\{\w+:-}", str(value)):
                found.append(f"{name}: {variable} is written in the compose file")
    for line in DOCKERFILE.read_text("utf-8").splitlines():
        if line.startswith(("ENV", "ARG")) and _SECRET_NAME.search(line):
            found.append(f"Dockerfile: {line}")
    return found


def copy_paths() -> list[str]:
    """Every path the Dockerfile copies from the build context."""
    text = DOCKERFILE.read_text("utf-8").replace("\\\n", " ")
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    return [path for line in lines for path in line.split()[:-1]]


def copy_problems() -> list[str]:
    """What is copied exists, and ``.dockerignore`` lets it through."""
    found = []
    for path in copy_paths():
        if not (ROOT / path).exists():
            found.append(f"Dockerfile: COPY {path}: it does not exist")
        elif not in_context(path) and not any(
            rule.startswith(f"!{path}/") for rule in _ignore_rules()
        ):
            found.append(f"Dockerfile: COPY {path}: .dockerignore keeps it out")
    return found


def in_context(path: str) -> bool:
    """Whether ``.dockerignore`` lets ``path`` into the build context; the last match decides."""
    kept = True
    for rule in _ignore_rules():
        pattern = rule.removeprefix("!")
        parents = [path, *(str(parent) for parent in Path(path).parents)]
        deep = pattern.removeprefix("**/")
        names = Path(path).parts if pattern.startswith("**/") else parents
        if any(fnmatch.fnmatch(name, deep) for name in names):
            kept = rule.startswith("!")
    return kept


def _ignore_rules() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
