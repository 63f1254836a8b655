"""Canonical SQL of a frame, and what its result columns hold.

Owns the one form of SQL that the models learn. Knows nothing of wording.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.training import records, schema_jitter
from models.training.frames import Frame
from models.training.lexicon import DIMS, METRICS
from models.training.periods import Period
from models.training.sql_parts import Column, Query, quote, time_step, where, without


def build(frame: Frame) -> Query:
    """The query of a frame. Raises KeyError for an intent that needs no SQL."""
    builders = {
        "total": _total, "top": _top, "bottom": _top, "group": _group, "trend": _trend,
        "peak_month": _best_month, "low_month": _best_month, "compare": _compare, "yoy": _growth,
        "mom": _growth, "share": _share, "average": _average, "distinct": _distinct,
        "having": _having, "target": _target, "price": _price, "list": _list, "returns": records.returns,  # noqa: E501
        "inventory": records.inventory, "staff": records.staff, "customers": records.customers, "sql_python": _series,  # noqa: E501
    }  # fmt: skip
    return schema_jitter.adapt(builders[frame.intent](frame))


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


def _trend(frame: Frame) -> Query:
    if frame.kind in ("peak", "low"):
        return _best_month(frame)
    key, group, key_column = time_step(frame)
    expression, column = _figure(frame)
    sql = f"SELECT {key}, {expression} FROM sales_data{where(frame)} GROUP BY {group} ORDER BY {group}"  # noqa: E501
    return Query(sql, (key_column, column), "time", "line")


def _best_month(frame: Frame) -> Query:
    key, group, key_column = time_step(frame)
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
    conditions += without(frame)
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
    group = frame.dim or time_step(frame)[1]
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


def _series(frame: Frame) -> Query:
    """The first step of a two-step question: a figure per time step or per member."""
    query = _grouped(frame, f" ORDER BY {frame.metric} DESC", "") if frame.dim else _trend(frame)
    return Query(query.sql, query.columns, query.shape)
