"""The list of cases: jobs of every kind, what happens to their tables, and what has to be in their targets then.

What a target has to hold is a query over the tables, and over the targets of jobs before, which SQLite answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.spec.spec import to_spec_json
from tests.both_ways.model_lake import ModelLake

Change = Callable[[ModelLake], object]


@dataclass(frozen=True)
class CaseJob:
    """A job on one of the tables, or on the target of a job before. `holds`: the query of what its target has to hold.

    `tables`: those of a view's query; `left_out`: the query of the rows that the target leaves out. `compared`: all
    rows may be compared at any time, as where rows share a key, or a table has no change data feed.
    """

    name: str
    holds: str
    table: str = "orders"
    fields: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    left_out: str = ""
    compared: bool = False

    @property
    def kind(self) -> str:
        return str(self.fields.get("consumer", "replica"))

    def request(self, lake: Path) -> RegisterRequest:
        """Return its registration in a lake, in which its target lies too."""
        fields = {"consumer": self.kind, **self.fields, "target": str(lake / self.name)}
        if self.tables:
            fields["options"] = {**fields["options"], "tables": {name: str(lake / name) for name in self.tables}}
        return RegisterRequest(JobName(str(lake / self.table), self.name), to_spec_json(fields))


@dataclass(frozen=True)
class Step:
    """Commits, after which the jobs are brought up to date once.

    `rebuilds`: the jobs that are compared with all rows. `by_spark`: Spark may be needed for others too.
    """

    name: str
    changes: tuple[Change, ...]
    rebuilds: frozenset[str] = frozenset()
    by_spark: bool = False


@dataclass(frozen=True)
class Case:
    """Jobs that are brought up to date together after each step; before the first one all are built.

    `each_time`: it is not left to runs of all tests.
    """

    name: str
    jobs: tuple[CaseJob, ...]
    steps: tuple[Step, ...]
    each_time: bool = True


def step(name: str, *changes: Change, rebuilds: tuple[str, ...] = (), by_spark: bool = False) -> Step:
    return Step(name, changes, frozenset(rebuilds), by_spark or bool(rebuilds))


def view(name: str, sql: str, *tables: str) -> CaseJob:
    options = {"sql": sql, "refresh": "incremental"}
    return CaseJob(name, sql, tables[0], {"consumer": "view", "options": options}, tables)


ONCE = "{0} WHERE id IN (SELECT id FROM {1} GROUP BY id HAVING count(*) = 1)"
SHARED = "SELECT * FROM orders WHERE id IN (SELECT id FROM orders GROUP BY id HAVING count(*) > 1)"

COPY = CaseJob(
    "copy", ONCE.format("SELECT * FROM orders", "orders"), fields={"key": ["id"]}, left_out=SHARED, compared=True
)
BIG = CaseJob(
    "big",
    "SELECT id, total FROM orders WHERE total > 100",
    fields={"key": ["id"], "columns": ["id", "total"], "where": "total > 100"},
)
AGAIN = CaseJob("again", "SELECT * FROM copy", "copy", {"key": ["id"]}, compared=True)
ARCHIVE = CaseJob("archive", "SELECT * FROM orders_ever")
ARCHIVED = CaseJob("archived", "SELECT * FROM orders_ever WHERE total > 100", fields={"where": "total > 100"})
FEED = CaseJob(
    "feed", "SELECT * FROM orders", fields={"consumer": "changefeed", "key": ["id"], "options": {"shards": 2}}
)
WORDS = CaseJob(
    "words",
    "SELECT id, customer, total FROM orders",
    fields={"consumer": "fulltext", "key": ["id"], "options": {"columns": "customer", "stored": "total"}},
)
WHOLE = CaseJob("whole", "SELECT * FROM orders", fields={"key": ["id"]})
"""A replica of a table in which no two rows share a key."""

TOTALS = view(
    "totals", "SELECT customer, sum(total) AS total, count(*) AS number FROM orders GROUP BY customer", "orders"
)
PLACED = view(
    "placed",
    "SELECT o.id, o.total, c.city FROM orders o JOIN customers c ON o.customer = c.customer",
    "orders",
    "customers",
)
CITIES = view(
    "cities",
    "SELECT c.city, sum(t.total) AS total FROM totals t JOIN customers c ON t.customer = c.customer GROUP BY c.city",
    "totals",
    "customers",
)
MOST = replace(
    view("most", "SELECT customer, max(total) AS most, min(id) AS first FROM copy GROUP BY customer", "copy"),
    compared=True,
)
PLAIN = view("plain", "SELECT id, total + 1 AS more FROM orders WHERE customer <> 'c1'", "orders")

KINDS = (WHOLE, BIG, FEED, WORDS)
VIEWS = (TOTALS, PLACED, PLAIN)
"""Those that follow every change of their tables."""


def insert(first: int, number: int = 3, total: int = 90) -> Change:
    rows = [(each, f"c{each % 4}", total + each) for each in range(first, first + number)]
    return lambda lake: lake.orders.insert(*rows)


UPDATE = step("rows are updated", lambda lake: lake.orders.update("total", "total + 100", "id % 7 = 3"))
DELETE = step("rows are deleted", lambda lake: lake.orders.delete("id % 11 = 5"))
UPSERT = step("rows are merged", lambda lake: lake.orders.upsert((2, "c9", 300), (70, "c1", 1), (71, None, 500)))
NOTHING = step(
    "nothing changes in three commits",
    lambda lake: lake.orders.touch(),
    lambda lake: lake.orders.compact(),
    lambda lake: lake.orders.insert(),
)
SEVERAL = step(
    "several commits change the same rows",
    insert(200),
    lambda lake: lake.orders.update("total", "0 - total", "id >= 200"),
    lambda lake: lake.orders.delete("id = 201"),
    lambda lake: lake.orders.upsert((201, "c2", 7), (5, "c2", 8)),
)
BACK = step(
    "changes are taken back before anybody has seen them", insert(300), lambda lake: lake.orders.delete("id >= 300")
)

OVERWRITTEN = (
    step("a version", insert(100), lambda lake: lake.orders.name_version("before")),
    step("other rows", lambda lake: lake.orders.overwrite((900, "c1", 9), (901, "c2", 200))),
    step("the version again", lambda lake: lake.orders.restore("before"), by_spark=True),
    step("all rows go", lambda lake: lake.orders.delete("id >= 0")),
    step("some come back", insert(10)),
)
WIDE = ("whole", "archive", "totals", "placed", "plain")
"""The jobs that follow all columns of a table, or that a query has."""

WIDENED = (
    step("rows come", insert(100)),
    step(
        "with one more column",
        lambda lake: lake.orders.add_column("note", "TEXT", (500, "c1", 200, "new")),
        rebuilds=WIDE,
    ),
    step(
        "and one that has nothing yet",
        lambda lake: lake.orders.add_column("later", "INTEGER"),
        rebuilds=WIDE,
    ),
    step("they are filled", lambda lake: lake.orders.update("later", "total", "id % 9 = 0")),
    DELETE,
)
EVERY_KIND = (step("rows come", insert(100)), UPDATE, DELETE, NOTHING, UPSERT, SEVERAL, BACK)
SHARED_KEYS = (
    step("rows with keys that are there", insert(3, 1), insert(3, 2), insert(150, 2)),
    step("only some are left", lambda lake: lake.orders.delete("id = 4 AND total = 4"), insert(5, 1)),
    step("one of three is left", lambda lake: lake.orders.delete("id = 3 AND total = 93")),
)

CASES = (
    Case("changes of every kind", KINDS, EVERY_KIND),
    Case("changes of every kind, and views", (TOTALS, PLACED), EVERY_KIND),
    Case("rows that share a key come and go", (COPY, AGAIN), SHARED_KEYS),
    Case("a view reads a replica whose rows share keys", (COPY, MOST), SHARED_KEYS, each_time=False),
    Case(
        "archives keep what was ever there",
        (ARCHIVE, ARCHIVED),
        (step("rows come", insert(100)), UPDATE, DELETE, NOTHING, SEVERAL, step("the same again", insert(100))),
    ),
    Case(
        "a view reads views",
        (TOTALS, CITIES),
        (
            UPDATE,
            step("a city has another name", lambda lake: lake.customers.update("city", "'north'", "customer = 'c1'")),
            step("a customer goes", lambda lake: lake.customers.delete("customer = 'c2'"), insert(400)),
            DELETE,
            step("and comes back twice", lambda lake: lake.customers.insert(("c2", "south"), ("c2", "west"))),
        ),
    ),
    Case("a table is overwritten and restored", KINDS, OVERWRITTEN),
    Case("a table of views is overwritten and restored", VIEWS, OVERWRITTEN, each_time=False),
    Case(
        "a table is dropped and made again",
        tuple(replace(each, fields={**each.fields, "on_replace": "follow"}) for each in KINDS),
        (
            step("rows come", insert(100)),
            step(
                "another table",
                lambda lake: lake.orders.replace((1, "c1", 1), (2, "c2", 200), (900, "c3", 300)),
                rebuilds=("whole", "big", "feed", "words"),
            ),
            UPSERT,
        ),
        each_time=False,
    ),
    Case("a table gets a column", (WHOLE, BIG, FEED, ARCHIVE), WIDENED, each_time=False),
    Case("a table of views gets a column", VIEWS, WIDENED, each_time=False),
)
