"""The rows that derived tables have to have, by DuckDB over the sources, and the comparison with those that they have.

Tables are bags of rows. Each is compared by a sum of hashes while it is waited for, and row by row at a step's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.propagation.medallion import Derived, Kind
from benchmarks.propagation.source_lake import SourceLake

SIGN = "_sign"
_DIGITS = "%.9g"


@dataclass(frozen=True, slots=True)
class Bag:
    """The number of rows, and the sum of their hashes."""

    rows: int
    hashes: int


class Results:
    """Expected rows. `advance` computes them from the sources as they are then."""

    def __init__(self, derived: Sequence[Derived]) -> None:
        self._derived = derived
        self._database = duckdb.connect(config={"threads": 1})
        self.expected: dict[str, Bag] = {}
        self._rows: dict[str, pa.Table] = {}

    def advance(self, lake: SourceLake) -> None:
        with duckdb.connect(config={"threads": 1}) as database:
            for name in lake.uris:
                database.register(name, lake.rows(name))
            for each in self._derived:
                rows = pa.table(database.execute(each.sql).to_arrow_table())
                database.register(each.name, rows)
                self._rows[each.name] = rows
                self.expected[each.name] = self.bag(rows)

    def bag(self, rows: pa.Table) -> Bag:
        """Return what stands for rows; those with SIGN count as often as that says."""
        self._database.register("counted", rows)
        names = sorted(name for name in rows.column_names if name != SIGN)
        sign = SIGN if SIGN in rows.column_names else "1"
        hashed = f"hash({', '.join(_plain(rows, name) for name in names)})"
        found = self._database.execute(
            f"SELECT coalesce(sum({sign}), 0), coalesce(sum({sign} * ({hashed} % 1000000007)::BIGINT), 0) FROM counted"
        ).fetchone()
        assert found is not None
        return Bag(int(found[0]), int(found[1]))

    def differences(self, name: str, actual: pa.Table) -> int:
        """Return how many rows `actual` lacks, or has too often."""
        expected = self._rows[name]
        if sorted(expected.column_names) != sorted(set(actual.column_names) - {SIGN}):
            return max(1, int(expected.num_rows + actual.num_rows))
        self._database.register("wanted", expected)
        self._database.register("counted", actual)
        sign = SIGN if SIGN in actual.column_names else "1"
        names = sorted(expected.column_names)
        wanted = ", ".join(f"{_plain(expected, column)} AS c{place}" for place, column in enumerate(names))
        counted = ", ".join(f"{_plain(actual, column)} AS c{place}" for place, column in enumerate(names))
        found = self._database.execute(
            f"SELECT coalesce(sum(abs(n)), 0) FROM (SELECT sum(s) AS n FROM (SELECT {wanted}, -1 AS s FROM wanted "
            f"UNION ALL SELECT {counted}, {sign} AS s FROM counted) GROUP BY "
            f"{', '.join(f'c{place}' for place in range(len(names)))})"
        ).fetchone()
        assert found is not None
        return int(found[0])


def _plain(rows: pa.Table, name: str) -> str:
    """An expression for a column's values as texts, which are equal if the values are, whoever wrote them."""
    kind = rows.schema.field(name).type
    if pa.types.is_floating(kind):
        return f"printf('{_DIGITS}', \"{name}\"::DOUBLE)"
    if pa.types.is_timestamp(kind):
        return f'epoch_us("{name}")::VARCHAR'
    return f'"{name}"::VARCHAR'


def read_derived(derived: Derived, uri: str, version: int) -> pa.Table:
    """Return a derived table's rows at a version; a feed's are those that its changes come to."""
    rows = pa.table(DeltaTable(uri, version=version).scan())
    if derived.kind is not Kind.FEED:
        return rows
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("feed", rows)
        signed = f"CASE WHEN operation IN ('insert', 'update_postimage') THEN 1 ELSE -1 END AS {SIGN}"
        return pa.table(database.execute(f'SELECT unnest("row"), {signed} FROM feed').to_arrow_table())
