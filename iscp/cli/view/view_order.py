"""Views and indexes of one project as jobs: the places of their tables, and the order in which they can be
registered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from iscp.cli.shell.arguments import absolute_table, absolute_target
from iscp.cli.view.index_statements import IndexStatement
from iscp.cli.view.query_tables import tables_read
from iscp.cli.view.sql_files import Statement
from iscp.cli.view.view_statements import ViewStatement
from iscp.core.api.api_requests import JobName, RegisterRequest
from iscp.core.api.api_views import JobView
from iscp.core.run.wanted import Wanted
from iscp.core.spec.spec_fields import to_spec_json
from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.core.values.argument_checks import Refusals
from iscp.core.values.errors import InvalidRequest

_TARGET_NAME = re.compile(r"[\w-][\w .-]*")


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Places of tables by their names: those that were given, and the targets of views that are registered.

    `root` is the directory or URI below which new views are. `aliases`: what queries call a table or a view, and
    what it is called otherwise. Names are folded to lower case everywhere.
    """

    root: str
    given: Mapping[str, str]
    registered: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def target_of(self, view: Statement) -> str:
        """Raises InvalidRequest for a name that cannot be one of a directory, and where there is no root."""
        if not _TARGET_NAME.fullmatch(view.name):
            raise InvalidRequest(
                f"{view.name!r:.80} cannot be the name of its target",
                about=view.place,
                remedy="Use letters, digits, _, - and dots",
            )
        if not self.root:
            raise InvalidRequest(
                f"{view.name!r:.80} has no place",
                about=view.place,
                remedy="Give --target-root, below which targets are",
            )
        return f"{self.root.rstrip('/')}/{view.name}"

    def of_table(self, name: str) -> str | None:
        """Return the URI or name of the table, or None; a name with a dot may be of the catalog."""
        for key in (name.casefold(), self.view_key(name)):
            if uri := self.given.get(key) or self.registered.get(key):
                return uri
        return name if "." in name else None

    def view_key(self, name: str) -> str:
        return self.aliases.get(name.casefold(), name.casefold())


def wanted_jobs(
    statements: Sequence[Statement],
    registered: Sequence[JobView],
    root: str,
    given: Mapping[str, str],
    aliases: Mapping[str, str],
    account: str,
) -> list[Wanted]:
    """Return the jobs of views and indexes, each after those whose targets it reads; `registered`: all views that are
    there.

    Raises InvalidRequest, with the place, where one cannot be had, with every other one beside it.
    """
    refusals = Refusals()
    views = [each for each in statements if isinstance(each, ViewStatement)]
    places, by_name = _known_places(views, registered, root, given, aliases, refusals)
    indexes = (each for each in statements if isinstance(each, IndexStatement))
    wanted = [
        *_wanted_views(by_name, registered, places, account, refusals),
        *_wanted_indexes(indexes, by_name, places, account, refusals),
    ]
    refusals.raise_all()
    return wanted


def _known_places(
    statements: Sequence[ViewStatement],
    registered: Sequence[JobView],
    root: str,
    given: Mapping[str, str],
    aliases: Mapping[str, str],
    refusals: Refusals,
) -> tuple[TablePlaces, dict[str, ViewStatement]]:
    """Return the places of tables, and the views by their names."""
    targets = {job.name.casefold(): view.target for job in registered if (view := view_of(job.spec_json))}
    places = TablePlaces(root, {name.casefold(): uri for name, uri in given.items()}, targets, aliases)
    by_name: dict[str, ViewStatement] = {}
    for each in statements:
        first = by_name.setdefault(each.name.casefold(), each)
        if first is not each:
            message = f"{each.name!r} is a view at {first.place} already"
            refusals.add(InvalidRequest(message, about=each.place, remedy="Name each view once"))
        elif each.name.casefold() in places.given:
            message = f"{each.name!r} is a view, and a table that is given by --table"
            remedy = "Leave out --table for it, or name the view otherwise"
            refusals.add(InvalidRequest(message, about=each.place, remedy=remedy))
    return places, by_name


def _wanted_views(
    by_name: Mapping[str, ViewStatement],
    registered: Sequence[JobView],
    places: TablePlaces,
    account: str,
    refusals: Refusals,
) -> list[Wanted]:
    found: dict[str, ViewFields] = {}
    for key, view in by_name.items():
        with refusals.collect():
            found[key] = _fields(view, by_name, places)
    reads = {
        key: [read for name in fields.tables if (read := places.view_key(name)) in by_name]
        for key, fields in found.items()
    }
    there: dict[str, list[JobView]] = {}
    for job in registered:
        there.setdefault(job.name, []).append(job)
    wanted = []
    with refusals.collect():
        for key in _ordered(by_name, reads):
            with refusals.collect():
                if key in found:
                    wanted.append(_wanted(by_name[key], found[key], there.get(by_name[key].name, []), account))
    return wanted


def _fields(view: ViewStatement, views: Mapping[str, ViewStatement], places: TablePlaces) -> ViewFields:
    tables: dict[str, str] = {}
    for name in tables_read(view.query):
        other = views.get(places.view_key(name))
        uri = places.target_of(other) if other else places.of_table(name)
        if uri is None:
            raise InvalidRequest(
                f"{view.name!r} reads {name!r}, which is neither a view nor given by --table",
                about=view.query.place(0),
                remedy=f"Say where it is, as in --table {name}=/lake/{name}",
            )
        tables[name] = uri
    if not tables:
        raise InvalidRequest(f"{view.name!r} reads no table", about=view.query.place(0), remedy="Name one in its FROM")
    return ViewFields(view.sql, tables, places.target_of(view), view.refresh, view.run)


def _ordered(views: Mapping[str, ViewStatement], reads: Mapping[str, Sequence[str]]) -> list[str]:
    """Raises InvalidRequest for a circle."""
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        circle = [views[key] for key in error.args[1]]
        raise InvalidRequest(
            f"is in a circle: {' → '.join(view.name for view in reversed(circle))}",
            field=circle[0].place,
            remedy="Have one of them read tables instead",
        ) from error


def _wanted(statement: ViewStatement, fields: ViewFields, there: Sequence[JobView], account: str) -> Wanted:
    """Return the job on the table that the view of this name is on already, if the query still reads that table."""
    on = [job for job in there if {job.table, job.table_id} & set(fields.tables.values())]
    if there and not on:
        raise InvalidRequest(
            f"{statement.name!r} is a view on {there[0].table}, which the query does not read",
            about=statement.place,
            remedy=f"Delete it first: `iscp-admin view drop {statement.name}`",
        )
    job = JobName(on[0].table if on else fields.table, statement.name, account)
    request = RegisterRequest(job, fields.spec_json())
    return Wanted(request, statement.place, statement.replace, statement.if_missing, statement.tags)


def _wanted_indexes(
    statements: Iterable[IndexStatement],
    views: Mapping[str, ViewStatement],
    places: TablePlaces,
    account: str,
    refusals: Refusals,
) -> list[Wanted]:
    first: dict[tuple[str, str], IndexStatement] = {}
    wanted = []
    for each in statements:
        with refusals.collect():
            table = _table_of(each, views, places)
            before = first.setdefault((table, each.name.casefold()), each)
            if before is not each:
                message = f"{each.name!r} is an index at {before.place} already"
                raise InvalidRequest(message, about=each.place, remedy="Name each index once")
            spec = index_spec(each, absolute_target(each.target) or places.target_of(each))
            request = RegisterRequest(JobName(table, each.name, account), spec)
            wanted.append(Wanted(request, each.place, each.replace, each.if_missing))
    return wanted


def _table_of(index: IndexStatement, views: Mapping[str, ViewStatement], places: TablePlaces) -> str:
    if index.is_place:
        return absolute_table(index.table)
    view = views.get(places.view_key(index.table))
    if uri := places.target_of(view) if view else places.of_table(index.table):
        return uri
    raise InvalidRequest(
        f"{index.name!r} is on {index.table!r}, which is neither a view nor given by --table",
        about=index.place,
        remedy=f"Say where it is, as in --table {index.table}=/lake/{index.table}, or ON '/lake/{index.table}'",
    )


def index_spec(index: IndexStatement, target: str) -> str:
    """Return the job_spec of an index. `every` or `cron` alone makes a trigger periodic."""
    run = dict(index.run)
    if not run.keys().isdisjoint(("every", "cron")):
        run.setdefault("trigger", "periodic")
    fields = {"consumer": index.kind, "target": target, "key": list(index.key), "where": index.where or None}
    return to_spec_json({**fields, "options": dict(index.options), **run})
