"""Tables of which a test says what they are (port Catalog)."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.model.job.start_rule import TargetLog
from iscp.model.query_plan import Operator, OperatorKind, QueryShape
from iscp.model.values.errors import InvalidRequest, TableNotFound
from iscp.model.values.progress import UNKNOWN, TableSize
from iscp.ports.source import TableDescription


class FakeCatalog:
    """Port Catalog: `tables` by URI; `indexes` are places of indexes; `faults` are what the engine finds in conditions
    and queries, `shapes` what it makes of these. Directories are there but those in `missing`. `sizes`: by URI.
    `links`: where paths lead."""

    def __init__(self, *tables: TableDescription) -> None:
        self.tables = {table.uri: table for table in tables}
        self.faults: dict[str, str] = {}
        self.shapes: dict[str, QueryShape] = {}
        self.missing: set[str] = set()
        self.indexes: set[str] = set()
        self.links: dict[str, str] = {}
        self.sizes: dict[str, TableSize] = {}

    def describe(self, table: str) -> TableDescription:
        uri = self.normalize(table)
        if uri not in self.tables:
            raise TableNotFound(f"{table} is not a Delta table", about="table", remedy="Check the path")
        return self.tables[uri]

    def has_version(self, uri: str, version: int) -> bool:
        return version <= self.describe(uri).version

    def newest_version(self, uri: str) -> int:
        return self.describe(uri).version

    def size(self, uri: str) -> TableSize:
        self.describe(uri)
        return self.sizes.get(uri, TableSize(UNKNOWN, UNKNOWN))

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        found = {TargetLog.DELTA: uri in self.tables, TargetLog.LANCE: uri in self.indexes}
        return frozenset(log for log, there in found.items() if there)

    def table_around(self, uri: str) -> str:
        there = (*self.tables, *self.indexes)
        return next((each for each in there if each.startswith(f"{uri}/") or uri.startswith(f"{each}/")), "")

    def missing_parent(self, uri: str) -> str:
        parent = uri.rpartition("/")[0]
        return parent if parent in self.missing else ""

    def normalize(self, uri: str) -> str:
        if "://" in uri:
            raise InvalidRequest("is of another store", field="table", remedy="Use a path")
        return self.links.get(uri, "/" + uri.strip("/"))

    def locate(self, table: str) -> str:
        return self.normalize(table)

    def refuse_links(self, table: str) -> None:
        if table in self.links:
            raise InvalidRequest(f"{table} is a link", about="table", remedy=f"Give {self.links[table]}")

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        return self.faults.get(condition, "")

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        if fault := self.faults.get(sql):
            raise InvalidRequest(fault, field="sql", remedy="Correct the query")
        tables = tuple(Operator(OperatorKind.TABLE, name, table=name) for name in schemas)
        return self.shapes.get(sql) or QueryShape(
            Operator(OperatorKind.UNION, "Union", tables), next(iter(schemas.values())), frozenset(schemas)
        )
