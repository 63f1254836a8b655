"""Skips cannot hide: ``HUTONG_NO_SKIPS=1`` fails a session with any skip not marked ``gpu``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPED = "@pytest.mark.skip(reason='no tool')\ndef test_a(): pass\n"
GPU = "@pytest.mark.gpu\n@pytest.mark.skip(reason='none')\ndef test_b(): pass\n"
PASSED = "import pytest\ndef test_c(): pass\n"
MODULE = "import pytest\npytest.importorskip('no_such_module_at_all')\n"


@pytest.mark.parametrize(
    ("bodies", "no_skips", "status"),
    [
        ([PASSED + SKIPPED + GPU], "0", pytest.ExitCode.OK),
        ([PASSED + GPU], "1", pytest.ExitCode.OK),
        ([PASSED + SKIPPED], "1", pytest.ExitCode.TESTS_FAILED),
        ([PASSED, MODULE], "1", pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_no_skips(tmp_path: Path, bodies: list[str], no_skips: str, status: int) -> None:
    for number, body in enumerate(bodies):
        (tmp_path / f"test_sample_{number}.py").write_text(body)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"),
        *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)),
    ]
    environ = {**os.environ, "HUTONG_NO_SKIPS": no_skips}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == status, done.stdout
    assert ("HUTONG_NO_SKIPS" in done.stdout) == (status != pytest.ExitCode.OK)
