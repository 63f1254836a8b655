"""Writes the demo company's SQLite database: the same bytes of data for the same seed.

Owns the random model of the company. Knows nothing of tools, prompts or models.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import itertools
import os
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tools.demo_company import catalog

SEED = 20241115
FIRST_DAY = datetime.date(2022, 1, 1)
LAST_DAY = datetime.date(2024, 11, 14)
ORDERS_PER_DAY = 112.0
"""Mean orders a day of an average month of 2022, before growth."""

SCHEMA = """
CREATE TABLE sales_data (
    order_id INTEGER PRIMARY KEY, date TEXT NOT NULL, year INTEGER NOT NULL,
    quarter INTEGER NOT NULL, month INTEGER NOT NULL, quarter_label TEXT NOT NULL,
    product_id TEXT NOT NULL, product_name TEXT NOT NULL, category TEXT NOT NULL,
    region TEXT NOT NULL, channel TEXT NOT NULL, quantity INTEGER NOT NULL, price REAL NOT NULL,
    customer TEXT NOT NULL, salesperson TEXT NOT NULL);
CREATE TABLE customers (
    name TEXT PRIMARY KEY, level TEXT NOT NULL, city TEXT NOT NULL, registered_date TEXT NOT NULL);
CREATE TABLE staff (name TEXT PRIMARY KEY, department TEXT NOT NULL, hire_date TEXT NOT NULL);
CREATE TABLE returns (
    date TEXT NOT NULL, year INTEGER NOT NULL, quarter INTEGER NOT NULL, month INTEGER NOT NULL,
    product_name TEXT NOT NULL, quantity INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE targets (
    region TEXT NOT NULL, year INTEGER NOT NULL, quarter INTEGER NOT NULL, amount REAL NOT NULL,
    PRIMARY KEY (region, year, quarter));
CREATE TABLE inventory (
    product_name TEXT NOT NULL, warehouse TEXT NOT NULL, stock INTEGER NOT NULL,
    safety_stock INTEGER NOT NULL, PRIMARY KEY (product_name, warehouse));
"""
INDEXES = """
CREATE INDEX sales_period ON sales_data (year, quarter, region, product_name, quantity, price);
CREATE INDEX sales_month ON sales_data (year, month, region, category, quantity, price);
CREATE INDEX sales_date ON sales_data (date, quantity, price);
CREATE INDEX sales_product ON sales_data (product_name, year, quantity, price);
CREATE INDEX sales_customer ON sales_data (customer, year, quantity, price);
CREATE INDEX sales_salesperson ON sales_data (salesperson, year, quantity, price);
CREATE INDEX sales_channel ON sales_data (channel, year, quarter, category, quantity, price);
CREATE INDEX returns_product ON returns (product_name, year, quarter);
"""

SalesRow = tuple[
    int, str, int, int, int, str, str, str, str, str, str, int, float, str, str
]  # fmt: skip


@dataclass(frozen=True)
class Person:
    """One employee; ``region`` is empty outside the sales department."""

    name: str
    department: str
    hire_date: datetime.date
    region: str = ""


@dataclass(frozen=True)
class Customer:
    """One buying company; ``weight`` its relative number of orders within the region."""

    name: str
    level: str
    city: str
    region: str
    registered: datetime.date
    weight: float


T = TypeVar("T")


class Picker(Generic[T]):
    """Weighted choice from fixed items, one ``random()`` a pick."""

    def __init__(self, items: Sequence[T], weights: Iterable[float]) -> None:
        self._items = items
        self._cumulative = list(itertools.accumulate(weights))

    def pick(self, rng: random.Random) -> T:
        """One item, with probability in proportion to its weight."""
        point = rng.random() * self._cumulative[-1]
        return self._items[min(bisect.bisect(self._cumulative, point), len(self._items) - 1)]


def quarter_of(month: int) -> int:
    """1-4 for a month 1-12."""
    return (month + 2) // 3


def make_staff(rng: random.Random) -> list[Person]:
    """All employees, names unique. At least one seller of each region predates the first order."""
    names = [surname + given for surname in catalog.SURNAMES for given in catalog.GIVEN_NAMES]
    rng.shuffle(names)
    fresh = iter(names)
    people: list[Person] = []
    for region, count in catalog.SALES_STAFF.items():
        for index in range(count):
            hired = datetime.date(2015, 3, 1) + datetime.timedelta(days=int(rng.random() * 2400))
            if index == count - 1 and count > 2:
                hired = datetime.date(2022, 3, 1) + datetime.timedelta(days=int(rng.random() * 800))
            people.append(Person(next(fresh), catalog.SALES_DEPARTMENT, hired, region))
    for department, count in catalog.DEPARTMENTS.items():
        for _ in range(count):
            hired = datetime.date(2014, 6, 1) + datetime.timedelta(days=int(rng.random() * 3780))
            people.append(Person(next(fresh), department, hired))
    return people


def make_customers(rng: random.Random) -> list[Customer]:
    """All customers, names unique; the busiest of a region get the higher levels."""
    brands = [first + second for first in catalog.BRAND_FIRST for second in catalog.BRAND_SECOND]
    rng.shuffle(brands)
    fresh = iter(brands)
    customers: list[Customer] = []
    for region, count in catalog.CUSTOMER_COUNT.items():
        cities = catalog.CITIES[region]
        for rank in range(count):
            share = rank / count
            level = catalog.LEVELS[3 - sum(share >= edge for edge in (0.08, 0.28, 0.6))]
            city = cities[int(rng.random() ** 1.6 * len(cities))]
            kind = catalog.COMPANY_KINDS[int(rng.random() * len(catalog.COMPANY_KINDS))]
            since = datetime.date(2017, 1, 1) + datetime.timedelta(days=int(rng.random() * 1800))
            if rank % 4 == 3:
                since = datetime.date(2022, 1, 1) + datetime.timedelta(
                    days=int(rng.random() * 1020)
                )
            weight = 1.0 / (rank + 3) ** 0.85 * (0.9 + 0.2 * rng.random())
            name = f"{city}{next(fresh)}{kind}"
            customers.append(Customer(name, level, city, region, since, weight))
    return customers


class _Sales:
    """Draws orders day by day."""

    def __init__(self, rng: random.Random, people: list[Person], customers: list[Customer]) -> None:
        self._rng = rng
        self._sellers: dict[str, Picker[Person]] = {}
        self._customers: dict[str, Picker[Customer]] = {}
        for region in catalog.REGIONS:
            team = [person for person in people if person.region == region]
            weights = [1.0 / (index + 2) ** 0.6 for index in range(len(team))]
            self._sellers[region] = Picker(team, weights)
            buyers = [customer for customer in customers if customer.region == region]
            self._customers[region] = Picker(buyers, [buyer.weight for buyer in buyers])

    def rows(self) -> Iterator[SalesRow]:
        """Every order of the company's life, in date order."""
        order_id = 100001
        day = FIRST_DAY
        pickers: dict[tuple[int, int], Picker[tuple[str, str, catalog.Product]]] = {}
        while day <= LAST_DAY:
            years = (day - FIRST_DAY).days / 365.25
            if (day.year, day.month) not in pickers:
                pickers[day.year, day.month] = _mix(years, day.month)
            mean = ORDERS_PER_DAY * 1.13**years * catalog.MONTH_FACTOR[day.month - 1]
            mean *= 1.18 if day.weekday() >= 5 else 0.95
            mean *= 2.2 if (day.month, day.day) in {(6, 18), (11, 11)} else 1.0
            for _ in range(max(1, round(self._rng.gauss(mean, mean**0.5)))):
                yield self._order(order_id, day, years, pickers[day.year, day.month])
                order_id += 1
            day += datetime.timedelta(days=1)

    def _order(
        self,
        order_id: int,
        day: datetime.date,
        years: float,
        mix: Picker[tuple[str, str, catalog.Product]],
    ) -> SalesRow:
        rng = self._rng
        region, channel, product = mix.pick(rng)
        seller = self._sellers[region].pick(rng)
        while seller.hire_date > day:
            seller = self._sellers[region].pick(rng)
        customer = self._customers[region].pick(rng)
        while customer.registered > day:
            customer = self._customers[region].pick(rng)
        most = 6 if product.price < 500 else 3 if product.price < 3000 else 2
        quantity = 1 + int(rng.random() ** 2.2 * most)
        aged = product.price * (1.0 - 0.03 * years) * catalog.CHANNEL_PRICE[channel]
        price = float(round(aged * (0.97 + 0.06 * rng.random())))
        quarter = quarter_of(day.month)
        return (
            order_id, day.isoformat(), day.year, quarter, day.month, f"{day.year}-Q{quarter}",
            product.product_id, product.name, product.category, region, channel, quantity, price,
            customer.name, seller.name,
        )  # fmt: skip


def _mix(years: float, month: int) -> Picker[tuple[str, str, catalog.Product]]:
    """Joint weights of region, channel and product in one month."""
    items: list[tuple[str, str, catalog.Product]] = []
    weights: list[float] = []
    for region, (region_share, region_growth) in catalog.REGIONS.items():
        for channel, (channel_share, channel_growth) in catalog.CHANNELS.items():
            base = region_share * region_growth**years * channel_share * channel_growth**years
            for product in catalog.PRODUCTS:
                weight = base * product.weight
                weight *= catalog.TASTE.get((region, product.category), 1.0)
                weight *= catalog.FAVOURITES.get((region, product.name), 1.0)
                weight *= catalog.CATEGORY_MONTH.get((product.category, month), 1.0)
                items.append((region, channel, product))
                weights.append(weight)
    return Picker(items, weights)


def make_returns(rng: random.Random, sales: Sequence[SalesRow]) -> list[tuple[object, ...]]:
    """Returned goods, a few days after their order, in date order."""
    reasons = Picker(tuple(catalog.RETURN_REASONS), catalog.RETURN_REASONS.values())
    rows: list[tuple[object, ...]] = []
    for sale in sales:
        if rng.random() >= catalog.RETURN_RATE[sale[8]]:
            continue
        day = datetime.date.fromisoformat(sale[1]) + datetime.timedelta(
            days=2 + int(rng.random() * 12)
        )
        quantity = 1 + int(rng.random() * sale[11])
        if day <= LAST_DAY:
            rows.append(
                (
                    day.isoformat(), day.year, quarter_of(day.month), day.month, sale[7],
                    quantity, reasons.pick(rng),
                )
            )  # fmt: skip
    rows.sort(key=lambda row: str(row[0]))
    return rows


def make_targets(rng: random.Random, sales: Sequence[SalesRow]) -> list[tuple[object, ...]]:
    """Sales targets of every region and quarter, whole ten thousands of yuan."""
    actual: dict[tuple[str, int, int], float] = defaultdict(float)
    for sale in sales:
        actual[sale[9], sale[2], sale[3]] += sale[11] * sale[12]
    rows: list[tuple[object, ...]] = []
    for region in catalog.REGIONS:
        for year in range(FIRST_DAY.year, LAST_DAY.year + 1):
            for quarter in (1, 2, 3, 4):
                amount = actual[region, year, quarter]
                if (year, quarter) == (LAST_DAY.year, quarter_of(LAST_DAY.month)):
                    amount = actual[region, year - 1, quarter] * 1.12
                amount *= 0.88 + 0.24 * rng.random()
                rows.append((region, year, quarter, float(round(amount / 10000) * 10000)))
    return rows


def make_inventory(rng: random.Random) -> list[tuple[object, ...]]:
    """Stock and safety stock of every product in every warehouse; some are short."""
    rows: list[tuple[object, ...]] = []
    for product in catalog.PRODUCTS:
        for warehouse, size in catalog.WAREHOUSES.items():
            safety = 5 * max(2, round(product.weight * size * 9))
            stock = int(safety * (0.55 + 2.1 * rng.random()))
            rows.append((product.name, warehouse, stock, safety))
    return rows


def generate(path: Path, *, seed: int = SEED) -> dict[str, int]:
    """Write the database to ``path`` (replaced atomically) and return rows by table."""
    rng = random.Random(seed)
    people = make_staff(rng)
    customers = make_customers(rng)
    sales = list(_Sales(rng, people, customers).rows())
    tables: dict[str, Sequence[tuple[object, ...]]] = {
        "sales_data": sales,
        "customers": [(c.name, c.level, c.city, c.registered.isoformat()) for c in customers],
        "staff": [(p.name, p.department, p.hire_date.isoformat()) for p in people],
        "returns": make_returns(rng, sales),
        "targets": make_targets(rng, sales),
        "inventory": make_inventory(rng),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as database:
        database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + SCHEMA)
        database.execute("BEGIN")
        for table, rows in tables.items():
            marks = ",".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        database.execute("COMMIT")
        database.executescript(INDEXES + "PRAGMA journal_mode=DELETE;")
    os.replace(unfinished, path)
    return {table: len(rows) for table, rows in tables.items()}
