"""Decide to which versions of its tables a view is refreshed, so that its rows do not mix versions of one table.

A view C may read views A and B that both follow from a table T (a diamond), or T itself besides A. Each commit of a
view says which versions its rows are made of, so that A and B *stand* at versions of T. Those of one view only go
forward. So there is a newest choice of versions of A and B, from those on at which C is now, at which both stand at
one version of T: C is refreshed to it. Views that are ahead are read as they were then, and C waits for those that are
behind. The wait is bounded; then C is refreshed to the newest versions, and says that its rows are mixed.

What was waited for in vain is not waited for again until it moves, and nor are tables whose own rows are mixed: their
jobs have waited already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Stand(NamedTuple):
    """The versions of a table of which rows are made: any from `low` to `high`, whose data is equal.

    If `low` is above `high`, the rows mix versions, and `high` is the oldest of these.
    """

    low: int
    high: int

    @property
    def mixed(self) -> bool:
        return self.low > self.high

    def meet(self, other: Stand) -> Stand:
        return Stand(max(self.low, other.low), min(self.high, other.high))


Stands = Mapping[str, Stand]
"""The stands of a table at one version, its own among them, by the ids of the tables that it follows from."""

StandsAt = Callable[[str, int], Stands]
"""Finds the stands of a table, by its URI, at a version."""


def merged_stands(each: Iterable[Stands]) -> dict[str, Stand]:
    """Return what rows stand at that are made of all these."""
    merged: dict[str, Stand] = {}
    for stands in each:
        for table_id, stand in stands.items():
            merged[table_id] = merged[table_id].meet(stand) if table_id in merged else stand
    return merged


@dataclass(frozen=True, slots=True)
class Mix:
    """The tables, by their URIs, that do not stand at one version of the table with this id.

    Invariant: no version is common to all `stands`.
    """

    table_id: str
    stands: Mapping[str, Stand]

    @property
    def version(self) -> int:
        """Return the newest version at which all can stand, as far as is known of those that are behind."""
        return min(stand.high for stand in self.stands.values())

    @property
    def behind(self) -> tuple[str, ...]:
        return tuple(uri for uri, stand in self.stands.items() if stand.high == self.version)


def find_mix(tables: Mapping[str, Stands]) -> Mix | None:
    """Return the first table, by id, of which these tables stand at several versions; None if there is none."""
    merged = merged_stands(tables.values())
    table_id = min((each for each, stand in merged.items() if stand.mixed), default=None)
    if table_id is None:
        return None
    return Mix(table_id, {uri: stands[table_id] for uri, stands in tables.items() if table_id in stands})


def common_versions(
    newest: Mapping[str, int], floor: Mapping[str, int], stands_at: StandsAt
) -> Mapping[str, int] | None:
    """Return the newest versions of all tables, from `floor` on, that mix nothing; None if there are none."""
    at = dict(newest)
    while (mix := find_mix({uri: stands_at(uri, version) for uri, version in at.items()})) is not None:
        for uri in (uri for uri, stand in mix.stands.items() if stand.low > mix.version):
            older = range(floor[uri], at[uri])

            def low(version: int, uri: str = uri, table_id: str = mix.table_id) -> int:
                stand = stands_at(uri, version).get(table_id)
                return stand.low if stand else -1

            place = bisect_right(older, mix.version, key=low)
            if not place:
                return None
            at[uri] = older[place - 1]
    return at


class Held(NamedTuple):
    """A table that a view reads as of an older `version`, since the time `since_s` of one monotonic clock."""

    version: int
    since_s: float


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """The versions to which a view is refreshed; None: it is not.

    `mix` is what the newest versions would mix. If it is given, and `waits` is True, the view waits for the tables that
    are behind, for `wait_s` seconds at most, and `held` are the tables that it does not read as they are now.
    Otherwise its rows are mixed.
    """

    versions: Mapping[str, int] | None
    mix: Mix | None = None
    waits: bool = False
    wait_s: float = 0.0
    held: Mapping[str, Held] = field(default_factory=dict)


def choose_versions(
    newest: Mapping[str, int],
    floor: Mapping[str, int] | None,
    stands_at: StandsAt,
    held: Mapping[str, Held],
    now_s: float,
    limit_s: float,
) -> VersionChoice:
    """Choose the versions of a refresh at `now_s`. `floor`: those at which the view is; None: it does not wait.

    `held` is that of the last choice, and `limit_s` how long a table is held at one version at most.
    """
    mix = find_mix({uri: stands_at(uri, version) for uri, version in newest.items()})
    if mix is None:
        return VersionChoice(newest)
    if floor is None or _given_up(mix, newest, floor, stands_at):
        return VersionChoice(newest, mix)
    versions = common_versions(newest, floor, stands_at)
    read = floor if versions is None else versions
    older = {uri: Held(read[uri], now_s) for uri in newest if read[uri] < newest[uri]}
    older = {uri: held[uri] if uri in held and held[uri].version == new.version else new for uri, new in older.items()}
    wait_s = min((each.since_s for each in older.values()), default=now_s) + limit_s - now_s
    if not older or wait_s <= 0:
        return VersionChoice(newest, mix)
    return VersionChoice(versions, mix, True, wait_s, older)


def _given_up(mix: Mix, newest: Mapping[str, int], floor: Mapping[str, int], stands_at: StandsAt) -> bool:
    """Return whether the view mixes versions by now because of tables that have not moved since, or a table does."""
    if any(stand.mixed for stand in mix.stands.values()):
        return True
    if any(floor[uri] < newest[uri] for uri in mix.behind):
        return False
    return find_mix({uri: stands_at(uri, version) for uri, version in floor.items()}) is not None
