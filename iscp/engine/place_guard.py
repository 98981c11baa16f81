"""Holds the tables of each account's jobs to its roots: when a job is registered, and again before each iteration.

A catalog that says nothing of what lies elsewhere than an account's tables may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from iscp.model.access.authorization import AccountRoots, lies_below, places_around, places_of
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import TargetLog
from iscp.model.query_plan import QueryShape
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest, TableNotFound
from iscp.model.values.progress import TableSize
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


FollowLinks = Callable[[str], tuple[str, ...]]
"""A table's place to where its files lie, once links are followed. Raises InvalidRequest for what is no place."""


class PlaceGuard:
    """The guard of places refuses all alike, whether there is a table or not. Safe for threads.

    Links are followed at each call: a place that became a link to elsewhere is refused from then on. `follow_root` does
    for a root what `follow` does for a place.
    """

    def __init__(self, roots: AccountRoots, follow: FollowLinks, follow_root: Callable[[str], str]) -> None:
        self._roots = roots
        self._follow = follow
        self._follow_root = follow_root

    def require(self, account: str, place: str, field: str, shown: str = "") -> None:
        """Raises InvalidRequest where the account may have no table there. `shown`: how its user has written it."""
        self._require(account, [(field, place, shown or place)])

    def require_target(self, account: str, target: str, field: str) -> None:
        """Require a target as `require` does, and what is stored beside it; an empty one passes."""
        self._require(account, ((field, place, target) for place in (places_around(target) if target else ())))

    def require_job(self, row: JobRow) -> None:
        """Require all places that the job names, as `require` does."""
        self._require(row.key.account, ((field, place, place) for field, place in places_of(row)))

    def _require(self, account: str, places: Iterable[tuple[str, str, str]]) -> None:
        """Require `places`, each with its field before it, and as it is shown behind it. Roots are followed once for
        all.
        """
        roots = self._roots.of(account)
        if roots is None:
            return
        tops = [self._follow_root(root) for root in roots]
        for field, place, shown in places:
            try:
                found = self._follow(place)
            except InvalidRequest as error:
                raise InvalidRequest.from_error(error, field=field, code=error.code) from error
            if not all(any(lies_below(each, top) for top in tops) for each in found):
                raise self._outside(account, shown, field)

    def catalog(self, account: str, catalog: Catalog) -> Catalog:
        """Return the catalog as the account may have it. Its refusals have the field `table`."""
        if self._roots.of(account) is None:
            return catalog
        outside = partial(self._outside, account, field="table")
        return RootedCatalog(catalog, lambda place, shown: self.require(account, place, "table", shown), outside)

    def _outside(self, account: str, shown: str, field: str) -> InvalidRequest:
        roots = self._roots.of(account)
        return InvalidRequest(
            f"{shown} does not lie below a root of the account {account!r}, with links followed",
            about=field,
            remedy=f"Choose a place below {' or '.join(roots)}"
            if roots
            else f"Have accounts.{account}.roots say, in the nodes' configuration, below which places its tables lie",
            code=ErrorCode.OUTSIDE_ROOTS,
        )


ANYWHERE = PlaceGuard(AccountRoots(), lambda place: (place,), lambda root: root)
"""The guard of an account without roots, which refuses nothing."""
