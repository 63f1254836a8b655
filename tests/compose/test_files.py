"""The deployment files, without a Docker engine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.compose import files

SERVICES = {"redis", "web", "web2", "sender", "sweeper", "gpu-worker", "cpu-worker"}


def test_nothing_is_wrong() -> None:
    assert files.problems() == []


def test_the_services_are_there() -> None:
    services = files.compose()["services"]
    assert set(services) >= SERVICES | {"simulator", "demo-data", "prometheus", "grafana"}
    assert services["gpu-worker"]["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert "appendonly yes" in services["redis"]["command"]
    for worker in ("gpu-worker", "cpu-worker"):
        assert int(services[worker]["stop_grace_period"].removesuffix("s")) > 120


def test_the_schema_is_really_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = files.compose()
    content["services"]["web"]["helthcheck"] = {}
    broken = tmp_path / "compose.yml"
    broken.write_text(yaml.safe_dump(content), "utf-8")
    monkeypatch.setattr(files, "COMPOSE", broken)
    assert any("helthcheck" in problem for problem in files.schema_problems())


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("app/web.py", True),
        ("models/demo-moe/config.json", True),
        ("requirements-gpu.txt", True),
        ("deploy/setup.sh", True),
        (".env", False),
        (".git/config", False),
        ("var/company.db", False),
        ("tests/conftest.py", False),
        ("models/training/train.py", False),
        ("app/__pycache__/web.cpython-311.pyc", False),
    ],
)
def test_the_build_context_holds_the_code_and_no_settings(path: str, kept: bool) -> None:
    assert files.in_context(path) is kept


def test_every_requirements_file_of_an_image_is_copied() -> None:
    copied = files.copy_paths()
    for name in ("requirements.txt", "requirements-gpu.txt", "deploy/requirements-gateway.txt"):
        assert name in copied


def test_deploy_says_what_is_missing(tmp_path: Path) -> None:
    script = files.ROOT / "deploy" / "deploy.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    done = subprocess.run(
        ["/bin/bash", str(script), "up"],
        env={"PATH": _tools_without_docker(tmp_path), "HUTONG_DEPLOY_STATE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "docker" in done.stderr


def _tools_without_docker(folder: Path) -> str:
    tools = folder / "bin"
    tools.mkdir()
    for name in ("dirname", "realpath"):
        (tools / name).symlink_to(Path("/usr/bin") / name)
    return str(tools)
