"""Canonical SQL over the smaller tables: returns, inventory, staff, customers."""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Sequence

from models.training.frames import Frame
from models.training.periods import Period
from models.training.sql_parts import Column, Query, quote, time_step, where


def returns(frame: Frame) -> Query:
    """Query of a question about returns."""
    figure = Column("退货数量", "figure", "销量")
    total = "SUM(quantity) AS 退货数量"
    kind, product = frame.kind, Column("产品", "member", "product_name")
    if kind == "of_reason":
        return Query(f"SELECT {total} FROM returns{where(frame)}", (figure,), "one")
    if "rate" in kind:
        condition = where(frame)
        sql = (f"SELECT 退货数量, 销量, ROUND(100.0*退货数量/销量,2) AS 退货率 FROM (SELECT "
               f"(SELECT SUM(quantity) FROM returns{condition}) AS 退货数量, "
               f"(SELECT SUM(quantity) FROM sales_data{condition}) AS 销量)")  # fmt: skip
        return Query(sql, (figure, Column("销量", "figure", "销量"), Column("退货率", "percent")),
                     "one")  # fmt: skip
    if "reason" in kind:
        limit = f" LIMIT {frame.limit or 1}" if "top" in kind or frame.limit else ""
        sql = (f"SELECT reason AS 原因, {total} FROM returns{where(frame)} GROUP BY reason "
               f"ORDER BY 退货数量 DESC{limit}")  # fmt: skip
        return Query(sql, (Column("原因", "reason"), figure), "rows", "" if limit else "bar")
    if kind == "trend" or frame.grain:
        key, group, column = time_step(frame)
        if column.ref == "label":
            key, group = "year||'-Q'||quarter AS 季度", "year, quarter"
        sql = f"SELECT {key}, {total} FROM returns{where(frame)} GROUP BY {group} ORDER BY {group}"
        return Query(sql, (column, figure), "time", "line")
    if kind.startswith("top") or kind == "group" or frame.dim or frame.limit:
        limit = f" LIMIT {frame.limit or 1}" if frame.limit or kind in ("top1", "top") else ""
        sql = (f"SELECT product_name AS 产品, {total} FROM returns{where(frame)} "
               f"GROUP BY product_name ORDER BY 退货数量 DESC{limit}")  # fmt: skip
        return Query(sql, (product, figure), "rows", "" if limit.endswith(" 1") else "bar")
    return Query(f"SELECT {total} FROM returns{where(frame)}", (figure,), "one")


def _clause(conditions: Sequence[str]) -> str:
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def inventory(frame: Frame) -> Query:
    """Query of a question about inventory."""
    kind = frame.kind
    conditions = [f"{column}={quote(value)}" for column, value in frame.filters]
    product = Column("产品", "member", "product_name")
    stock, safety = Column("库存", "figure", "销量"), Column("安全库存", "figure", "销量")
    warehouse = Column("仓库", "warehouse")
    if kind in ("short", "low", "low_at"):
        clause = _clause([*conditions, "stock<safety_stock"])
        sql = (f"SELECT product_name AS 产品, warehouse AS 仓库, stock AS 库存, safety_stock AS 安全库存 "  # noqa: E501
               f"FROM inventory{clause} ORDER BY stock")  # fmt: skip
        return Query(sql, (product, warehouse, stock, safety), "rows")
    if kind == "safety":
        sql = (f"SELECT warehouse AS 仓库, safety_stock AS 安全库存 FROM inventory{_clause(conditions)} "  # noqa: E501
               f"ORDER BY safety_stock DESC")  # fmt: skip
        return Query(sql, (warehouse, safety), "rows", "bar")
    if kind in ("top", "bottom"):
        direction = "ASC" if kind == "bottom" else "DESC"
        sql = (f"SELECT product_name AS 产品, SUM(stock) AS 库存 FROM inventory{_clause(conditions)} "  # noqa: E501
               f"GROUP BY product_name ORDER BY 库存 {direction} LIMIT {frame.limit or 1}")  # fmt: skip  # noqa: E501
        return Query(sql, (product, stock), "rows", "bar")
    grouped = kind in ("product_warehouse", "by_warehouse", "warehouse", "group")
    if grouped and not frame.filter_value("warehouse"):
        sql = (f"SELECT warehouse AS 仓库, SUM(stock) AS 库存 FROM inventory{_clause(conditions)} "
               f"GROUP BY warehouse ORDER BY 库存 DESC")  # fmt: skip
        return Query(sql, (warehouse, stock), "rows", "bar")
    return Query(f"SELECT SUM(stock) AS 库存 FROM inventory{_clause(conditions)}", (stock,), "one")


def span(period: Period) -> tuple[str, str]:
    """First and last day of a year, quarter or month."""
    months = {"year": (1, 12), "quarter": (period.part * 3 - 2, period.part * 3),
              "month": (period.part, period.part)}[period.kind]  # fmt: skip
    last = calendar.monthrange(period.year, months[1])[1]
    return (datetime.date(period.year, months[0], 1).isoformat(),
            datetime.date(period.year, months[1], last).isoformat())  # fmt: skip


def _hired(period: Period, column: str) -> list[str]:
    if period.kind == "none":
        return []
    first, last = span(period)
    return [f"{column} BETWEEN '{first}' AND '{last}'"]


def staff(frame: Frame) -> Query:
    """Query of a question about staff."""
    rename = {"salesperson": "name"}
    conditions = [f"{rename.get(c, c)}={quote(value)}" for c, value in frame.filters]
    conditions += _hired(frame.period, "hire_date")
    clause, kind = _clause(conditions), frame.kind
    if kind in ("group", "top"):
        limit = " LIMIT 1" if kind == "top" else ""
        sql = (f"SELECT department AS 部门, COUNT(*) AS 人数 FROM staff{clause} GROUP BY department "  # noqa: E501
               f"ORDER BY 人数 DESC{limit}")  # fmt: skip
        chart = "" if limit else "bar"
        return Query(sql, (Column("部门", "department"), Column("人数", "count")), "rows", chart)
    if kind in ("", "total", "department", "new"):
        column = Column("人数", "count")
        return Query(f"SELECT COUNT(*) AS 人数 FROM staff{clause}", (column,), "one")
    order = " ORDER BY hire_date DESC"
    if frame.filter_value("salesperson"):
        order = ""
    if kind in ("newest", "oldest"):
        direction = "DESC" if kind == "newest" else "ASC"
        order = f" ORDER BY hire_date {direction} LIMIT {frame.limit or 1}"
    sql = (
        f"SELECT name AS 姓名, department AS 部门, hire_date AS 入职日期 FROM staff{clause}{order}"
    )
    columns = (Column("姓名", "member", "salesperson"), Column("部门", "department"),
               Column("入职日期", "date"))  # fmt: skip
    return Query(sql, columns, "person" if frame.filter_value("salesperson") else "people")


def customers(frame: Frame) -> Query:
    """Query of a question about customers."""
    rename = {"customer": "name"}
    conditions = [f"{rename.get(c, c)}={quote(value)}" for c, value in frame.filters]
    conditions += _hired(frame.period, "registered_date")
    clause, count = _clause(conditions), Column("客户数", "count")
    if frame.kind in ("group", "city_group"):
        column, alias = ("city", "城市") if frame.kind == "city_group" else ("level", "等级")
        sql = (f"SELECT {column} AS {alias}, COUNT(*) AS 客户数 FROM customers{clause} "
               f"GROUP BY {column} ORDER BY 客户数 DESC")  # fmt: skip
        return Query(sql, (Column(alias, column), count), "rows", "bar")
    if frame.kind in ("", "new", "count", "level", "total"):
        return Query(f"SELECT COUNT(*) AS 客户数 FROM customers{clause}", (count,), "one")
    sql = (
        f"SELECT name AS 客户, level AS 等级, city AS 城市, registered_date AS 注册日期 "
        f"FROM customers{clause}" + ("" if frame.filter_value("customer") else " ORDER BY name")
    )
    columns = (Column("客户", "member", "customer"), Column("等级", "level"), Column("城市", "city"),  # noqa: E501
               Column("注册日期", "date"))  # fmt: skip
    return Query(sql, columns, "person" if frame.filter_value("customer") else "people")
