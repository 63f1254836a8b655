"""Canonical SQL of a frame, and what its result columns hold.

Owns the one form of SQL that the models learn. Knows nothing of wording.
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from models.training.frames import Frame
from models.training.lexicon import DIMS, METRICS
from models.training.periods import Period


@dataclass(frozen=True)
class Column:
    """A result column: ``role`` tells what values it holds, ``ref`` of which thing.

    Roles: member (a name of dimension ``ref``), figure (of metric ``ref``), percent, rate,
    time (a step of grain ``ref``), count, date, text.
    """

    alias: str
    role: str
    ref: str = ""


@dataclass(frozen=True)
class Query:
    """SQL with its result columns, and the kind of row set: one, rows or time."""

    sql: str
    columns: tuple[Column, ...]
    shape: str
    chart: str = ""


def build(frame: Frame) -> Query:
    """The query of a frame. Raises KeyError for an intent that needs no SQL."""
    builders = {
        "total": _total, "top": _top, "bottom": _top, "group": _group, "trend": _trend,
        "peak_month": _best_month, "low_month": _best_month, "compare": _compare, "yoy": _growth,
        "mom": _growth, "share": _share, "average": _average, "distinct": _distinct,
        "having": _having, "target": _target, "price": _price, "list": _list, "returns": _returns,
        "inventory": _inventory, "staff": _staff, "customers": _customers, "sql_python": _series,
    }  # fmt: skip
    return builders[frame.intent](frame)


def quote(value: str) -> str:
    """A SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def where(
    frame: Frame, *, extra: Sequence[str] = (), period: Period | None = None, only: str = ""
) -> str:
    """`` WHERE ...`` with filters in fixed order, then time; empty when nothing restricts."""
    filters = [f"{column}={quote(value)}" for column, value in frame.filters
               if not only or column == only]  # fmt: skip
    time = (frame.period if period is None else period).conditions()
    conditions = [*extra, *filters, *time]
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def _figure(frame: Frame) -> tuple[str, Column]:
    metric = METRICS[frame.metric]
    return f"{metric.sql} AS {metric.alias}", Column(metric.alias, "figure", metric.alias)


def _member(dim: str) -> tuple[str, Column]:
    return f"{dim} AS {DIMS[dim].alias}", Column(DIMS[dim].alias, "member", dim)


def _total(frame: Frame) -> Query:
    expression, column = _figure(frame)
    return Query(f"SELECT {expression} FROM sales_data{where(frame)}", (column,), "one")


def _grouped(frame: Frame, tail: str, chart: str, extra: Sequence[str] = ()) -> Query:
    key, key_column = _member(frame.dim)
    expression, column = _figure(frame)
    sql = f"SELECT {key}, {expression} FROM sales_data{where(frame, extra=extra)} GROUP BY {frame.dim}"  # noqa: E501
    return Query(f"{sql}{tail}", (key_column, column), "rows", chart)


def _top(frame: Frame) -> Query:
    if frame.dim2:
        return _best_per(frame)
    direction = "DESC" if frame.intent == "top" else "ASC"
    tail = f" ORDER BY {frame.metric} {direction} LIMIT {frame.limit}"
    return _grouped(frame, tail, "bar" if frame.limit > 1 else "")


def _best_per(frame: Frame) -> Query:
    (key, first), (key2, second) = _member(frame.dim), _member(frame.dim2)
    expression, column = _figure(frame)
    direction = "DESC" if frame.intent == "top" else "ASC"
    rank = (f"ROW_NUMBER() OVER (PARTITION BY {frame.dim} ORDER BY {METRICS[frame.metric].sql} "
            f"{direction}) AS 名次")  # fmt: skip
    sql = (f"SELECT {first.alias}, {second.alias}, {column.alias} FROM (SELECT {key}, {key2}, "
           f"{expression}, {rank} FROM sales_data{where(frame)} GROUP BY {frame.dim}, {frame.dim2}) "  # noqa: E501
           f"WHERE 名次=1 ORDER BY {column.alias} DESC")  # fmt: skip
    return Query(sql, (first, second, column), "rows")


def _group(frame: Frame) -> Query:
    if frame.dim2:
        (key, first), (key2, second) = _member(frame.dim), _member(frame.dim2)
        expression, column = _figure(frame)
        sql = (f"SELECT {key}, {key2}, {expression} FROM sales_data{where(frame)} GROUP BY "
               f"{frame.dim}, {frame.dim2} ORDER BY {first.alias}, {column.alias} DESC")  # fmt: skip  # noqa: E501
        return Query(sql, (first, second, column), "rows")
    return _grouped(frame, f" ORDER BY {frame.metric} DESC", "bar")


def _time(frame: Frame) -> tuple[str, str, Column]:
    """Select expression, GROUP BY expression and column of the time step."""
    if frame.grain == "year":
        return "year AS 年份", "year", Column("年份", "time", "year")
    if frame.period.one_year:
        alias = "季度" if frame.grain == "quarter" else "月份"
        return f"{frame.grain} AS {alias}", frame.grain, Column(alias, "time", frame.grain)
    if frame.grain == "quarter":
        return "quarter_label AS 季度", "quarter_label", Column("季度", "time", "label")
    text = "SUBSTR(date,1,7)"
    return f"{text} AS 月份", text, Column("月份", "time", "year_month")


def _trend(frame: Frame) -> Query:
    if frame.kind in ("peak", "low"):
        return _best_month(frame)
    key, group, key_column = _time(frame)
    expression, column = _figure(frame)
    sql = f"SELECT {key}, {expression} FROM sales_data{where(frame)} GROUP BY {group} ORDER BY {group}"  # noqa: E501
    return Query(sql, (key_column, column), "time", "line")


def _best_month(frame: Frame) -> Query:
    key, group, key_column = _time(frame)
    expression, column = _figure(frame)
    direction = "ASC" if "low" in (frame.kind, frame.intent[:3]) else "DESC"
    sql = (f"SELECT {key}, {expression} FROM sales_data{where(frame)} GROUP BY {group} "
           f"ORDER BY {column.alias} {direction} LIMIT 1")  # fmt: skip
    return Query(sql, (key_column, column), "best")


def _compare(frame: Frame) -> Query:
    if frame.period2.kind != "none":
        return _compare_periods(frame)
    names = ",".join(quote(value) for value in frame.values)
    return _grouped(
        frame, f" ORDER BY {frame.metric} DESC", "bar", extra=(f"{frame.dim} IN ({names})",)
    )


def _compare_periods(frame: Frame) -> Query:
    expression, column = _figure(frame)
    parts = [f"SELECT {quote(period.label('zh'))} AS 时间, {expression} FROM sales_data"
             f"{where(frame, period=period)}"
             for period in (frame.period, frame.period2)]  # fmt: skip
    return Query(" UNION ALL ".join(parts), (Column("时间", "span"), column), "spans", "bar")


def _when(period: Period, per_row: str) -> str:
    return f"SUM(CASE WHEN {' AND '.join(period.conditions())} THEN {per_row} ELSE 0 END)"


def _growth(frame: Frame) -> Query:
    yoy = frame.intent == "yoy"
    rate = "同比" if yoy else "环比"
    before = frame.period.year_before() if yoy else frame.period.previous()
    per_row = METRICS[frame.metric].per_row
    key, column = _member(frame.dim) if frame.dim else ("", None)
    keys = f"{key}, " if column else ""
    inner = (f"SELECT {keys}{_when(frame.period, per_row)} AS 本期, {_when(before, per_row)} AS 上期 "  # noqa: E501
             f"FROM sales_data{_filters_only(frame)}")  # fmt: skip
    head = f"{column.alias}, " if column else ""
    tail = f" GROUP BY {frame.dim}" if column else ""
    order = f" ORDER BY {rate} DESC" if column else ""
    sql = (f"SELECT {head}本期, 上期, ROUND(100.0*(本期-上期)/上期,2) AS {rate} "
           f"FROM ({inner}{tail}){order}")  # fmt: skip
    columns = (Column("本期", "figure", frame.metric), Column("上期", "figure", frame.metric),
               Column(rate, "rate"))  # fmt: skip
    return Query(sql, (column, *columns) if column else columns, "rows" if column else "one")


def _filters_only(frame: Frame) -> str:
    conditions = [f"{column}={quote(value)}" for column, value in frame.filters]
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def _share(frame: Frame) -> Query:
    metric = METRICS[frame.metric]
    if frame.values:
        condition = f"{frame.dim}={quote(frame.values[0])}"
        part = f"SUM(CASE WHEN {condition} THEN {metric.per_row} ELSE 0 END)"
        sql = (f"SELECT {part} AS {metric.alias}, ROUND(100.0*{part}/{metric.sql},2) AS 占比 "
               f"FROM sales_data{where(frame)}")  # fmt: skip
        return Query(sql, (_figure(frame)[1], Column("占比", "percent")), "one")
    key, key_column = _member(frame.dim)
    sql = (f"SELECT {key}, {metric.sql} AS {metric.alias}, ROUND(100.0*{metric.sql}/"
           f"SUM({metric.sql}) OVER (),2) AS 占比 FROM sales_data{where(frame)} "
           f"GROUP BY {frame.dim} ORDER BY {metric.alias} DESC")  # fmt: skip
    return Query(sql, (key_column, _figure(frame)[1], Column("占比", "share")), "rows", "share")


def _average(frame: Frame) -> Query:
    if not frame.dim and not frame.grain:
        return _total(frame)
    group = frame.dim or _time(frame)[1]
    expression, column = _figure(frame)
    alias = f"平均{column.alias}"
    sql = (f"SELECT AVG({column.alias}) AS {alias} FROM (SELECT {expression} FROM sales_data"
           f"{where(frame)} GROUP BY {group})")  # fmt: skip
    return Query(sql, (Column(alias, "figure", frame.metric),), "one")


def _distinct(frame: Frame) -> Query:
    alias = f"{DIMS[frame.dim].alias}数"
    sql = f"SELECT COUNT(DISTINCT {frame.dim}) AS {alias} FROM sales_data{where(frame)}"
    return Query(sql, (Column(alias, "count"),), "one")


def _having(frame: Frame) -> Query:
    operator, number = frame.threshold
    tail = f" HAVING {METRICS[frame.metric].sql}{operator}{number} ORDER BY {frame.metric} DESC"
    return _grouped(frame, tail, "bar")


def _target(frame: Frame) -> Query:
    kind = frame.kind
    amount = (Column("目标", "figure", "销售额"), Column("实际", "figure", "销售额"),
              Column("完成率", "percent"))  # fmt: skip
    if kind == "amount":
        sql = f"SELECT SUM(amount) AS 目标 FROM targets{where(frame, only='region')}"
        return Query(sql, amount[:1], "one")
    if frame.filter_value("region") or kind == "total":
        time = where(frame, only="region")
        sql = (f"SELECT 目标, 实际, ROUND(100.0*实际/目标,2) AS 完成率 FROM (SELECT (SELECT SUM(amount) "  # noqa: E501
               f"FROM targets{time}) AS 目标, (SELECT SUM(quantity*price) FROM sales_data{time}) "
               f"AS 实际)")  # fmt: skip
        return Query(sql, amount, "one")
    time = where(frame)
    sold = where(frame, extra=("region=targets.region",))
    condition = {"missed": " WHERE 实际<目标", "reached": " WHERE 实际>=目标"}.get(kind, "")
    sql = (f"SELECT 区域, 目标, 实际, ROUND(100.0*实际/目标,2) AS 完成率 FROM (SELECT region AS 区域, "  # noqa: E501
           f"SUM(amount) AS 目标, (SELECT SUM(quantity*price) FROM sales_data{sold}) AS 实际 "
           f"FROM targets{time} GROUP BY region){condition} ORDER BY 完成率 DESC")  # fmt: skip
    return Query(sql, (Column("区域", "member", "region"), *amount), "rows")


def _price(frame: Frame) -> Query:
    if frame.filter_value("product_name"):
        sql = f"SELECT ROUND(AVG(price),2) AS 均价 FROM sales_data{where(frame)}"
        return Query(sql, (Column("均价", "figure", "均价"),), "one")
    direction = "ASC" if frame.kind.startswith(("low", "cheap", "min", "bottom")) else "DESC"
    limit = f" LIMIT {frame.limit}" if frame.limit else ""
    having = f" HAVING AVG(price){''.join(frame.threshold)}" if frame.threshold[1] else ""
    sql = (f"SELECT product_name AS 产品, ROUND(AVG(price),2) AS 均价 FROM sales_data{where(frame)} "  # noqa: E501
           f"GROUP BY product_name{having} ORDER BY 均价 {direction}{limit}")  # fmt: skip
    return Query(sql, (Column("产品", "member", "product_name"), Column("均价", "figure", "均价")),
                 "rows", "" if frame.limit == 1 else "bar")  # fmt: skip


def _list(frame: Frame) -> Query:
    if frame.dim:
        key, column = _member(frame.dim)
        sql = f"SELECT DISTINCT {key} FROM sales_data{where(frame)} ORDER BY {frame.dim}"
        return Query(sql, (column,), "names")
    order = {"biggest": "金额 DESC", "smallest": "金额 ASC"}.get(frame.kind, "date DESC")
    sql = (f"SELECT date AS 日期, product_name AS 产品, customer AS 客户, quantity AS 数量, "
           f"quantity*price AS 金额 FROM sales_data{where(frame)} ORDER BY {order} "
           f"LIMIT {frame.limit or 10}")  # fmt: skip
    columns = (Column("日期", "date"), Column("产品", "member", "product_name"),
               Column("客户", "member", "customer"), Column("数量", "small"),
               Column("金额", "figure", "客单价"))  # fmt: skip
    return Query(sql, columns, "orders")


def _returns(frame: Frame) -> Query:
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
        key, group, column = _time(frame)
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


def _inventory(frame: Frame) -> Query:
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


def _staff(frame: Frame) -> Query:
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


def _customers(frame: Frame) -> Query:
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


def _series(frame: Frame) -> Query:
    """The first step of a two-step question: a figure per time step or per member."""
    query = _grouped(frame, f" ORDER BY {frame.metric} DESC", "") if frame.dim else _trend(frame)
    return Query(query.sql, query.columns, query.shape)
