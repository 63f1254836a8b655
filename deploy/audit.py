"""``make audit``: known vulnerabilities of everything we install, and a bill of materials.

Owns which packages are looked at (what the pinned requirements bring in .venv, all the way down)
and what the answers mean. Knows no vulnerabilities: pip-audit asks the service. Runs in .venv;
the two tools live in an environment of their own, ``var/audit/tools``.

Exit status: 0 every package was judged and is clean; 1 something is known to be vulnerable;
3 not all could be judged (the service cannot be reached, or does not know a package). The bill of
materials is written in every case.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SHIPPED = ("requirements.txt", "requirements-gpu.txt")
ALL = (*SHIPPED, "requirements-dev.txt")
CLEAN, VULNERABLE, NOT_JUDGED = 0, 1, 3
_TIMEOUT_S = 1800


@dataclass
class Report:
    """What the service said. ``unjudged`` packages it does not know."""

    judged: int = 0
    unjudged: list[str] = field(default_factory=list)
    vulnerable: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status."""
        if self.vulnerable:
            return VULNERABLE
        return NOT_JUDGED if self.unjudged or not self.judged else CLEAN


def pins(root: Path, names: Sequence[str]) -> Iterator[Requirement]:
    """The requirements of the files and of those they include that fit this machine."""
    for name in names:
        path = root / name
        for line in path.read_text("utf-8").splitlines():
            text = line.split("#")[0].strip()
            if text.startswith("-r "):
                # Our files name each other from the root.
                yield from pins(root, [text.removeprefix("-r ").strip()])
            elif text:
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate():
                    yield requirement


def closure(wanted: Sequence[Requirement]) -> tuple[dict[str, str], list[str]]:
    """Versions of all that ``wanted`` bring along in this environment, by name; and what is
    neither installed nor pinned."""
    found: dict[str, str] = {}
    missing: list[str] = []
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(wanted)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            package = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            pinned = [clause.version for clause in requirement.specifier if clause.operator == "=="]
            if pinned:
                found[name] = pinned[0]
            else:
                missing.append(f"{name}{requirement.specifier}")
            continue
        # A local version (+cpu) is a build of the same source.
        found[name] = package.version.partition("+")[0]
        for text in package.requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                waiting.append(needed)
    return found, sorted(set(missing))


def judge(answer: Mapping[str, Any]) -> Report:
    """Read pip-audit's JSON. A package it skipped is not a clean one."""
    report = Report()
    for package in answer["dependencies"]:
        name = package["name"]
        if "skip_reason" in package:
            report.unjudged.append(name)
            continue
        report.judged += 1
        for found in package["vulns"]:
            fixed = "、".join(found.get("fix_versions") or ()) or "还没有"
            report.vulnerable.append(
                f"{name} {package['version']}：{found['id']}，修好的版本：{fixed}"
            )
    return report


def only(bill: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """The bill of materials of the packages in ``names`` alone."""
    kept = [c for c in bill["components"] if canonicalize_name(c["name"]) in names]
    refs = {component["bom-ref"] for component in kept}
    own = bill["metadata"]["component"]["bom-ref"]
    graph = []
    for entry in bill.get("dependencies", []):
        if entry["ref"] in refs:
            needs = [ref for ref in entry.get("dependsOn", []) if ref in refs]
            graph.append({"ref": entry["ref"], **({"dependsOn": needs} if needs else {})})
    graph.append({"ref": own, "dependsOn": sorted(refs)})
    return {**bill, "components": kept, "dependencies": graph}


def main(argv: Sequence[str] | None = None) -> int:
    """Audit; the exit status."""
    parser = argparse.ArgumentParser(prog="deploy/audit.py", description="Audit what we install.")
    parser.add_argument("--tools", type=Path, default=ROOT / "var/audit/tools")
    parser.add_argument("--out", type=Path, default=ROOT / "var", help="where the results go")
    options = parser.parse_args(argv)
    work = options.out / "audit"
    work.mkdir(parents=True, exist_ok=True)
    versions, missing = closure(list(pins(ROOT, ALL)))
    listed = work / "requirements.txt"
    listed.write_text("".join(f"{n}=={v}\n" for n, v in sorted(versions.items())), "utf-8")
    print(f"{len(versions)} 个包（{'、'.join(ALL)} 连同它们带来的全部）：{listed}")
    if missing:
        print(f"没有装在这里、没有查的：{'、'.join(missing)}")
    if not _install(options.tools):
        return NOT_JUDGED
    shipped, _ = closure(list(pins(ROOT, SHIPPED)))
    _write_bill(options.tools, options.out / "sbom.cdx.json", set(shipped))
    return _ask(options.tools, listed, work / "findings.json", missing)


def _install(tools: Path) -> bool:
    if all((tools / "bin" / name).exists() for name in ("pip-audit", "cyclonedx-py")):
        return True
    print(f"安装审计工具到 {tools}")
    pip = [str(tools / "bin/python"), "-m", "pip", "install", "--quiet"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
        subprocess.run([*pip, "-r", str(ROOT / "requirements-audit.txt")], check=True)
    except subprocess.CalledProcessError:
        print("审计工具装不上（看上面 pip 的话）；什么也没有查。", file=sys.stderr)
        return False
    return True


def _write_bill(tools: Path, path: Path, names: set[str]) -> None:
    command = [str(tools / "bin/cyclonedx-py"), "environment", "--of", "JSON", "-o", "-"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    done = subprocess.run(
        [*command, sys.executable], check=True, capture_output=True, timeout=_TIMEOUT_S
    )
    bill = only(json.loads(done.stdout), names)
    path.write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"物料清单（CycloneDX {bill['specVersion']}，{len(bill['components'])} 个包）：{path}")


def _ask(tools: Path, listed: Path, answer: Path, missing: Sequence[str]) -> int:
    answer.unlink(missing_ok=True)
    command = [str(tools / "bin/pip-audit"), "-r", str(listed), "--no-deps", "--disable-pip"]
    command += ["-f", "json", "-o", str(answer), "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    try:
        report = judge(json.loads(answer.read_text("utf-8")))
    except (OSError, ValueError):
        print(_reason(done.stderr), file=sys.stderr)
        print("漏洞服务连不上：没有查，不等于没有漏洞。请在能上网的机器上再运行。", file=sys.stderr)
        return NOT_JUDGED
    for line in report.vulnerable:
        print(f"✗ {line}")
    if report.unjudged:
        print(
            f"漏洞服务不认识 {len(report.unjudged)} 个包，没有查，不等于没有漏洞："
            f"{'、'.join(report.unjudged[:10])}{'…' if len(report.unjudged) > 10 else ''}。"
            "（只有软件包镜像、没有 PyPI 的漏洞接口时，全部会是这样。）",
            file=sys.stderr,
        )
    print(f"查了 {report.judged} 个包，已知漏洞 {len(report.vulnerable)} 个：{answer}")
    return report.status if report.status or not missing else NOT_JUDGED


def _reason(text: str) -> str:
    """The last line that says something, without the addresses a mirror may carry."""
    lines = [line for line in text.splitlines() if line.strip()]
    return re.sub(r"//[^/@\s]*@", "//", lines[-1])[:300] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
