"""The fake company: its credentials, its one app, its employees. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Employee:
    """One member. ``color`` is the avatar's, as a CSS colour."""

    user_id: str
    name: str
    department: str
    color: str


EMPLOYEES = (
    Employee("WangFang", "王芳", "销售部", "#3d8bf2"),
    Employee("LiLei", "李雷", "市场部", "#f29b3d"),
    Employee("ZhangWei", "张伟", "财务部", "#2fae7f"),
    Employee("ZhaoMin", "赵敏", "采购部", "#8a6cf0"),
    Employee("ChenJing", "陈静", "人事部", "#e5677f"),
    Employee("LiuYang", "刘洋", "仓储部", "#2aa5b8"),
)

# What the chips of the chat page offer; the README walks through the same questions.
EXAMPLES = (
    "分析华东区Q3销售TOP5产品",
    "那华北呢",
    "2024年每月销售额趋势",
    "上季度各品类销售额占比",
    "帮我算一下 (1280*36+950)*0.85",
    "年假有几天",
)


@dataclass(frozen=True)
class Corp:
    """What the admin console knows of the company and the app. Secrets stay out of ``repr``."""

    corp_id: str
    agent_id: int
    corp_secret: str = field(repr=False)
    token: str = field(repr=False)
    encoding_aes_key: str = field(repr=False)
    name: str = "胡同演示公司"
    app_name: str = "胡同"
    employees: tuple[Employee, ...] = EMPLOYEES

    def employee(self, user_id: str) -> Employee | None:
        """The member with that id; ids are compared without case, as the service does."""
        return self._by_id.get(user_id.lower())

    @cached_property
    def departments(self) -> dict[str, int]:
        """Names and ids of the departments; 1 is the company itself."""
        names = dict.fromkeys(e.department for e in self.employees)
        return {name: number for number, name in enumerate(names, start=2)}

    @cached_property
    def _by_id(self) -> dict[str, Employee]:
        return {e.user_id.lower(): e for e in self.employees}
