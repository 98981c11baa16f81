"""The `job_spec`: what a job maintains, when its iterations start, and what it does about what may happen; its fields
under flat names, and the schema of what may be written.

Its JSON form is that of the job log and of the API; it carries no defaults that were not given, so that a later default
also reaches jobs registered before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, NewType, TypedDict, TypeVar, get_type_hints

from iscp.model.values.errors import InvalidRequest

# --- fields under flat names ------------------------------------------------------------------------------------------
# Options, job files and the Python client have each field of a job_spec under one flat name.

_CONSUMER = ("iteration", "consumer")

PATHS: dict[str, tuple[str, ...]] = {
    "consumer": (*_CONSUMER, "kind"),
    "target": (*_CONSUMER, "target"),
    "key": (*_CONSUMER, "key"),
    "columns": (*_CONSUMER, "columns"),
    "where": (*_CONSUMER, "where"),
    "options": (*_CONSUMER, "options"),
    "trigger": ("trigger", "job_type"),
    "every": ("trigger", "schedule", "interval"),
    "cron": ("trigger", "schedule", "cron"),
    "time_zone": ("trigger", "schedule", "time_zone"),
    "share": ("trigger", "schedule", "share"),
    "trigger_name": ("trigger", "name"),
    "trigger_options": ("trigger", "options"),
    "independent": ("independent",),
    "target_lag": ("target_lag",),
    "priority": ("iteration", "priority"),
    "change_source": ("iteration", "change_source"),
    "on_replace": ("iteration", "on_replace"),
    "on_duplicate": ("iteration", "on_duplicate"),
    "on_schema_change": ("iteration", "on_schema_change"),
    "enable_cdf": ("iteration", "enable_cdf"),
    "adopt_from": ("iteration", "adopt_from"),
    "set": ("set",),
    "tags": ("tags",),
}
"""The place of each flat name in the job_spec."""

CONSUMER_FIELDS = frozenset(name for name, path in PATHS.items() if path[:-1] == _CONSUMER)
"""The fields that decide which rows the target has."""

SET = "set"
"""The field that says whose job it is, of several sets of files that are applied; it decides nothing of how it runs."""

DURATIONS = frozenset({"every", "target_lag"})


class RunFields(TypedDict, total=False):
    """The fields that say when and how a job runs, but not what it maintains. Times are seconds; see docs/api.md."""

    trigger: str
    every: float
    cron: str
    time_zone: str
    share: bool
    trigger_name: str
    trigger_options: Mapping[str, Any]
    independent: bool
    target_lag: float
    priority: int
    change_source: str
    on_replace: str
    on_duplicate: str
    on_schema_change: str
    enable_cdf: bool
    tags: Sequence[str]


def nest(fields: Mapping[str, Any], *, null: bool = False) -> dict[str, Any]:
    """Return the job_spec with these fields, as they are given. Raises TypeError for unknown names.

    None is not given, or, if `null`, the default.
    """
    root: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in PATHS:
            raise TypeError(f"a job has no field {name!r}; known are {', '.join(sorted(PATHS))}")
        if value is None and not null:
            continue
        *sections, last = PATHS[name]
        place = root
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return root


def flatten(spec_json: str) -> dict[str, Any]:
    """Return the fields that a job_spec has, under their flat names."""
    root = json.loads(spec_json)
    return {name: value for name, path in PATHS.items() if (value := _at(root, path)) is not None}


def set_of(spec_json: str) -> str:
    """Return the set whose files a job was made by; empty for one of no set."""
    return str(flatten(spec_json).get(SET, "")) if f'"{SET}"' in spec_json else ""


def tags_of(spec_json: str) -> tuple[str, ...]:
    """Return the words by which users choose a job."""
    return tuple(flatten(spec_json).get("tags") or ()) if '"tags"' in spec_json else ()


def with_set(spec_json: str, name: str) -> str:
    """Return the job_spec as one of a job of this set; of none where the name is empty."""
    root = {section: value for section, value in json.loads(spec_json).items() if section != SET}
    return to_json({**root, SET: name} if name else root)


def differing_fields(one_json: str, other_json: str) -> list[str]:
    """Return the flat names of the fields in which two job_specs differ; `spec` where one of them cannot be read."""
    if one_json == other_json:
        return []
    try:
        one, other = flatten(one_json), flatten(other_json)
    except (ValueError, RecursionError):
        return ["spec"]
    return [name for name in PATHS if one.get(name) != other.get(name)]


def _at(place: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(place, dict) or name not in place:
            return None
        place = place[name]
    return place


def to_spec_json(fields: Mapping[str, Any]) -> str:
    """Return the job_spec with these fields as JSON; only the node checks whether it is valid.

    Raises InvalidRequest if it cannot be written.
    """
    return to_json(nest(fields))


def to_json(spec: Mapping[str, Any]) -> str:
    """Return a spec as JSON; raise InvalidRequest if it cannot be written."""
    try:
        return json.dumps(spec, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"cannot be written as JSON: {error}",
            field="spec",
            remedy="Use texts, numbers, lists and mappings, none of which holds itself",
        ) from error


def flat_name(path: str) -> str:
    """Return the flat name of the field at `path` of an error (`spec.trigger.job_type`); the path if it has none."""
    return next((name for name, keys in PATHS.items() if path == ".".join(("spec", *keys))), path)


# --- kinds of jobs whose targets are indexes --------------------------------------------------------------------------

INDEX_KINDS = ("fulltext", "vector", "search")
"""The kinds of consumers that maintain an index: of words, of vectors, and of both."""


# --- the parsed job_spec ----------------------------------------------------------------------------------------------

E = TypeVar("E", bound=StrEnum)
Tag = NewType("Tag", str)

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000


def _about(text: str, *, least: int | None = None, most: int | None = None) -> dict[str, Any]:
    """Return the metadata of a field, for whoever writes job files: a sentence, and bounds (inclusive)."""
    return {"about": text, "least": least, "most": most}


class TriggerType(StrEnum):
    """The trigger of iterations: shared with the table's other jobs, alone at once, every so often, or as a class
    says.
    """

    DEFAULT = "default"
    GREEDY = "greedy"
    PERIODIC = "periodic"
    CUSTOM = "custom"


class ChangeMode(StrEnum):
    """The way in which changes are read: change data feed, the files of append-only commits, or a comparison."""

    AUTO = "auto"
    CDF = "cdf"
    APPEND = "append"
    DIFF = "diff"


class OnReplace(StrEnum):
    """The reaction to a source that was dropped and recreated."""

    FAIL = "fail"
    FOLLOW = "follow"


class OnDuplicate(StrEnum):
    """The reaction to rows that share a key."""

    DEAD_LETTER = "dead_letter"
    STOP = "stop"


class OnSchemaChange(StrEnum):
    """The reaction to a change of the source's columns other than an added one."""

    EVOLVE = "evolve"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """The target of a job, and its rows: `kind` names an entry point of the group `iscp.consumers`, `options` are its
    own.
    """

    kind: str = field(metadata=_about("The consumer: what is kept, as replica or changefeed"))
    target: str = field(metadata=_about("Path or URI of the table to keep; not every consumer needs one"))
    key: tuple[str, ...] = field(
        default=(), metadata=_about("Columns that identify a row; a replica without a key is append-only")
    )
    columns: tuple[str, ...] = field(default=(), metadata=_about("Only these columns are kept; by default all"))
    where: str = field(default="", metadata=_about("Only rows for which this SQL condition holds are kept"))
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata=_about("What the consumer is given besides, as shards of a changefeed")
    )


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """The start of iterations. PERIODIC has `interval_s`, or `cron` with `time_zone`, and `share`; CUSTOM has `name`
    (an entry point of `iscp.triggers`) and `options`.
    """

    job_type: TriggerType = field(
        default=TriggerType.DEFAULT,
        metadata=_about(
            "When iterations start. default: with the table's other jobs; greedy: alone, at once; periodic: once in an "
            "interval, or at times by cron; custom: as a class says"
        ),
    )
    interval_s: float | None = field(
        default=None, metadata=_about("Of the periodic trigger: its interval; it needs this or cron")
    )
    share: bool = field(
        default=False,
        metadata=_about("Of the periodic trigger: go together with others that share and are due"),
    )
    name: str = field(default="", metadata=_about("Of the custom trigger: its name, an entry point of iscp.triggers"))
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata=_about("Of the custom trigger: what the class is given")
    )
    cron: str = field(
        default="",
        metadata=_about("Of the periodic trigger, instead of an interval: times, as in '30 6 * * *'"),
    )
    time_zone: str = field(
        default="", metadata=_about("Of cron: the zone of its times, as Europe/Berlin; by default UTC")
    )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The parsed `job_spec`.

    `target_lag_s` is by how much the target may lie behind its source before the job counts as late. `independent` is
    the default trigger, but in iterations of the job's own. With `enable_cdf` a source without a change data feed is
    altered to have one. With `adopt_from` the target is there and has the source's rows at this version; the job's
    first iteration checks that, and goes on from there. `set` names the files that the job was made by, for whoever
    applies them again: nothing that runs the job reads it, nor its `tags`.
    """

    consumer: ConsumerSpec
    trigger: TriggerSpec = field(default_factory=TriggerSpec)
    target_lag_s: float | None = field(
        default=None, metadata=_about("By how much the target may lag behind its source before the job counts as late")
    )
    independent: bool = field(
        default=False, metadata=_about("Of the default trigger: iterations of its own, neither waiting nor waited for")
    )
    priority: int = field(
        default=0, metadata=_about("Iterations of a higher one go first", least=PRIORITY_MIN, most=PRIORITY_MAX)
    )
    change_source: ChangeMode = field(
        default=ChangeMode.AUTO,
        metadata=_about(
            "How changes are read: from the change data feed (cdf), from added files (append), or by comparing (diff); "
            "auto takes the first of these that there is"
        ),
    )
    on_replace: OnReplace = field(
        default=OnReplace.FAIL, metadata=_about("If the source is dropped and recreated: stop, or follow by comparing")
    )
    on_duplicate: OnDuplicate = field(
        default=OnDuplicate.DEAD_LETTER, metadata=_about("If rows share a key: keep them beside the target, or stop")
    )
    on_schema_change: OnSchemaChange = field(
        default=OnSchemaChange.EVOLVE,
        metadata=_about("If columns change in another way than that one is added: change the target's, or stop"),
    )
    enable_cdf: bool = field(
        default=False, metadata=_about("Alter a source whose change data feed is off; of change_source auto and cdf")
    )
    adopt_from: int | None = field(
        default=None, metadata=_about("The target is there, and holds the source's rows at this version", least=0)
    )
    set: str = field(
        default="",
        metadata=_about("The set of files that made the job: only `apply --prune` of the same set deletes it"),
    )
    tags: tuple[Tag, ...] = field(
        default=(), metadata=_about("Words by which users find the job, and `iscp run --select tag:…` chooses it")
    )

    def to_json(self) -> str:
        return json.dumps(self._document(), separators=(",", ":"))

    def _document(self) -> dict[str, Any]:
        holders = {ConsumerSpec: self.consumer, TriggerSpec: self.trigger, JobSpec: self}
        root: dict[str, Any] = {}
        for each in _fields_as_written():
            value = getattr(holders[each.holder], each.attribute)
            if value == each.unset:
                continue
            place = root
            for section in each.path[:-1]:
                place = place.setdefault(section, {})
            place[each.path[-1]] = list(value) if isinstance(value, tuple) else value
        return root


def default_of(kind: type[E]) -> E:
    return next(iter(kind))


# --- the schema of a job_spec -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a job_spec as it is written: `name` is its flat one, `path` its place in a job_spec.

    The dataclass `holder` has it as `attribute`, which is `unset` where nothing was given (MISSING: it has to be).
    `default` is None where there is none. With `seconds` it is a span of time. `least` and `most` are inclusive.
    """

    name: str
    path: tuple[str, ...]
    holder: type[ConsumerSpec | TriggerSpec | JobSpec]
    attribute: str
    kind: Any
    unset: Any
    default: Any
    about: str
    seconds: bool
    least: int | None = None
    most: int | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the names of the ways that a field chooses between; empty for other fields."""
        one_of = isinstance(self.kind, type) and issubclass(self.kind, StrEnum)
        return tuple(each.value for each in self.kind) if one_of else ()

    @property
    def type_name(self) -> str:
        """Return the field's type in words for people."""
        if self.choices:
            return " | ".join(self.choices)
        if self.seconds:
            return "duration"
        return _TYPE_NAMES[self.kind]


_TYPE_NAMES: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    int | None: "whole number",
    tuple[str, ...]: "list of texts",
    tuple[Tag, ...]: "list of texts",
    Mapping[str, Any]: "object",
}


@cache
def schema_of_spec() -> tuple[SpecField, ...]:
    """Return all fields, in the order of `iscp.model.spec.spec.PATHS`."""
    return tuple(_field_of(name, path) for name, path in PATHS.items())


def _field_of(name: str, path: tuple[str, ...]) -> SpecField:
    holder = ConsumerSpec if "consumer" in path else TriggerSpec if path[0] == "trigger" else JobSpec
    known = {each.name: each for each in fields(holder)}
    seconds = f"{path[-1]}_s" in known
    owner = known[f"{path[-1]}_s" if seconds else path[-1]]
    unset = owner.default_factory() if owner.default_factory is not MISSING else owner.default
    return SpecField(
        name=name,
        path=path,
        holder=holder,
        attribute=owner.name,
        kind=get_type_hints(holder)[owner.name],
        unset=unset,
        default=unset if unset not in (MISSING, "", (), {}) else None,
        about=owner.metadata["about"],
        seconds=seconds,
        least=owner.metadata["least"],
        most=owner.metadata["most"],
    )


@cache
def _fields_as_written() -> tuple[SpecField, ...]:
    """Return all fields in the order of the JSON in job logs: the trigger first, and policies last."""
    sections = ("trigger", "target_lag", "independent", "iteration", SET, "tags")

    def rank(each: SpecField) -> tuple[int, bool]:
        return sections.index(each.path[0]), each.holder is JobSpec and bool(each.choices)

    return tuple(sorted(schema_of_spec(), key=rank))
