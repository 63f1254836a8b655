"""Ordinary programs: what people and models write when they calculate. All must pass somewhere.

After a program, ``-->`` begins each line that the tool must show. The table is ``measure.SALES``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Snippet:
    """A program and its exact result."""

    code: str
    content: str


def _split(text: str) -> tuple[Snippet, ...]:
    snippets = []
    for block in text.split("\n###")[1:]:
        lines = block.strip().split("\n")
        code = [line for line in lines if not line.startswith("--> ")]
        shown = [line.removeprefix("--> ") for line in lines if line.startswith("--> ")]
        snippets.append(Snippet("\n".join(code), "\n".join(shown)))
    return tuple(snippets)


BENIGN = _split(
    r"""
###
(1280*36+950)*0.85
--> 39975.5
###
print('合计', sum([1, 2, 3]))
--> 合计 6
###
def fib(n):
    a, b = 0, 1
    for _ in range(n):
        yield a
        a, b = b, a + b
list(fib(8))
--> [0, 1, 1, 2, 3, 5, 8, 13]
###
import statistics
statistics.median([3, 1, 2])
--> 2
###
import datetime
datetime.date(2024, 11, 15).isocalendar().week
--> 46
###
import re
re.sub(r'\d+', lambda m: str(int(m[0]) * 2), 'a1b22')
--> a2b44
###
import csv, io
list(csv.reader(io.StringIO('a,b\n1,2')))
--> [['a', 'b'], ['1', '2']]
###
import numpy as np
np.mean([1, 2, 3, 4])
--> 2.5
###
import pandas as pd
pd.DataFrame(tables[0])['销售额'].sum()
--> 4450.75
###
import json
json.dumps({'年': 2024}, ensure_ascii=False)
--> {"年": 2024}
###
from collections import Counter
Counter(r['产品'] for r in tables[0]).most_common(1)
--> [('甲', 2)]
###
from decimal import Decimal
str(Decimal('0.1') + Decimal('0.2'))
--> 0.3
###
import math
round(math.sqrt(2), 4)
--> 1.4142
###
from datetime import datetime
datetime.strptime('2024-11-15', '%Y-%m-%d').strftime('%Y年%m月')
--> 2024年11月
###
import itertools
list(itertools.accumulate([1, 2, 3]))
--> [1, 3, 6]
###
try:
    1 / 0
except ZeroDivisionError as e:
    print('不能除以零')
--> 不能除以零
###
match 3:
    case 1 | 2:
        print('小')
    case _:
        print('大')
--> 大
"""
)

LLM = _split(
    r"""
###
total = sum(r['销售额'] or 0 for r in tables[0])
total
--> 4450.75
###
best = max(tables[0], key=lambda r: r['销售额'] or 0)
print(best['产品'], best['销售额'])
--> 丙 1500.0
###
rows = [r for r in tables[0] if r['销售额'] is not None]
round(sum(r['销售额'] for r in rows) / len(rows), 2)
--> 1112.69
###
by = {}
for r in tables[0]:
    by[r['地区']] = by.get(r['地区'], 0) + (r['销售额'] or 0)
by
--> {'华东': 2000.5, '华北': 2450.25, '华南': 0}
###
growth = (1500 - 1200) / 1200
f'{growth:.1%}'
--> 25.0%
###
principal, rate = 100000, 0.035
principal * (1 + rate) ** 3
--> 110871.7875
###
for r in sorted(tables[0], key=lambda r: r['产品'])[:2]:
    print(f"{r['产品']}: {r['数量']}")
--> 丁: 0
--> 丙: 12
###
x = [1, 2, 3]
y = [2, 4, 6]
sum(a * b for a, b in zip(x, y))
--> 28
###
print('%.2f万' % (12345678 / 10000))
--> 1234.57万
###
'{:,.2f}'.format(1234567.891)
--> 1,234,567.89
###
months = ['2024-%02d' % m for m in range(1, 4)]
months
--> ['2024-01', '2024-02', '2024-03']
###
a = 5
a += 3
a if a > 7 else 0
--> 8
###
[x ** 2 for x in range(5) if x % 2]
--> [1, 9]
###
{k: v for k, v in zip('ab', (1, 2))}
--> {'a': 1, 'b': 2}
###
s = set([3, 1, 3])
sorted(s)
--> [1, 3]
###
text = '华东,华北'
text.split(',')
--> ['华东', '华北']
###
n = 10
while n > 3:
    n -= 3
n
--> 1
###
def share(part, whole):
    return round(part / whole * 100, 1)
share(2000.5, 4450.75)
--> 44.9
###
any(r['销售额'] is None for r in tables[0])
--> True
###
import math
math.ceil(100 / 7), math.floor(100 / 7)
--> (15, 14)
###
import datetime
(datetime.date(2024, 12, 31) - datetime.date.today()).days
--> 46
###
from datetime import date, timedelta
(date(2024, 11, 15) - timedelta(days=30)).isoformat()
--> 2024-10-16
###
import calendar
calendar.monthrange(2024, 2)[1]
--> 29
###
import datetime
q = (datetime.date.today().month - 1) // 3 + 1
f'Q{q}'
--> Q4
###
from datetime import datetime
datetime.fromisoformat('2024-11-15T08:30:00').hour
--> 8
###
import datetime
d = datetime.date(2024, 1, 31)
d.replace(day=1).strftime('%Y-%m-%d')
--> 2024-01-01
###
from collections import defaultdict
d = defaultdict(float)
for r in tables[0]:
    d[r['产品']] += r['销售额'] or 0
dict(d)
--> {'甲': 2150.75, '乙': 800, '丙': 1500, '丁': 0}
###
from functools import reduce
reduce(lambda a, b: a * b, range(1, 6))
--> 120
###
import statistics as st
round(st.stdev([2, 4, 4, 4, 5, 5, 7, 9]), 3)
--> 2.138
###
from statistics import mean
mean(r['数量'] for r in tables[0])
--> 7.8
###
from operator import itemgetter
sorted(tables[0], key=itemgetter('数量'))[-1]['产品']
--> 丙
###
import heapq
heapq.nlargest(2, [r['数量'] for r in tables[0]])
--> [12, 10]
###
from itertools import groupby
rows = sorted(tables[0], key=lambda r: r['地区'])
[(k, sum(r['数量'] for r in g)) for k, g in groupby(rows, key=lambda r: r['地区'])]
--> [('华东', 18), ('华北', 21), ('华南', 0)]
###
from fractions import Fraction
str(Fraction(1, 3) + Fraction(1, 6))
--> 1/2
###
import random
random.seed(7)
len(random.sample(range(100), 5))
--> 5
###
import string
string.ascii_uppercase[:3]
--> ABC
###
import bisect
bisect.bisect([10, 20, 30], 25)
--> 2
###
class Order:
    def __init__(self, price, count):
        self.price, self.count = price, count
    @property
    def amount(self):
        return self.price * self.count
Order(2.5, 4).amount
--> 10
###
from dataclasses import dataclass
@dataclass
class Item:
    name: str
    price: float
sum(i.price for i in [Item('a', 1.5), Item('b', 2)])
--> 3.5
###
class Base:
    rate = 0.1
class Child(Base):
    pass
Child().rate
--> 0.1
###
def running(values):
    total = 0
    for v in values:
        total += v
        yield total
list(running([1, 2, 3]))
--> [1, 3, 6]
###
d = {'a': 1, 'b': 2}
del d['a']
d
--> {'b': 2}
###
import numpy as np
a = np.array([1, 2, 3, 4])
print(a.mean(), a.std().round(3))
--> 2.5 1.118
###
import numpy as np
np.percentile([1, 2, 3, 4, 5], 90)
--> 4.6
###
import numpy as np
x = np.arange(4)
slope, intercept = np.polyfit(x, 2 * x + 1, 1)
round(float(slope), 6), round(float(intercept), 6)
--> (2, 1)
###
import pandas as pd
df = pd.DataFrame(tables[0])
df.groupby('地区')['数量'].sum().to_dict()
--> {'华东': 18, '华北': 21, '华南': 0}
###
import pandas as pd
df = pd.DataFrame(tables[0])
df.sort_values('销售额', ascending=False).head(2)['产品'].tolist()
--> ['丙', '甲']
###
import pandas as pd
df = pd.DataFrame(tables[0]).fillna({'销售额': 0})
round(df['销售额'].mean(), 2)
--> 890.15
###
import pandas as pd
df = pd.DataFrame({'m': ['2024-01', '2024-02', '2024-03'], 'v': [100, 120, 150]})
df['v'].pct_change().round(3).tolist()
--> [nan, 0.2, 0.25]
###
import pandas as pd
df = pd.DataFrame(tables[0])
df.pivot_table(index='产品', columns='地区', values='数量', aggfunc='sum').shape
--> (4, 3)
"""
)
