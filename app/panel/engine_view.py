"""The facts of a model process in the form the engine tab shows.

Owns the reading of ``ProcessReport.facts`` as ``workers.engine_facts`` writes them: every fact may
be missing, and one of another version is left out rather than an error. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.store.presence import ProcessReport

CELL_WIDTH = 24
CELL_HEIGHT = 12
"""Of a heat-map cell with the gap beside it, in SVG units."""


@dataclass(frozen=True)
class PlanRow:
    """One part of the GPU memory plan; ``share`` of the whole, 0-1."""

    name: str
    size_bytes: int
    share: float


@dataclass(frozen=True)
class Cell:
    """One cell of the heat map. ``load`` 1.0 is an even share; ``opacity`` 0-1."""

    x: int
    y: int
    opacity: float
    title: str


@dataclass(frozen=True)
class HeatMap:
    """Activations by layer (down) and expert (across), binned by the worker."""

    layers: int
    experts: int
    width: int
    height: int
    cells: tuple[Cell, ...]
    hottest: float
    cell_width: int = CELL_WIDTH
    cell_height: int = CELL_HEIGHT


@dataclass(frozen=True)
class EngineView:
    """One model process. ``figures`` are (name, value, unit kind) in the order of the page."""

    process_id: str
    model: str
    figures: tuple[tuple[str, float, str], ...]
    plan: tuple[PlanRow, ...]
    plan_bytes: int
    used_bytes: int
    heat: HeatMap | None


_FIGURES = (
    ("num_running", "正在回答", "count"),
    ("num_waiting", "引擎里等待", "count"),
    ("decode_tokens_per_s", "生成速度", "rate"),
    ("prefill_tokens_per_s", "读提示词速度", "rate"),
    ("decode_tokens", "共生成 token", "count"),
    ("prefill_tokens", "共读入 token", "count"),
    ("prefix_hit_rate", "前缀缓存复用", "share"),
    ("expert_hit_rate", "专家命中率", "share"),
    ("expert_recall_on_misses", "未命中专家的预测召回", "share"),
    ("expert_slots", "专家槽位", "count"),
    ("expert_misses", "专家未命中", "count"),
    ("stall_share", "等专家的时间占比", "share"),
    ("stall_s", "等专家共用", "seconds"),
)


def of(report: ProcessReport) -> EngineView:
    """What is known of a model process."""
    facts = report.facts
    figures = tuple(
        (title, float(facts[name]), kind)
        for name, title, kind in _FIGURES
        if _is_number(facts.get(name))
    )
    used = facts.get("gpu_memory_bytes")
    plan = _plan(facts.get("memory_plan"))
    return EngineView(
        process_id=report.process_id,
        model=str(facts.get("model", "")),
        figures=figures,
        plan=plan,
        plan_bytes=sum(row.size_bytes for row in plan),
        used_bytes=int(used) if isinstance(used, int | float) else 0,
        heat=_heat(facts.get("activation")),
    )


def _plan(value: Any) -> tuple[PlanRow, ...]:
    if not isinstance(value, list):
        return ()
    rows = [
        (str(row[0]), int(row[1]))
        for row in value
        if isinstance(row, list) and len(row) == 2 and _is_number(row[1])
    ]
    total = sum(size for _, size in rows)
    return tuple(PlanRow(name, size, size / total) for name, size in rows) if total > 0 else ()


def _heat(value: Any) -> HeatMap | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("loads"), list):
        return None
    rows = [
        [float(load) for load in row if _is_number(load)]
        for row in value["loads"]
        if isinstance(row, list)
    ]
    hottest = max((load for row in rows for load in row), default=0.0)
    if hottest <= 0:
        return None
    cells = tuple(
        Cell(
            x=CELL_WIDTH * column,
            y=CELL_HEIGHT * line,
            # The root makes the difference between little and nothing visible.
            opacity=round((load / hottest) ** 0.5, 3),
            title=f"第 {line + 1} 行第 {column + 1} 列：均匀负载的 {load:.2f} 倍",
        )
        for line, row in enumerate(rows)
        for column, load in enumerate(row)
    )
    return HeatMap(
        layers=int(value.get("layers", len(rows))),
        experts=int(value.get("experts", len(rows[0]))),
        width=CELL_WIDTH * max(len(row) for row in rows),
        height=CELL_HEIGHT * len(rows),
        cells=cells,
        hottest=hottest,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
