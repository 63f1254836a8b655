"""The documents tell the truth: paths, settings, commands and sizes, checked against the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.settings import SETTINGS, env_example, markdown_table

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.en.md")
PACKAGES = ("app", "workers", "inference", "tools", "models", "deploy", "tests", "docs")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tree_paths(readme: str) -> list[str]:
    """Paths named in the README's tree, joined with their folders."""
    block = next(b for b in re.findall(r"```\n(.*?)```", readme, re.DOTALL) if b.startswith("app/"))
    paths: list[str] = []
    parent = ""
    for line in block.splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            paths.append(parent + name)
        else:
            parent = name
            paths.append(name)
    return paths


@pytest.mark.parametrize("name", READMES)
def test_readme_tree_is_the_tree(name: str) -> None:
    paths = tree_paths(text(name))
    assert [p for p in paths if not (ROOT / p).exists()] == []
    assert {p.rstrip("/") for p in paths} >= set(PACKAGES)


@pytest.mark.parametrize("name", READMES)
def test_readme_is_short_and_both_show_the_same_commands(name: str) -> None:
    assert len(text(name).splitlines()) <= 200
    commands = set(re.findall(r"\b(make [a-z-]+|python -m [a-z_.]+)", text("README.md")))
    assert commands == set(re.findall(r"\b(make [a-z-]+|python -m [a-z_.]+)", text(name)))


def test_every_make_target_named_in_a_document_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    documents = [*READMES, *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
    for document in [
        *documents,
        *(str(p.relative_to(ROOT)) for p in ROOT.glob("models/*/README.md")),
    ]:
        named = set(re.findall(r"`make ([a-z-]+)", text(document)))
        named |= set(re.findall(r"^make ([a-z-]+)", text(document), re.MULTILINE))
        assert named <= targets, document


def test_every_make_target_has_a_line_of_help_and_is_phony() -> None:
    makefile = text("Makefile")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    joined = makefile.replace("\\\n", " ")
    phony = re.search(r"^\.PHONY: (.*)$", joined, re.MULTILINE)
    assert phony is not None
    assert targets == set(phony[1].split())
    assert set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)) == targets


def test_settings_are_documented() -> None:
    assert markdown_table() in text("README.md")
    assert text("deploy/.env.example") == env_example()
    for setting in SETTINGS:
        assert not setting.secret or not setting.default


def test_pins_are_exact() -> None:
    names = [path.name for path in ROOT.glob("requirements*.txt")]
    for name in [*names, "deploy/requirements-gateway.txt"]:
        for line in text(name).splitlines():
            wanted = line.split(";")[0].strip()
            if wanted and not wanted.startswith(("#", "-r ")):
                assert re.fullmatch(r"[a-z0-9-]+(\[[a-z]+\])?==[0-9a-z.]+", wanted), (
                    f"{name}: {wanted}"
                )


def test_images_of_the_readmes_exist() -> None:
    for name in READMES:
        for path in re.findall(r"\]\(([^)#:]+)\)", text(name)):
            assert (ROOT / path).exists(), f"{name}: {path}"


@pytest.mark.parametrize("module", ["app.web", "workers.processes", "workers.delivery"])
def test_web_and_sender_never_import_torch(module: str) -> None:
    code = (
        f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0
