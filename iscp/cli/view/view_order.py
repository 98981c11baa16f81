"""Views of one project: where each one's tables are, and in which order they can be registered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from iscp.cli.view.query_tables import tables_read
from iscp.cli.view.view_statements import ViewStatement
from iscp.core.values.errors import InvalidRequest

_TARGET_NAME = re.compile(r"[\w-][\w .-]*")


@dataclass(frozen=True, slots=True)
class PlacedView:
    """`tables` are the places of those that its query names; `reads` are the views among them, of the same project."""

    statement: ViewStatement
    target: str
    tables: Mapping[str, str]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Where tables are, by their names: those that were given, and the targets of views that are registered.

    `root` is the directory or URI below which new views are kept. `aliases`: what queries call a table or a view, and
    what it is called otherwise. Names are folded to lower case everywhere.
    """

    root: str
    given: Mapping[str, str]
    registered: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def target_of(self, view: ViewStatement) -> str:
        """Raises InvalidRequest for a name that cannot be one of a directory."""
        if not _TARGET_NAME.fullmatch(view.name):
            raise InvalidRequest(
                f"{view.name!r:.80} cannot be the name of its target",
                field=view.place,
                remedy="Use letters, digits, _, - and dots",
            )
        return f"{self.root.rstrip('/')}/{view.name}"

    def of_table(self, name: str) -> str | None:
        """A name with a dot may be one of the catalog, which the node knows."""
        for key in (name.casefold(), self.view_key(name)):
            if uri := self.given.get(key) or self.registered.get(key):
                return uri
        return name if "." in name else None

    def view_key(self, name: str) -> str:
        return self.aliases.get(name.casefold(), name.casefold())


def place_views(statements: Sequence[ViewStatement], places: TablePlaces) -> list[PlacedView]:
    """Every view after those that it reads. Raises InvalidRequest, with the place, where that cannot be had."""
    by_name: dict[str, ViewStatement] = {}
    for each in statements:
        first = by_name.setdefault(each.name.casefold(), each)
        if first is not each:
            raise InvalidRequest(
                f"{each.name!r} is a view at {first.place} already", field=each.place, remedy="Name each view once"
            )
        if each.name.casefold() in places.given:
            raise InvalidRequest(
                f"{each.name!r} is a view, and a table that is given by --table",
                field=each.place,
                remedy="Leave out --table for it, or name the view otherwise",
            )
    placed = {key: _place(view, by_name, places) for key, view in by_name.items()}
    return [placed[key] for key in _ordered(placed)]


def _place(view: ViewStatement, views: Mapping[str, ViewStatement], places: TablePlaces) -> PlacedView:
    tables: dict[str, str] = {}
    reads: list[str] = []
    for name in tables_read(view.query):
        if other := views.get(places.view_key(name)):
            reads.append(other.name)
            tables[name] = places.target_of(other)
            continue
        uri = places.of_table(name)
        if uri is None:
            raise InvalidRequest(
                f"{view.name!r} reads {name!r}, which is neither a view nor given by --table",
                field=view.query.place(0),
                remedy=f"Say where it is, as in --table {name}=/lake/{name}",
            )
        tables[name] = uri
    if not tables:
        raise InvalidRequest(f"{view.name!r} reads no table", field=view.query.place(0), remedy="Name one in its FROM")
    return PlacedView(view, places.target_of(view), tables, tuple(reads))


def _ordered(placed: Mapping[str, PlacedView]) -> list[str]:
    """Raises InvalidRequest for a circle."""
    sorter = TopologicalSorter({key: [name.casefold() for name in each.reads] for key, each in placed.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        circle = [placed[key].statement for key in error.args[1]]
        raise InvalidRequest(
            f"is in a circle: {' → '.join(view.name for view in reversed(circle))}",
            field=circle[0].place,
            remedy="Have one of them read tables instead",
        ) from error
