"""The `job_spec`: what a job maintains, when its iterations start, and what it does about what may happen.

Its JSON form is that of the job log and of the API; it carries no defaults that were not given, so that a later default
also reaches jobs registered before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, get_type_hints

from iscp.core.spec.spec_fields import PATHS, SET

E = TypeVar("E", bound=StrEnum)

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
    applies them again: nothing that runs the job reads it.
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
    Mapping[str, Any]: "object",
}


@cache
def schema_of_spec() -> tuple[SpecField, ...]:
    """Return all fields, in the order of `iscp.core.spec.spec_fields.PATHS`."""
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
    sections = ("trigger", "target_lag", "independent", "iteration", SET)

    def rank(each: SpecField) -> tuple[int, bool]:
        return sections.index(each.path[0]), each.holder is JobSpec and bool(each.choices)

    return tuple(sorted(schema_of_spec(), key=rank))
