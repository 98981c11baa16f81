"""A catalog that says nothing of what lies elsewhere than an account's tables may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from iscp.core.job.target_state import TargetLog
from iscp.core.query.query_plan import QueryShape
from iscp.core.values.errors import EngineError, InvalidRequest, TableNotFound
from iscp.core.values.progress import TableSize
from iscp.ports.catalog import Catalog, TableDescription


@dataclass(frozen=True, slots=True)
class RootedCatalog:
    """The port Catalog for an account with roots. A table outside them is refused before anything is read there.

    `require` raises for a place (1st) that is refused, as its user has written it (2nd); `outside` makes that error.
    """

    catalog: Catalog
    require: Callable[[str, str], None]
    outside: Callable[[str], InvalidRequest]

    def describe(self, table: str) -> TableDescription:
        return replace(self.catalog.describe(self.locate(table)), name=table)

    def locate(self, table: str) -> str:
        try:
            uri = self.catalog.locate(table)
        except (TableNotFound, EngineError) as error:
            # Of a name in a catalog: whether it is there may not be this account's to know.
            raise self.outside(table) from error
        self.require(uri, table)
        return uri

    def normalize(self, uri: str) -> str:
        found = self.catalog.normalize(uri)
        self.require(found, uri)
        return found

    def refuse_links(self, table: str) -> None:
        self.locate(table)
        self.catalog.refuse_links(table)

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        self.require(uri, uri)
        return self.catalog.logs_at(uri)

    def table_around(self, uri: str) -> str:
        self.require(uri, uri)
        found = self.catalog.table_around(uri)
        try:
            if found:
                self.require(found, found)
        except InvalidRequest:  # around a root: which table that is, is not this account's to know
            return uri
        return found

    def missing_parent(self, uri: str) -> str:
        self.require(uri, uri)
        return self.catalog.missing_parent(uri)

    def has_version(self, uri: str, version: int) -> bool:
        self.require(uri, uri)
        return self.catalog.has_version(uri, version)

    def newest_version(self, uri: str) -> int:
        self.require(uri, uri)
        return self.catalog.newest_version(uri)

    def size(self, uri: str) -> TableSize:
        self.require(uri, uri)
        return self.catalog.size(uri)

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        return self.catalog.query_shape(sql, schemas)

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        return self.catalog.condition_fault(condition, table)
