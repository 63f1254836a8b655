"""What the demo checks before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.demo.stack import DemoError, check_paths
from app.settings import load


@pytest.mark.parametrize(
    "name", ["HUTONG_MODEL_DIR", "HUTONG_DOCS_DIR", "HUTONG_SEMANTIC_FILE", "HUTONG_ACCESS_FILE"]
)
def test_a_missing_path_is_named_with_its_setting(tmp_path: Path, name: str) -> None:
    settings = load({"HUTONG_MODEL_DIR": str(tmp_path), name: "/nope"})
    with pytest.raises(DemoError, match=f"^{name}=/nope 不存在。"):
        check_paths(settings)


def test_a_file_is_no_folder_and_a_folder_no_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    settings = load({"HUTONG_MODEL_DIR": str(file), "HUTONG_SEMANTIC_FILE": str(tmp_path)})
    with pytest.raises(DemoError) as caught:
        check_paths(settings)
    assert f"HUTONG_MODEL_DIR={file} 不是目录" in str(caught.value)
    assert f"HUTONG_SEMANTIC_FILE={tmp_path} 不是文件" in str(caught.value)


def test_what_is_there_passes(tmp_path: Path) -> None:
    file = tmp_path / "semantic.yaml"
    file.touch()
    check_paths(load({"HUTONG_MODEL_DIR": str(tmp_path), "HUTONG_SEMANTIC_FILE": str(file)}))
