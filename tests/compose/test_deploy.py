"""deploy.sh against a ``docker`` that only writes down what it is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from app import settings
from app.wecom.crypto import WeComCrypto
from tests.compose.files import ROOT

DOCKER = """#!/bin/bash
echo "$HUTONG_GATEWAY_IMAGE $*" >>"$DOCKER_LOG"
case "$*" in
    *" ps -q web") [ -f "$DOCKER_LOG.up" ] && echo c0ffee ;;
    *" up -d "*) touch "$DOCKER_LOG.up"; exit "${DOCKER_UP:-0}" ;;
esac
"""


class Host:
    """A machine with settings and the fake engine."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.env_file = folder / "settings.env"
        self.log = folder / "docker.log"
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        docker = bin_folder / "docker"
        docker.write_text(DOCKER, "utf-8")
        docker.chmod(0o755)
        self.environment = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "DOCKER_LOG": str(self.log),
            "HUTONG_DEPLOY_STATE": str(self.state),
            "HUTONG_ENV_FILE": str(self.env_file),
            "PROFILES": "cpu",
        }

    def run(self, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "deploy" / "deploy.sh"), command],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def started(self) -> list[str]:
        """The gateway image of every start, in order."""
        lines = self.log.read_text("utf-8").splitlines()
        return [line.split()[0] for line in lines if line.endswith("--remove-orphans")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_rollback_brings_images_and_settings_back(host: Host) -> None:
    host.env_file.write_text("WECOM_AGENT_ID=1\n", "utf-8")
    assert host.run("up", HUTONG_TAG="a").returncode == 0
    host.env_file.write_text("WECOM_AGENT_ID=2\n", "utf-8")
    assert host.run("upgrade", HUTONG_TAG="b").returncode == 0
    assert host.run("rollback").returncode == 0
    assert host.started() == ["hutong-gateway:a", "hutong-gateway:b", "hutong-gateway:a"]
    assert host.env_file.read_text("utf-8") == "WECOM_AGENT_ID=1\n"
    assert (host.state / "replaced.env").read_text("utf-8") == "WECOM_AGENT_ID=2\n"
    assert {path.stat().st_mode & 0o777 for path in host.state.glob("*.env")} == {0o600}
    again = host.run("rollback")
    assert again.returncode == 1
    assert "没有可以退回的版本" in again.stderr


def test_after_an_upgrade_that_fails_the_rollback_is_to_what_ran(host: Host) -> None:
    host.env_file.write_text("WECOM_AGENT_ID=1\n", "utf-8")
    for tag in ("a", "b"):
        assert host.run("upgrade", HUTONG_TAG=tag).returncode == 0
    host.env_file.write_text("WECOM_AGENT_ID=3\n", "utf-8")
    assert host.run("upgrade", HUTONG_TAG="c", DOCKER_UP="1").returncode != 0
    assert host.run("rollback").returncode == 0
    assert host.started() == [f"hutong-gateway:{tag}" for tag in "abb"]
    assert host.env_file.read_text("utf-8") == "WECOM_AGENT_ID=1\n"


def test_one_web_serves_while_the_other_is_replaced(host: Host) -> None:
    host.env_file.write_text("WECOM_AGENT_ID=1\n", "utf-8")
    host.run("up", HUTONG_TAG="a")
    host.log.write_text("", "utf-8")
    assert host.run("upgrade", HUTONG_TAG="b").returncode == 0
    ups = [line for line in host.log.read_text("utf-8").splitlines() if " up -d " in line]
    assert [line.split()[-1] for line in ups] == ["web", "web2", "--remove-orphans"]
    assert all("--wait" in line for line in ups)
    # compose takes what --no-deps started for changed: both webs would be replaced again, together.
    assert not any("--no-deps" in line for line in ups)


def test_without_settings_nothing_is_built(host: Host) -> None:
    done = host.run("up")
    assert done.returncode == 1
    assert ".env.example" in done.stderr
    assert " build " not in host.log.read_text("utf-8")


def test_the_demo_makes_settings_that_the_gateway_takes(host: Host) -> None:
    assert host.run("up", PROFILES="cpu demo", HUTONG_ENV_FILE="").returncode == 0
    made = host.state / "demo.env"
    assert made.stat().st_mode & 0o777 == 0o600
    lines = [line for line in made.read_text("utf-8").splitlines() if not line.startswith("#")]
    values = settings.load(dict(line.split("=", 1) for line in lines))
    WeComCrypto(values.wecom_token, values.wecom_encoding_aes_key, values.wecom_corp_id)
    assert len(values.admin_token) == 32
    assert str(values.today) == "2024-11-15"
