"""Find the versions of its tables at which a refresh of a view mixes no versions of a table that several follow from.

What a table's rows are made of is in its commits. The newest commit of each table that the view reads is read for the
refresh anyway; more are read only if two of these tables follow from one table, and others of iscp's are between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from iscp.core.query.common_versions import (
    Held,
    Mix,
    Stand,
    Stands,
    VersionChoice,
    choose_versions,
    find_mix,
    merged_stands,
)
from iscp.core.values.watermark import Position
from iscp.ports.consumer import Consumed
from iscp.ports.refreshing import Refreshed
from iscp.ports.source import NO_ORIGIN, ChangeSource, ChangesUnavailableError, CommitOrigin
from iscp.views.refresh.table_spans import RefreshEnd

HARMLESS_MAX = 100
"""Commits in a row without rows (OPTIMIZE, a renewal) that are read to find what a table's rows are made of; with more
of them a table counts as one that follows from no other.
"""

PLACES_MAX = 1_000
"""Tables below those of a view that are searched for one that several follow from; what lies below others counts as
tables that follow from no other.
"""

APART_S = 60.0
"""Seconds for which tables of a view that follow from no table in common are taken to stay so, while what they are made
of at once stays the same: for so long, what is behind that costs no reads.
"""


@dataclass
class Agreement:
    """The memory of one view: the tables that it `held` at its last refresh, and what its tables were made of when they
    were found to follow from none in common (`apart`), which is trusted until `until_s`.
    """

    held: Mapping[str, Held] = field(default_factory=dict)
    apart: object = None
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AgreedEnd:
    """The end of a refresh; None: it is put off. `waits_for` says what the view waits for, for `wait_s` seconds at most
    before it is refreshed without that, and `mixed` what it mixes; both are empty if there is nothing of the kind.
    """

    end: RefreshEnd | None
    waits_for: str = ""
    wait_s: float = 0.0
    mixed: str = ""

    def put_off(self, position: Position) -> Refreshed:
        """Return the result of a refresh that is put off, of a view at this position."""
        there = Consumed(position, 0, 0)
        return self.noted(Refreshed(there, "unchanged", f"it waits for {self.waits_for}", committed=False))

    def noted(self, done: Refreshed) -> Refreshed:
        """Return a result that says what the view waits for, or mixes."""
        if self.mixed:
            warning = f"{done.warning}; {self.mixed}" if done.warning else self.mixed
            done = replace(done, warning=warning, reason=f"{done.reason}; {self.mixed}")
        return replace(done, waits_for=self.waits_for, wait_s=self.wait_s)


class TableStands:
    """Finds at which versions of other tables a view's tables stand, as their commits say. For one refresh.

    `places` are the URIs of all tables that were met, by their ids; `shared` is True if one was met on two ways.
    """

    def __init__(self, source: ChangeSource, newest: RefreshEnd) -> None:
        self._source, self._newest = source, newest
        self._origins: dict[tuple[str, int], CommitOrigin | None] = {
            (uri, each.to.version): each.origin for uri, each in newest.tables.items()
        }
        self._found: dict[tuple[str, int, bool], Stands] = {}
        self.places: dict[str, str] = {}
        self.shared = False

    def structure(self) -> object:
        """Return, of each table, the ids of those that it follows from at once; equal if these are the same."""
        tables = self._newest.tables.items()
        return {
            (uri, each.table_id): frozenset(
                mark.table_id for mark in self.origin(uri, each.to.version).sources.values()
            )
            for uri, each in tables
        }

    def at_newest(self) -> dict[str, Stands]:
        """Return the stands of all tables by their newest versions alone."""
        tables = self._newest.tables.items()
        found = {uri: self._stands(uri, each.table_id, each.to.version, (), wide=False) for uri, each in tables}
        self._merge(found.values())
        return found

    def at(self, uri: str, version: int) -> Stands:
        """Return the stands of one of the tables, at every version whose data is equal to this one's."""
        return self._stands(uri, self._newest.tables[uri].table_id, version, (), wide=True)

    def origin(self, uri: str, version: int) -> CommitOrigin:
        """Return what the rows are made of, which the last commit with rows, or of iscp's, says."""
        for each in range(version, max(-1, version - HARMLESS_MAX), -1):
            origin = self._origin(uri, each)
            if origin is None or origin.sources or origin.changes_data:
                return origin or NO_ORIGIN
        return NO_ORIGIN

    def _origin(self, uri: str, version: int) -> CommitOrigin | None:
        key = uri, version
        if key not in self._origins:
            self._origins[key] = self._source.origin(uri, version)
        return self._origins[key]

    def _stands(self, uri: str, table_id: str, version: int, path: tuple[str, ...], *, wide: bool) -> Stands:
        key = uri, version, wide
        if key not in self._found:
            self.places.setdefault(table_id, uri)
            last, path = self._last_equal(uri, version) if wide else version, (*path, table_id)
            stands = self._made_of(self.origin(uri, version), path, wide=wide)
            if last > version:
                later = self._made_of(self.origin(uri, last), path, wide=wide)
                stands = {each: _from(stands.get(each), stand) for each, stand in later.items()}
            self._found[key] = {**stands, table_id: Stand(version, last)}
        return self._found[key]

    def _made_of(self, origin: CommitOrigin, path: tuple[str, ...], *, wide: bool) -> dict[str, Stand]:
        found: list[Stands] = []
        for uri, mark in origin.sources.items():
            version = mark.watermark.version
            if mark.watermark.steps:  # a commit is applied in part
                found.append({mark.table_id: Stand(version + 1, version)})
            elif not uri or uri in origin.beyond or len(self.places) >= PLACES_MAX:
                found.append({mark.table_id: Stand(version, version)})
            elif mark.table_id not in path:  # views in a circle follow from themselves as they were
                found.append(self._stands(uri, mark.table_id, version, path, wide=wide))
        return self._merge(found)

    def _merge(self, each: Collection[Stands]) -> dict[str, Stand]:
        merged = merged_stands(each)
        self.shared |= len(merged) < sum(map(len, each))
        return merged

    def _last_equal(self, uri: str, version: int) -> int:
        for last in range(version, version + HARMLESS_MAX):
            origin = self._origin(uri, last + 1)
            if origin is None or origin.changes_data:
                return last
        return version


def _from(first: Stand | None, last: Stand) -> Stand:
    """Return the stand of rows that have stood at `first`, and have not changed since."""
    return last if first is None or first.mixed or last.mixed else Stand(first.low, max(first.high, last.high))


def agree_on_end(
    source: ChangeSource,
    newest: RefreshEnd,
    position: Position | None,
    names: Mapping[str, str],
    memory: Agreement,
    limit_s: float,
    now_s: float,
) -> AgreedEnd:
    """Return the end of a refresh of a view at `position` (None: it does not wait), whose tables have these `names` in
    its query; `now_s` is of one monotonic clock.
    """
    held, memory.held = memory.held, {}
    if not any(each.origin.sources or not each.origin.changes_data for each in newest.tables.values()):
        return AgreedEnd(newest)  # none of them is iscp's
    stands = TableStands(source, newest)
    structure = stands.structure()
    if structure == memory.apart and now_s < memory.until_s:
        return AgreedEnd(newest)
    mix = find_mix(stands.at_newest())
    memory.apart, memory.until_s = None if stands.shared else structure, now_s + APART_S
    if mix is None:
        return AgreedEnd(newest)
    versions = {uri: each.to.version for uri, each in newest.tables.items()}
    floor = None if position is None else _floor(position, newest)
    choice = choose_versions(versions, floor, stands.at, held, now_s, limit_s)
    memory.held = choice.held
    if choice.mix is None:
        return AgreedEnd(newest)
    called = {uri: name for name, uri in names.items()}
    words = _words(choice.mix, called, stands.places)
    if not choice.waits:
        return AgreedEnd(newest, mixed=f"its rows mix versions of a table: {words}")
    try:
        end = None if _is_there(choice, floor, position) else _end_at(source, newest, choice.versions or {})
    except ChangesUnavailableError:
        return AgreedEnd(newest, mixed=f"its rows mix versions of a table: {words}")
    behind = ", ".join(sorted(called.get(uri, uri) for uri in choice.mix.behind))
    return AgreedEnd(end, f"{behind} ({words})", choice.wait_s)


def _floor(position: Position, newest: RefreshEnd) -> dict[str, int]:
    """Return the versions at which the view is, and of tables that it has not read the newest ones."""
    found = {}
    for uri, each in newest.tables.items():
        mark = position.sources.get(uri)
        same = mark is not None and mark.table_id == each.table_id
        found[uri] = min(mark.watermark.version, each.to.version) if mark and same else each.to.version
    return found


def _is_there(choice: VersionChoice, floor: Mapping[str, int] | None, position: Position | None) -> bool:
    """Return whether the view is at the chosen versions, and its rows do not depend on the time."""
    if choice.versions is None:
        return True
    return choice.versions == floor and not (position and position.as_of_s)


def _end_at(source: ChangeSource, newest: RefreshEnd, versions: Mapping[str, int]) -> RefreshEnd:
    """Raises ChangesUnavailableError if a version is gone."""
    tables = newest.tables.items()
    at = {uri: each if each.to.version == versions[uri] else source.at(uri, versions[uri]) for uri, each in tables}
    return replace(newest, tables=at)


def _words(mix: Mix, called: Mapping[str, str], places: Mapping[str, str]) -> str:
    def stand(each: Stand) -> str:
        return f"at versions {each.high} and {each.low}" if each.mixed else f"at version {each.high}"

    (first, at), *others = sorted((called.get(uri, uri), found) for uri, found in mix.stands.items())
    common = f"{first} is {stand(at)} of {places.get(mix.table_id, mix.table_id)}"
    return ", ".join([common, *(f"{name} {stand(at)}" for name, at in others)])
