"""The audit looks at everything we install, and never takes silence for a clean answer."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy import audit

CLEAN = {"dependencies": [{"name": "redis", "version": "8.1.0", "vulns": []}]}
VULNERABLE = {
    "dependencies": [
        {
            "name": "redis",
            "version": "8.1.0",
            "vulns": [{"id": "PYSEC-1", "fix_versions": ["8.1.1"], "aliases": []}],
        }
    ]
}
SKIPPED = {"dependencies": [*CLEAN["dependencies"], {"name": "x", "skip_reason": "not found"}]}
BILL = {
    "specVersion": "1.6",
    "metadata": {"component": {"bom-ref": "root-component"}},
    "components": [
        {"name": "Flask", "bom-ref": "f"},
        {"name": "Werkzeug", "bom-ref": "w"},
        {"name": "pytest", "bom-ref": "p"},
    ],
    "dependencies": [{"ref": "f", "dependsOn": ["w", "p"]}, {"ref": "w"}, {"ref": "p"}],
}


def test_the_pins_and_what_they_bring_along_are_looked_at() -> None:
    pinned = list(audit.pins(audit.ROOT, audit.ALL))
    assert {"flask", "torch", "pytest", "rich"} <= {p.name for p in pinned}
    found, _ = audit.closure(pinned)
    assert found["werkzeug"] == metadata.version("werkzeug")  # only flask names it
    assert all("+" not in version for version in found.values())
    shipped, _ = audit.closure(list(audit.pins(audit.ROOT, audit.SHIPPED)))
    assert "pytest" not in shipped
    assert shipped.keys() < found.keys()


def test_what_is_not_installed_is_looked_at_as_pinned_or_named() -> None:
    wanted = [Requirement("not-here==1.2"), Requirement("nor-this>=3")]
    assert audit.closure(wanted) == ({"not-here": "1.2"}, ["nor-this>=3"])


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (CLEAN, audit.CLEAN),
        (VULNERABLE, audit.VULNERABLE),
        (SKIPPED, audit.NOT_JUDGED),
        ({"dependencies": []}, audit.NOT_JUDGED),
        ({"dependencies": SKIPPED["dependencies"] + VULNERABLE["dependencies"]}, audit.VULNERABLE),
    ],
)
def test_a_package_nobody_judged_is_not_a_clean_one(answer: dict[str, object], status: int) -> None:
    assert audit.judge(answer).status == status


def test_the_bill_of_materials_names_what_is_shipped_alone() -> None:
    bill = audit.only(BILL, {"flask", "werkzeug"})
    assert [c["name"] for c in bill["components"]] == ["Flask", "Werkzeug"]
    assert bill["dependencies"] == [
        {"ref": "f", "dependsOn": ["w"]},
        {"ref": "w"},
        {"ref": "root-component", "dependsOn": ["f", "w"]},
    ]


def tools(folder: Path, answer: dict[str, object] | None) -> Path:
    """Stand-ins for the two tools; without an answer the service cannot be reached."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bill.json").write_text(json.dumps(BILL))
    wrote = f"open(sys.argv[sys.argv.index('-o') + 1], 'w').write({json.dumps(answer)!r})"
    failed = "sys.exit('ConnectionError: https://user:secret@mirror.example/simple')"
    for name, code in (
        ("cyclonedx-py", f"print(open({str(folder / 'bill.json')!r}).read())"),
        ("pip-audit", wrote if answer else failed),
    ):
        script = folder / "bin" / name
        script.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
        script.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (CLEAN, 0, "查了 1 个包，已知漏洞 0 个"),
        (VULNERABLE, 1, "✗ redis 8.1.0：PYSEC-1，修好的版本：8.1.1"),
        (SKIPPED, 3, "不认识 1 个包"),
        (None, 3, "漏洞服务连不上"),
    ],
)
def test_the_exit_status_tells_clean_vulnerable_and_unknown_apart(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, object] | None,
    status: int,
    said: str,
) -> None:
    options = ["--tools", str(tools(tmp_path / "tools", answer)), "--out", str(tmp_path / "out")]
    assert audit.main(options) == status
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert "secret" not in shown.err
    bill = json.loads((tmp_path / "out" / "sbom.cdx.json").read_text("utf-8"))
    assert "pytest" not in [component["name"] for component in bill["components"]]
