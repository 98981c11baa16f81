"""The position of a job's sink, and all that a position has: the watermark, the progress in each of several sources,
the ids of the source's columns, and the totals that rows were made of.

Positions are checked before they are believed, as sinks, nodes and the job log say them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.untrusted_values import exact_float, exact_int, exact_name, exact_version, shown

# --- the identity of columns ------------------------------------------------------------------------------------------
# Which columns of a source are the very same ones, whatever they are called (Delta's column mapping). A column is known
# by the physical name that Delta gave it when it was added: it stays when the column is renamed, and is another one
# when a column is dropped and one of its name added. So are the fields within it.

ColumnIds = Mapping[str, str]
"""For a column, by its name in lower case, the id that distinguishes it, and all that is within it, from others of that
name.

Columns that are not there are as their names say: those of a table without mapped names, and those from before it had
them.
"""

COLLATIONS = "__COLLATIONS"
"""The place in a field's metadata that says how its texts compare, and those within it."""
_PHYSICAL = "delta.columnMapping.physicalName"
_DIGEST_BYTES = 8
_PARTS = (("elementType", "element"), ("keyType", "key"), ("valueType", "value"))
"""The parts of arrays and maps, with what Delta calls them in paths."""


def column_ids(fields: Iterable[Mapping[str, Any]]) -> ColumnIds:
    """Return the ids of the columns of a schema, given by its fields in Delta's JSON."""
    return {field["name"].lower(): found for field in fields if (found := _column_id(field))}


def physical_name(field: Mapping[str, Any]) -> str:
    """Return the name in files of a field of a schema in Delta's JSON."""
    return str((field.get("metadata") or {}).get(_PHYSICAL, field["name"]))


def void_fields(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns of the type void, and the fields of that type within others, as paths (`s.y`)."""
    return tuple(path for field in fields for path in _void(field["type"], field["name"]))


def collated_columns(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns that are, or have within them, texts that compare in a way of their own."""
    return tuple(field["name"] for field in fields if (field.get("metadata") or {}).get(COLLATIONS))


def chosen_collated(collated: Iterable[str], columns: Collection[str]) -> tuple[str, ...]:
    """Return the `collated` columns among the `columns` that a job has named, or all if it has named none."""
    chosen = {name.lower() for name in columns}
    return tuple(name for name in collated if not chosen or name.lower() in chosen)


def doubled_names(fields: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the first two columns, or fields of one that is nested, whose names differ in case alone, as paths; empty:
    none do.
    """
    return _doubled(fields, "")


def lost_fields(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns of a schema `before`, and the fields of nested ones as paths, that are gone by name."""
    return tuple(_lost(before, now, ""))


def _lost(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]], path: str) -> Iterator[str]:
    there = {member["name"].lower(): member["type"] for member in now}
    for member in before:
        name, kind = f"{path}{member['name']}", there.get(member["name"].lower())
        if kind is None:
            yield name
            continue
        structs = dict(_nested(kind, name))
        for within, inner in _nested(member["type"], name):
            yield from _lost(inner, structs.get(within, ()), f"{within}.")


def _doubled(fields: Iterable[Mapping[str, Any]], path: str) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for member in fields:
        name = f"{path}{member['name']}"
        if first := seen.setdefault(name.lower(), ""):
            return first, name
        seen[name.lower()] = name
        for within, inner in _nested(member["type"], name):
            if found := _doubled(inner, f"{within}."):
                return found
    return ()


def _nested(kind: Any, path: str) -> Iterator[tuple[str, Iterable[Mapping[str, Any]]]]:
    """Yield the structs in a type, but those within structs: the path to each, and its fields."""
    if not isinstance(kind, Mapping):
        return
    if "fields" in kind:
        yield path, kind["fields"]
    for part, name in _PARTS:
        yield from _nested(kind.get(part), f"{path}.{name}")


def _void(kind: Any, path: str) -> Iterator[str]:
    if kind == "void":
        yield path
    if not isinstance(kind, Mapping):
        return
    for part, name in _PARTS:
        yield from _void(kind.get(part), f"{path}.{name}")
    for member in kind.get("fields", ()):
        yield from _void(member["type"], f"{path}.{member['name']}")


def other_columns(before: ColumnIds, now: ColumnIds, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of `names` under which there are other columns `now` than `before`."""
    return tuple(name for name in names if before.get(name.lower()) != now.get(name.lower()))


def _column_id(field: Mapping[str, Any]) -> str:
    """Return what distinguishes a column, or an empty text if all is as it is called."""
    named = list(_named(field, ""))
    if all(name.lower() == physical.lower() for _, name, physical in named):
        return ""
    _, _, physical = named[0]
    within = sorted((path, name.lower(), below) for path, name, below in named[1:])
    return hashlib.blake2b(repr((physical.lower(), within)).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _named(field: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Yield for a field, and for those within it, the path to it, its name, and its physical one."""
    name = field["name"]
    yield path, name, physical_name(field)
    yield from _within(field["type"], f"{path}/{name.lower()}")


def _within(kind: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if not isinstance(kind, Mapping):
        return
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from _within(kind[part], f"{path}/{part}")
    for member in kind.get("fields", ()):
        yield from _named(member, path)


# --- totals of all rows -----------------------------------------------------------------------------------------------
# An aggregate without GROUP BY is made of totals, which changed rows move. All totals are whole numbers (a decimal
# without its point, a day as its number), so that nothing drifts. Counts and sums follow what comes and goes; a maximum
# follows what comes, and has to be found once more where it goes.


class AggregateKind(StrEnum):
    """The kind of an aggregate function. MOMENTS are variances and deviations; EXACT is a function of doubles that is
    computed without rounding on the way. No total follows for these two.
    """

    COUNT = "count"
    SUM = "sum"
    AVERAGE = "average"
    MOST = "most"
    LEAST = "least"
    MOMENTS = "moments"
    EXACT = "exact"

    @property
    def is_extreme(self) -> bool:
        return self in (AggregateKind.MOST, AggregateKind.LEAST)

    @property
    def has_sum(self) -> bool:
        return self in (AggregateKind.SUM, AggregateKind.AVERAGE)

    def extreme(self, *values: int | None) -> int | None:
        """Return the most of the values, or for LEAST the least, without those that are None."""
        known = [each for each in values if each is not None]
        return (min if self is AggregateKind.LEAST else max)(known, default=None)


@dataclass(frozen=True, slots=True)
class Total:
    """The number and the sum of the values of one function that are not null.

    `extreme` is the most or the least of them (None: there is none, or the function needs none).
    """

    count: int = 0
    sum: int = 0
    extreme: int | None = None


@dataclass(frozen=True, slots=True)
class TotalChange:
    """The amounts that changed rows add to a total, less what they take away.

    `came` is the extreme of values of which there are more than before, `went` of those of which there are fewer.
    """

    count: int = 0
    sum: int = 0
    came: int | None = None
    went: int | None = None


Totals = tuple[Total, ...]
"""One total for each function of an aggregate, in the order of its columns."""


def changed_total(kind: AggregateKind, before: Total, change: TotalChange) -> Total | None:
    """Return the total with the change, or None if all rows have to be read, as the extreme may be gone."""
    count, total = before.count + change.count, before.sum + change.sum
    if not kind.is_extreme:
        return Total(count, total)
    extreme = kind.extreme(before.extreme, change.came)
    if change.went is not None and extreme is not None and kind.extreme(change.went, extreme) == change.went:
        return None if count else Total()
    return Total(count, total, extreme)


def merged_total(kind: AggregateKind, parts: Sequence[Total]) -> Total:
    """Return the total of all values, made of those of parts of them."""
    extreme = kind.extreme(*(each.extreme for each in parts))
    return Total(sum(each.count for each in parts), sum(each.sum for each in parts), extreme)


@dataclass(frozen=True, slots=True)
class QueryTotals:
    """The totals of each aggregate of a query that has them, in the order of its tree.

    `shape` identifies that query: totals of another shape are of no use.
    """

    shape: str = ""
    totals: tuple[Totals, ...] = ()


NO_TOTALS = QueryTotals()


def totals_document(found: QueryTotals) -> list[Any]:
    """Return the totals as JSON."""
    return [found.shape, [[[each.count, each.sum, each.extreme] for each in totals] for totals in found.totals]]


def parse_totals(document: object) -> QueryTotals:
    """Read the result of `totals_document`; raise ValueError for anything else."""
    if not isinstance(document, Sequence) or len(document) != 2:
        raise ValueError(f"totals is {shown(document)}, which are none")
    try:
        found = tuple(tuple(Total(*each) for each in totals) for totals in document[1])
    except TypeError:
        raise ValueError(f"totals is {shown(document)}, which are none") from None
    return exact_totals(QueryTotals(document[0], found))


def exact_totals(found: object) -> QueryTotals:
    """Return totals that a sink reports, checked before they are believed. Raises ValueError."""
    if not isinstance(found, QueryTotals) or not isinstance(found.shape, str):
        raise ValueError(f"totals is {shown(found)}, which is no QueryTotals")
    try:
        exact = all(_exact(each) for totals in found.totals for each in totals)
    except (TypeError, AttributeError):
        exact = False
    if not exact:
        raise ValueError(f"totals is {shown(found)}, in which not all are whole numbers")
    return found


def _exact(total: Total) -> bool:
    numbers: Sequence[object] = (total.count, total.sum, 0 if total.extreme is None else total.extreme)
    return all(type(each) is int for each in numbers) and total.count >= 0


# --- watermarks and positions -----------------------------------------------------------------------------------------
# A position says how far a job's sink has come, as the sink itself says.

NOTHING_APPLIED = -1


@dataclass(frozen=True, slots=True)
class Watermark:
    """The last source version durably applied, with its commit time (Unix seconds).

    `version` is -1 before anything was applied; never goes back except by an explicit resync. A commit that is too
    large for one iteration is applied in steps, each the changes of one class of keys: of the commit after `version`
    the first `step` of `steps` are applied (both 0: none of it is).
    """

    version: int = NOTHING_APPLIED
    at_s: float = 0.0
    step: int = 0
    steps: int = 0


_SAME_S = 0.001
"""Seconds by which a commit's time may change when it is written and read."""


def committed_apart(one_s: float, other_s: float) -> bool:
    """Return whether two commit times (Unix seconds; 0: not known) of a version are those of different commits."""
    return bool(one_s and other_s) and abs(one_s - other_s) > _SAME_S


def later(first: Watermark, second: Watermark) -> Watermark:
    """Return the one of the higher version, or the first if both are of one version."""
    return second if second.version > first.version else first


@dataclass(frozen=True, slots=True)
class SourceMark:
    """The progress in one of several sources: the id that its table had then, and the watermark."""

    table_id: str
    watermark: Watermark


SourceMarks = Mapping[str, SourceMark]
"""Marks by the URI of each table that a consumer of several reads, its job's own among them; empty for other
consumers.
"""


def later_marks(first: SourceMarks, second: SourceMarks) -> SourceMarks:
    """Return for each table the mark of the higher version, or the second one if that is of another table in its
    place.
    """

    def news(uri: str, mark: SourceMark) -> bool:
        before = first.get(uri, mark)
        return before.table_id != mark.table_id or before.watermark.version <= mark.watermark.version

    return {**first, **{uri: mark for uri, mark in second.items() if news(uri, mark)}}


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The rows that a target leaves out: `rows` rows that share a key, stored in a table beside it at that table's
    `seq`.

    Seq 0: there is no such table; -1: nobody knows.
    """

    seq: int = 0
    rows: int = 0


NO_DEAD_LETTERS = DeadLetters()


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a sink: the seq of its last commit and the watermark in that commit.

    Invariants: `seq` >= 0, it is 0 only for a sink that was never claimed; `job_id` and `source_id` are those of the
    commit that carries `seq`. `void` says why the rows cannot be trusted to equal the source at the watermark (empty:
    they can); then only a snapshot difference or a new snapshot makes them right. `base_version` is the sink's own
    version up to which all this was checked. `dead` goes with the rows, and so do the `column_ids` of the source (None:
    the sink does not say). `sources` are those of a sink that is made of several tables. `as_of_s` is the instant (Unix
    seconds) of rows that depend on the time; 0: they do not. `totals` are those that the rows were made of.
    """

    seq: int = 0
    watermark: Watermark = Watermark()
    job_id: str = ""
    source_id: str = ""
    void: str = ""
    base_version: int = -1
    dead: DeadLetters = NO_DEAD_LETTERS
    column_ids: ColumnIds | None = None
    sources: SourceMarks = field(default_factory=dict)
    as_of_s: float = 0.0
    totals: QueryTotals = NO_TOTALS


# --- checks of how far sources were read ------------------------------------------------------------------------------
# A sink, a node or the job log says how far; it is also written and read as JSON here.

SOURCES_MAX = 1_000
"""Tables that one job reads, as far as it may be said of its sink; a position with more of them is refused."""


def exact_watermark(found: object) -> Watermark:
    if not isinstance(found, Watermark):
        raise ValueError(f"watermark is {shown(found)}, which is no Watermark")
    steps = exact_int(found.steps, "watermark.steps")
    return Watermark(
        exact_version(found.version, "watermark.version"),
        exact_float(found.at_s, "watermark.at_s"),
        exact_int(found.step, "watermark.step", 0, steps),
        steps,
    )


def exact_sources(found: object, name: str = "sources") -> SourceMarks:
    """Return the marks of a sink's tables, by their URIs. Raises ValueError."""
    if not isinstance(found, Mapping) or len(found) > SOURCES_MAX:
        raise ValueError(f"{name} is {shown(found)}, which is no mapping of at most {SOURCES_MAX} tables")
    return {exact_name(uri, f"{name}: a URI"): _exact_mark(mark, name) for uri, mark in found.items()}


def _exact_mark(found: object, name: str) -> SourceMark:
    if not isinstance(found, SourceMark):
        raise ValueError(f"{name} has {shown(found)}, which is no SourceMark")
    return SourceMark(exact_name(found.table_id, f"{name}: table_id"), exact_watermark(found.watermark))


def sources_document(sources: SourceMarks) -> dict[str, list[Any]]:
    """Return the marks as JSON, by URI: table_id, version, commit time; and for a version that is applied in part, its
    steps.
    """
    return {uri: [mark.table_id, *_numbers(mark.watermark)] for uri, mark in sources.items()}


def _numbers(mark: Watermark) -> list[float]:
    return [mark.version, mark.at_s, *([mark.step, mark.steps] if mark.steps else [])]


def parse_sources(document: object) -> SourceMarks:
    """Read the result of `sources_document`; raise ValueError for anything else."""
    if not isinstance(document, Mapping) or not all(isinstance(each, list) and each for each in document.values()):
        raise ValueError(f"sources is {shown(document)}, which does not map tables to their marks")
    try:
        return exact_sources({uri: SourceMark(each[0], Watermark(*each[1:])) for uri, each in document.items()})
    except TypeError:
        raise ValueError(f"sources is {shown(document)}, and a mark in it has too many parts") from None


# --- checks of the time at which something is to be done again --------------------------------------------------------
# The time is somebody else's answer, and is checked before it is believed.


def wait_until_s(next_at_s: object, now_s: float) -> float:
    """Return how long to wait for `next_at_s` (Unix seconds): never in the past, never nothing. Raises PermanentError.

    A time that is over would have it done again at once and for ever, one that is none never again.
    """
    try:
        at_s = exact_float(next_at_s, "next_at_s", -inf, inf)
    except ValueError as error:
        raise _no_time(f"{shown(next_at_s)} is no time") from error
    if at_s <= now_s:
        raise _no_time(f"{at_s} is {now_s - at_s:.3f} s in the past")
    return at_s - now_s


def _no_time(why: str) -> PermanentError:
    return PermanentError(
        f"the next time that was answered will not do: {why}",
        remedy="Answer Unix seconds that are yet to come",
        code=ErrorCode.CONSUMER_BROKEN,
    )
