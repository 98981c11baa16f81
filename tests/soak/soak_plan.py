"""Which tables and jobs a soak has: decided from its size alone, so that two runs of one size are alike."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.spec.spec import to_spec_json
from iscp.model.spec.spec_parsing import ViewFields

WHERE = "state <> 'gone' AND amount > 100"
"""The rows that a filtered replica keeps, in the SQL of Spark and of DuckDB alike."""


class Kind(StrEnum):
    """The kinds of jobs, by what they leave behind."""

    REPLICA = "replica"
    FILTERED = "filtered"
    APPENDED = "appended"
    VIEW = "view"
    JOIN = "join"
    CHANGEFEED = "changefeed"
    FULLTEXT = "fulltext"
    VECTOR = "vector"


SHARES: Mapping[Kind, int] = {
    Kind.REPLICA: 35,
    Kind.FILTERED: 10,
    Kind.APPENDED: 20,
    Kind.VIEW: 12,
    Kind.JOIN: 3,
    Kind.CHANGEFEED: 10,
    Kind.FULLTEXT: 6,
    Kind.VECTOR: 4,
}
"""How many of a hundred jobs are of each kind."""

APPENDED_TABLES = 5
"""Every so many tables are one that is only appended to; the others have a key."""

INDEXES = (Kind.FULLTEXT, Kind.VECTOR)
VIEWS = (Kind.VIEW, Kind.JOIN)


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A source table; `keyed` has the columns of tests.e2e.writer.orders and a text, the others those of events."""

    name: str
    keyed: bool


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job on `tables`, of which the first is the one that it is registered on."""

    name: str
    kind: Kind
    tables: tuple[PlannedTable, ...]

    @property
    def table(self) -> PlannedTable:
        return self.tables[0]

    @property
    def sql(self) -> str:
        """The query of a view, in the SQL of Spark and of DuckDB alike; every table under its own name."""
        names = [table.name for table in self.tables]
        if self.kind is Kind.JOIN:
            return (
                f"SELECT l.state, count(*) AS n, CAST(sum(l.amount + r.amount) AS BIGINT) AS total "
                f"FROM {names[0]} l JOIN {names[1]} r ON l.id = r.id GROUP BY l.state"
            )
        return (
            f"SELECT state, count(*) AS n, CAST(sum(amount) AS BIGINT) AS total, max(amount) AS most "
            f"FROM {names[0]} GROUP BY state"
        )

    def request(self, lake: str, derived: str) -> RegisterRequest:
        """Return the registration of the job, whose tables lie below `lake` and whose target lies below `derived`."""
        places = {table.name: f"{lake}/{table.name}" for table in self.tables}
        place, target = places[self.table.name], f"{derived}/{self.name}"
        if self.kind in VIEWS:
            spec_json = ViewFields(self.sql, places, target).spec_json()
        else:
            spec_json = to_spec_json({"target": target, **_fields(self.kind)})
        return RegisterRequest(JobName(place, self.name), spec_json)


def _fields(kind: Kind) -> dict[str, Any]:
    match kind:
        case Kind.APPENDED:
            return {"consumer": "replica"}
        case Kind.REPLICA:
            return {"consumer": "replica", "key": ["id"]}
        case Kind.FILTERED:
            return {"consumer": "replica", "key": ["id"], "columns": ["id", "amount"], "where": WHERE}
        case Kind.FULLTEXT:
            return {"consumer": "fulltext", "key": ["id"], "options": {"columns": "body", "tokenizer": "simple"}}
        case Kind.VECTOR:
            return {"consumer": "vector", "key": ["id"], "options": {"text": "body", "embed": "hashed"}}
        case _:
            return {"consumer": "changefeed", "key": ["id"]}


@dataclass(frozen=True, slots=True)
class Plan:
    tables: tuple[PlannedTable, ...]
    jobs: tuple[PlannedJob, ...]


def make_plan(tables: int, jobs: int) -> Plan:
    """Return as many of each; the kinds are spread over the jobs by SHARES, and the jobs over the tables in turn.

    With at least eight jobs each kind is there. Raises ValueError for fewer than two tables with a key.
    """
    made = tuple(
        PlannedTable(f"t{number:05d}", keyed=number % APPENDED_TABLES != APPENDED_TABLES - 1)
        for number in range(max(tables, APPENDED_TABLES))
    )
    keyed = [table for table in made if table.keyed]
    turns = {True: itertools.cycle(keyed), False: itertools.cycle([table for table in made if not table.keyed])}
    planned = []
    for number, kind in enumerate(_kinds(jobs)):
        first = next(turns[kind is not Kind.APPENDED])
        others = (keyed[(keyed.index(first) + 1) % len(keyed)],) if kind is Kind.JOIN else ()
        planned.append(PlannedJob(f"j{number:05d}_{kind.value}", kind, (first, *others)))
    return Plan(made, tuple(planned))


def _kinds(jobs: int) -> Sequence[Kind]:
    """One of each kind first; after them always the kind that lags most behind its share."""
    given = dict.fromkeys(SHARES, 0)
    order = list(Kind)[:jobs]
    for kind in order:
        given[kind] += 1
    while len(order) < jobs:
        kind = min(SHARES, key=lambda each: given[each] / SHARES[each])
        given[kind] += 1
        order.append(kind)
    return order
