"""setup.sh with a ``pip`` that installs a torch of two lines: which build it takes, and when."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compose.files import ROOT

PIN = "torch==2.13.0"
PIP = """#!/bin/bash
echo "$*" >>"$SITE/pip.log"
case "$*" in
    uninstall*torch) rm -rf "$SITE/torch" ;;
    "install --quiet torch=="*)
        mkdir -p "$SITE/torch"
        [ "$OFFERED" = cpu ] && cuda=None || cuda="'13.0'"
        printf "__version__ = '2.13.0'\\nclass version:\\n    cuda = $cuda\\n" \\
            >"$SITE/torch/__init__.py" ;;
esac
"""
PYTHON = f"""#!/bin/bash
PYTHONPATH="$SITE" exec {sys.executable} -S "$@"
"""


class Project:
    """A folder with setup.sh, requirements and an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        for path in (folder / "deploy", folder / ".venv" / "bin", self.site):
            path.mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "setup.sh", folder / "deploy")
        (folder / "requirements.txt").write_text(f"{PIN}\nflask\n")
        for name, text in (("pip", PIP), ("python", PYTHON)):
            program = folder / ".venv" / "bin" / name
            program.write_text(text)
            program.chmod(0o755)

    def setup(self, build: str, offered: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "deploy/setup.sh", "requirements.txt"],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "SITE": str(self.site),
                "TORCH_BUILD": build,
                "OFFERED": offered,
                **more,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self) -> list[str]:
        """What pip was told, in order, without the common options."""
        lines = (self.site / "pip.log").read_text().splitlines()
        return [line.replace(" --quiet", "").replace(" --yes", "") for line in lines]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_cuda_build_is_taken_once(project: Project) -> None:
    assert project.setup("cuda", "cuda").returncode == 0
    again = project.setup("cuda", "cuda")
    assert (again.returncode, "torch is already there" in again.stdout) == (0, True)
    assert project.asked().count(f"install {PIN}") == 1
    assert any("requirements-gpu.txt" in line for line in project.asked())


def test_an_index_without_cuda_is_an_error_that_says_so(project: Project) -> None:
    done = project.setup("cuda", "cpu")
    assert done.returncode == 1
    assert "TORCH_CUDA_INDEX" in done.stderr
    assert not any("requirements.txt" in line for line in project.asked())


def test_a_machine_that_got_a_gpu_gets_the_other_build(project: Project) -> None:
    assert project.setup("cpu", "cpu").returncode == 0
    assert project.setup("cuda", "cuda").returncode == 0
    asked = project.asked()
    assert asked.index("uninstall torch") < asked.index(f"install {PIN}")
    assert "13.0" in (project.site / "torch" / "__init__.py").read_text()


def test_mirrors_are_asked(project: Project) -> None:
    assert project.setup("cuda", "cuda", TORCH_CUDA_INDEX="https://mirror/cuda").returncode == 0
    assert f"install {PIN} --index-url https://mirror/cuda" in project.asked()
    shutil.rmtree(project.site / "torch")
    assert project.setup("cpu", "cpu", TORCH_CPU_INDEX="https://mirror/cpu").returncode == 0
    assert f"install {PIN} --index-url https://mirror/cpu" in project.asked()


def test_a_cuda_build_serves_without_a_gpu_too(project: Project) -> None:
    assert project.setup("cuda", "cuda").returncode == 0
    done = project.setup("cpu", "cpu")
    assert (done.returncode, "torch is already there" in done.stdout) == (0, True)
