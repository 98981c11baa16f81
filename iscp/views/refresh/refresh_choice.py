"""Choices of a refresh of a view: whether it computes what changed or all rows, by what former refreshes took and by
estimates of what changes cost; and to which versions of its tables the view is refreshed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, log, prod
from statistics import median
from typing import Any, Literal, NamedTuple, get_args

from iscp.model.query_plan import (
    CHANGED_ROWS,
    ChangeCost,
    JoinSide,
    Operator,
    OperatorKind,
    OperatorUpkeep,
    upkeep_of,
)
from iscp.model.values.progress import UNKNOWN
from iscp.model.values.untrusted_values import exact_float, exact_int

# --- changes or all rows ----------------------------------------------------------------------------------------------
# The first measure is what former refreshes of the same query took that changed about as many bytes. Where nothing was
# measured yet, a share of changed bytes decides that costs about as much either way in most queries. What was measured
# when all was cold, or long ago, is measured again once it may be wrong.

STORED_SAMPLES_MAX = 100
"""Refreshes of a view that are read from where they are stored; a list of more was written by somebody else."""

SHARE_DEFAULT = 0.2
"""The share of changed bytes from which on a query is recomputed that was never refreshed both ways."""

SAMPLES_MAX = 5
"""Recomputations that are remembered; the oldest are forgotten."""

MAGNITUDE = 4
"""Refreshes by changes whose bytes are between the same two powers of this are remembered together: what they cost may
jump from one magnitude to the next, as where rows do not fit into memory any more, and a few large ones say little of
small ones.
"""

MAGNITUDE_SAMPLES_MAX = 2
"""Refreshes by changes of one magnitude that are remembered. The faster counts: the other one may have found all cold.
"""

MAGNITUDES_MAX = 10
"""Magnitudes of which refreshes by changes are remembered; those that were refreshed longest ago are forgotten."""

MEASURABLE_S = 0.001
"""No refresh is taken for faster."""

PASSES = 6
"""A change of all rows is expected to cost what so many recomputations do, until that was measured: of groups, windows
and joins four to ten were seen."""

SCANNED_BYTES_LEAST = 64 * 1024**2
"""Bytes of unchanged rows from which on changes are compared with a recomputation by the bytes that each needs.

This counts while no recomputation was measured, so that no refresh by changes could be given up in time.
"""

SCANS_FACTOR = 1.5
"""Changes that need so many times the bytes that a recomputation reads are not tried then."""

TRY_FACTOR = 1.3
"""The way that is expected to be slower, by no more than this, is tried where it was not measured lately."""

COLD_FACTOR = 2.0
"""The factor in place of TRY_FACTOR for changes such as were refreshed only once, when all was cold."""

CHANGES_PASSED_OVER = 5
"""Recomputations after which changes that took longer are tried again for the first time."""

PASSED_OVER_MAX = 64
"""Recomputations after which what has failed is tried again, however often it did."""

BUDGET_LEAST_S = 0.5
"""No refresh by changes is given up before it has taken so long."""


class Policy(StrEnum):
    """The way in which a view is refreshed. STRICT refuses a view that cannot be refreshed by what changed."""

    AUTO = "auto"
    INCREMENTAL = "incremental"
    STRICT = "strict"
    FULL = "full"


class Strategy(StrEnum):
    """The ways that are remembered: by changes through Spark, by changes without Spark, and by all rows."""

    INCREMENTAL = "incremental"
    DIRECT = "direct"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RefreshSample:
    """One refresh: the bytes that it had to take into account (changed ones, or all), and how long it took."""

    strategy: Strategy
    bytes: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Scans:
    """Bytes of tables that are read, besides changed rows, to refresh a query by its changes and to compute it all."""

    changes: int = 0
    full: int = 0


@dataclass(frozen=True, slots=True)
class RefreshChoice:
    """The choice, with what was expected of each way (`reason`), as far as former refreshes show.

    After `budget_s` a refresh by changes is given up for a recomputation.
    """

    strategy: Strategy
    reason: str
    budget_s: float = inf


def choose_strategy(
    policy: Policy,
    changed: int,
    total: int,
    samples: Sequence[RefreshSample],
    scans: Scans = Scans(),
    trials: Trials | None = None,
) -> RefreshChoice:
    """Choose a strategy. `changed` and `total` are bytes of the tables' files; `scans` is what is known before any
    refresh, `trials` says when changes that were slower are tried again.
    """
    match policy:
        case Policy.FULL:
            return RefreshChoice(Strategy.FULL, "the policy says so")
        case Policy.INCREMENTAL | Policy.STRICT:
            return RefreshChoice(Strategy.INCREMENTAL, "the policy says so")
        case _:
            choice = _choose_by_cost(changed, total, samples, scans)
            if choice.strategy is Strategy.FULL and trials is not None and trials.is_repetition_due:
                choice = RefreshChoice(Strategy.INCREMENTAL, f"{choice.reason}; tried again")
            return replace(choice, budget_s=_budget_s(total, samples))


def _budget_s(total: int, samples: Sequence[RefreshSample]) -> float:
    """Return the seconds that a recomputation takes.

    Both together then take at most twice as long as the faster one alone, whichever that is (like somebody who rents
    skis until he has paid their price, and then buys them).
    """
    full = expect_full(total, samples)
    return inf if full is None else max(full, BUDGET_LEAST_S)


def direct_budget_s(
    policy: Policy, changed: int, total: int, samples: Sequence[RefreshSample], trials: Trials | None = None
) -> float:
    """Return the seconds that a refresh by changes may take without Spark, before it is given up for a recomputation; 0
    if such refreshes were measured, and a recomputation is expected to be faster, unless `trials` has one due.
    """
    if trials is not None and trials.is_repetition_due:
        return _budget_s(total, samples)
    budget_s = _budget_s(total, samples) if policy is Policy.AUTO else inf
    expected = expect_incremental(changed, total, samples, Strategy.DIRECT) or 0.0
    return budget_s if expected <= max(1.0, _tried_to(Strategy.DIRECT, changed, samples)) * budget_s else 0.0


def _choose_by_cost(changed: int, total: int, samples: Sequence[RefreshSample], scans: Scans) -> RefreshChoice:
    incremental = expect_incremental(changed, total, samples)
    full = expect_full(total, samples)
    if incremental is None or full is None:
        if full is None and scans.changes >= max(SCANNED_BYTES_LEAST, SCANS_FACTOR * scans.full):
            return RefreshChoice(
                Strategy.FULL, f"changes need {scans.changes / scans.full:.1f} times what a full one reads"
            )
        share = changed / total if total else 1.0
        better = Strategy.INCREMENTAL if share < SHARE_DEFAULT else Strategy.FULL
        return RefreshChoice(better, f"{share:.2%} of the bytes have changed")
    expected = {Strategy.INCREMENTAL: incremental, Strategy.FULL: full}
    better, other = sorted(expected, key=lambda each: expected[each])
    reason = f"expected {incremental:.2g} s by changes, {full:.2g} s in full"
    if expected[other] <= _tried_to(other, changed, samples) * expected[better]:
        return RefreshChoice(other, f"{reason}; tried, as that was not measured lately")
    return RefreshChoice(better, reason)


def _tried_to(strategy: Strategy, changed: int, samples: Sequence[RefreshSample]) -> float:
    """Return the factor by which a way may be slower than the other one and is tried all the same.

    This is for a way that was measured once, when all was cold, or before much of what is remembered. Refreshes by
    changes are those of about as many bytes; where it is not known what such cost, but what larger ones do, this is
    tried too. A change that is larger than all that were measured is not tried here.
    """
    known = [(place, each.bytes) for place, each in enumerate(samples) if each.strategy is strategy]
    alike = [
        place
        for place, size in known
        if strategy is Strategy.FULL or changed <= size * MAGNITUDE <= changed * MAGNITUDE**2
    ]
    if not alike:
        return TRY_FACTOR if any(size > changed for _, size in known) else 0.0
    if len(alike) == 1:
        return TRY_FACTOR if strategy is Strategy.FULL else COLD_FACTOR
    return TRY_FACTOR if len(samples) - 1 - alike[-1] >= SAMPLES_MAX else 0.0


def expect_incremental(
    changed: int, total: int, samples: Sequence[RefreshSample], strategy: Strategy = Strategy.INCREMENTAL
) -> float | None:
    """Return the seconds that changes of so many bytes are expected to take one way, or None if nothing is known.

    Between a smaller and a larger change that are known, both let expect it. Below all that are known it is in
    proportion to the least: what is not known to be fixed is found out by a refresh. Above all it follows from PASSES.
    """
    known = _by_magnitude(strategy, samples)
    if not known:
        return None
    below = max((each for each in known if each.bytes <= changed), key=lambda each: each.bytes, default=None)
    above = min((each for each in known if each.bytes >= changed), key=lambda each: each.bytes, default=None)
    if below is None:
        assert above is not None
        near = changed * MAGNITUDE >= above.bytes
        return above.took_s if near else above.took_s * changed / above.bytes
    if above is None:
        full = expect_full(total, samples)
        byte_s = below.took_s / max(below.bytes, 1) if full is None else PASSES * full / max(total, 1)
        return below.took_s + (changed - below.bytes) * byte_s
    if above is below:
        return above.took_s
    part = log(max(changed, 1) / max(below.bytes, 1)) / log(above.bytes / max(below.bytes, 1))
    return float(below.took_s ** (1 - part) * above.took_s**part)


def _by_magnitude(strategy: Strategy, samples: Sequence[RefreshSample]) -> list[RefreshSample]:
    """Return the fastest refresh by changes of each magnitude; none is slower than a larger one."""
    fastest: dict[int, RefreshSample] = {}
    for each in samples:
        place = _magnitude(each)
        if each.strategy is strategy and (place not in fastest or each.took_s < fastest[place].took_s):
            fastest[place] = each
    least, found = inf, list[RefreshSample]()
    for each in sorted(fastest.values(), key=lambda each: each.bytes, reverse=True):
        least = min(least, each.took_s)
        found.append(replace(each, took_s=max(least, MEASURABLE_S)))
    return found


def _magnitude(sample: RefreshSample) -> int:
    return int(log(max(sample.bytes, 1), MAGNITUDE))


def expect_full(total: int, samples: Sequence[RefreshSample]) -> float | None:
    known = [each for each in samples if each.strategy is Strategy.FULL]
    known = known[1:] or known  # the oldest may have been the first, when all was cold
    if not known:
        return None
    return median(each.took_s * max(total, 1) / max(each.bytes, 1) for each in known)


@dataclass(frozen=True, slots=True)
class Trials:
    """The decision whether a refresh tries what may be in vain: after each failure twice as many recomputations do
    without. `pause` is how many that are now, `left` how many are still to come.

    Differences are searched for by it, of which there may be too many; and changes that took longer than all rows are
    tried again: a machine may have stalled twice, and what was measured then must not count for ever.
    """

    pause: int = 0
    left: int = 0

    @property
    def is_due(self) -> bool:
        return self.left == 0

    @property
    def is_repetition_due(self) -> bool:
        """Return whether something is due that has failed before."""
        return self.pause > 0 and self.is_due

    def after(self, *, found: bool, first: int = 1) -> Trials:
        """Return the trials after a recomputation; one that was not due counts as one less to pass over. `first` is the
        pause after the first failure.
        """
        if not self.is_due:
            return replace(self, left=self.left - 1)
        pause = 0 if found else min(2 * self.pause + first, PASSED_OVER_MAX)
        return Trials(pause, pause)


TrialName = Literal["differences", "changes", "searches", "scans"]
"""What is tried: a recomputation that finds few rows that differ, changes, a search for the rows of changed keys, and
a scan of whole tables.
"""


@dataclass(frozen=True, slots=True)
class RefreshHistory:
    """The record of a view's former refreshes: what they took, and what was tried."""

    samples: tuple[RefreshSample, ...] = ()
    differences: Trials = Trials()
    changes: Trials = Trials()
    searches: Trials = Trials()
    scans: Trials = Trials()

    def of(self, name: TrialName) -> Trials:
        found: Trials = getattr(self, name)
        return found

    def after(self, name: TrialName, *, found: bool) -> RefreshHistory:
        """Return the record after a refresh where what is tried under this name served, or did not."""
        first = CHANGES_PASSED_OVER if name == "changes" else 1
        trials: dict[str, Any] = {name: self.of(name).after(found=found, first=first)}
        return replace(self, **trials)


def refreshes_to_json(history: RefreshHistory) -> bytes:
    found = [[each.strategy, each.bytes, each.took_s] for each in history.samples]
    trials = {name: [history.of(name).pause, history.of(name).left] for name in get_args(TrialName)}
    return json.dumps({"samples": found, **trials}).encode()


def refreshes_from_json(content: bytes) -> RefreshHistory:
    """Return what is stored of former refreshes; nothing if the content is not of `refreshes_to_json`, as it lies where
    tenants write.
    """
    try:
        found = json.loads(content)
        if len(found["samples"]) > STORED_SAMPLES_MAX:
            return RefreshHistory()
        samples = tuple(
            RefreshSample(Strategy(strategy), exact_int(size, "bytes", 0), exact_float(took_s, "took_s", 0.0))
            for strategy, size, took_s in found["samples"]
        )
        trials = {name: _trials_from(found[name], name) for name in get_args(TrialName)}
        return RefreshHistory(samples, **trials)
    except (ValueError, TypeError, KeyError, RecursionError):
        return RefreshHistory()


def _trials_from(found: Sequence[object], name: str) -> Trials:
    pause, left = (exact_int(each, name, 0, PASSED_OVER_MAX) for each in found)
    return Trials(pause, left)


def with_sample(samples: Sequence[RefreshSample], sample: RefreshSample) -> tuple[RefreshSample, ...]:
    """Return the samples with this one at the end, and without those that are too old."""
    recent, alike = list(samples), [each for each in samples if each.strategy is sample.strategy]
    if sample.strategy is Strategy.FULL:
        if len(alike) >= SAMPLES_MAX:
            recent.remove(alike[0])
        return (*recent, sample)
    same = [each for each in alike if _magnitude(each) == _magnitude(sample)]
    if len(same) >= MAGNITUDE_SAMPLES_MAX:
        recent.remove(same[0])
    newest = list(dict.fromkeys(_magnitude(each) for each in reversed([*alike, sample])))
    forgotten = set(newest[MAGNITUDES_MAX:])
    return (
        *(each for each in recent if each.strategy is not sample.strategy or _magnitude(each) not in forgotten),
        sample,
    )


# --- estimates for each operator --------------------------------------------------------------------------------------
# An estimate says what a change of a source table costs at each operator of a query, from the numbers of rows of tables
# alone. Nothing is known of values: each changed row passes every filter, and meets about one row in a join; groups are
# as many as rows. So the estimate says which tables are read besides the changed rows, and how large these are, not how
# long it takes.


class CostEstimator:
    """An estimator for tables of so many `rows`, by their names in the query; `known` has the numbers of stored rows,
    by the operator that gives them.

    A number is UNKNOWN wherever a table's log does not say it.
    """

    def __init__(self, rows: Mapping[str, int], known: Mapping[Operator, int]) -> None:
        self._rows = rows
        self._known = known

    def costs(self, operator: Operator, upkeep: OperatorUpkeep) -> tuple[ChangeCost, ...]:
        """Return one cost for each table that the operator reads, in the order of their names."""
        return tuple(self._cost(operator, upkeep, table) for table in sorted(operator.tables()))

    def _cost(self, operator: Operator, upkeep: OperatorUpkeep, table: str) -> ChangeCost:
        if operator.kind is OperatorKind.TABLE:
            return ChangeCost(table, CHANGED_ROWS, 0)
        changed = _total(self._changed(each, table) for each in operator.inputs)
        if any(table in each.tables() for each in operator.subqueries):
            return ChangeCost(table, changed, self._read(operator))
        match upkeep:
            case OperatorUpkeep.LINEAR | OperatorUpkeep.STATE:
                return ChangeCost(table, changed, 0)
            case OperatorUpkeep.JOINED:
                apart = [each for each in operator.inputs if table not in each.tables()]
                return ChangeCost(table, changed, _total(map(self._rows_of, apart or operator.inputs)))
            case _:
                return ChangeCost(table, changed, self._read(operator))

    def _read(self, operator: Operator) -> int:
        return _total(map(self._rows_of, operator.inputs))

    def _changed(self, operator: Operator, table: str) -> int:
        """Return how many rows of its output change."""
        if table not in operator.tables():
            return 0
        if operator.kind is OperatorKind.TABLE:
            return CHANGED_ROWS
        by_value = any(table in each.tables() for each in operator.subqueries)
        if by_value or upkeep_of(operator) is OperatorUpkeep.WHOLE:
            return self._rows_of(operator)
        return _total(self._changed(each, table) for each in operator.inputs)

    def _rows_of(self, operator: Operator) -> int:
        if (known := self._known.get(operator, UNKNOWN)) >= 0:
            return known
        inputs = [self._rows_of(each) for each in operator.inputs]
        match operator.kind:
            case OperatorKind.TABLE:
                return self._rows.get(operator.table, UNKNOWN)
            case OperatorKind.ROWS:
                return 1
            case OperatorKind.AGGREGATE if not operator.keyed:
                return 1
            case OperatorKind.JOIN if UNKNOWN not in inputs:
                return max(inputs) if operator.keyed else prod(inputs)
            case _:
                return _total(inputs)


def _total(numbers: Iterable[int]) -> int:
    found = list(numbers)
    return UNKNOWN if UNKNOWN in found else sum(found)


# --- bytes that are read ----------------------------------------------------------------------------------------------
# The bytes of tables that are read to refresh a query by its changes, and to compute all of it. The numbers follow from
# the shape of the query and from the bytes of its tables alone, by the ways of `query_plan`: what is joined with
# changed rows is read once, and what is computed for the keys in them is read before and after. Changed rows themselves
# are few beside that.

_BEFORE_AND_AFTER = 2


@dataclass(frozen=True, slots=True)
class ScanEstimator:
    """An estimator for tables of so many bytes (`sizes`, by their names in the query), of which `changed` have
    changed.
    """

    sizes: Mapping[str, int]
    changed: Collection[str]

    def all_rows(self, operator: Operator) -> int:
        """Return the bytes to compute the operator's rows; a table that is there twice is read twice."""
        return sum(self.sizes[each.table] for _, each in operator.walk() if each.table)

    def rows_now(self, operator: Operator) -> int:
        """Return the bytes to compute, for keys of changed rows, what the operator's rows are now, but not what they
        were.
        """
        return self.changes(operator) + (self.all_rows(operator) if self._has_changed(operator) else 0)

    def changes(self, operator: Operator) -> int:
        """Return the bytes to compute how the operator's rows change."""
        if not self._has_changed(operator):
            return 0
        below = sum(map(self.changes, (*operator.inputs, *operator.subqueries)))
        match upkeep_of(operator):
            case OperatorUpkeep.JOINED:
                return below + self._other_sides(operator)
            case OperatorUpkeep.TOUCHED | OperatorUpkeep.WHOLE if self._is_linear(operator):
                return below + self._other_sides(operator)
            case OperatorUpkeep.TOUCHED | OperatorUpkeep.WHOLE:
                return below + _BEFORE_AND_AFTER * sum(map(self.all_rows, operator.inputs))
            case OperatorUpkeep.STATE:
                return below + _BEFORE_AND_AFTER * operator.distincts * sum(map(self.all_rows, operator.inputs))
            case _:
                return below

    def _is_linear(self, join: Operator) -> bool:
        """Return whether only that side has changed in which the join is linear."""
        if join.kind is not OperatorKind.JOIN or join.linear_in is JoinSide.NEITHER:
            return False
        other = join.inputs[1 if join.linear_in is JoinSide.LEFT else 0]
        return not self._has_changed(other)

    def _other_sides(self, join: Operator) -> int:
        left, right = join.inputs
        return sum(self.all_rows(other) for side, other in ((left, right), (right, left)) if self._has_changed(side))

    def _has_changed(self, operator: Operator) -> bool:
        return not operator.tables().isdisjoint(self.changed)


# --- versions of tables -----------------------------------------------------------------------------------------------
# A view is refreshed to such versions that its rows do not mix versions of one table.
#
# A view C may read views A and B that both follow from a table T (a diamond), or T itself besides A. Each commit of a
# view says which versions its rows are made of, so that A and B *stand* at versions of T. Those of one view only go
# forward. So there is a newest choice of versions of A and B, from those on at which C is now, at which both stand at
# one version of T: C is refreshed to it. Views that are ahead are read as they were then, and C waits for those that
# are behind. The wait is bounded; then C is refreshed to the newest versions, and says that its rows are mixed.
#
# What was waited for in vain is not waited for again until it moves, and nor are tables whose own rows are mixed: their
# jobs have waited already.


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
