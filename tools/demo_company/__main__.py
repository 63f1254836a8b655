"""``python -m tools.demo_company --out DIR`` writes ``DIR/company.db``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tools.demo_company.generate import generate


def main() -> None:
    """Write the database and print the rows of each table."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_company", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("var"), help="folder for company.db")
    arguments = parser.parse_args()
    path: Path = arguments.out / "company.db"
    print(f"生成演示公司数据库 {path} …", flush=True)
    started = time.perf_counter()
    counts = generate(path)
    size_mb = path.stat().st_size / 1e6
    rows = "，".join(f"{table} {count}" for table, count in counts.items())
    print(f"完成：{rows}；{size_mb:.1f} MB，{time.perf_counter() - started:.1f} 秒")


if __name__ == "__main__":
    main()
