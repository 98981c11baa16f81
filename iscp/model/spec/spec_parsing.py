"""A `job_spec` as users write it: how it is read and refused, how some of its fields are changed, and how it is made of
the fields of a materialized view.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache, partial
from math import isfinite
from typing import Any

from iscp.model.spec.cron_schedule import parse_cron
from iscp.model.spec.spec import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    ChangeMode,
    ConsumerSpec,
    E,
    JobSpec,
    Tag,
    TriggerSpec,
    TriggerType,
    default_of,
    flatten,
    schema_of_spec,
    to_spec_json,
)
from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.model.values.untrusted_values import Refusals, name_hint, shown

# --- reading ----------------------------------------------------------------------------------------------------------
# What is not known or cannot be taken is refused, by the path of the field.

TAGS_MAX, TAG_CHARS_MAX = 100, 100
"""The tags of one job, and the characters of one."""

_SET = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
"""The names of sets."""

_AS_JSON = 'Write it as in {"iteration": {…}}'


def parse_object(text: str, remedy: str) -> dict[str, Any]:
    """Read JSON that is to be a spec, or a part of one. Raises InvalidRequest."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with more digits than Python reads
        raise InvalidRequest(f"is not JSON: {error}", field="spec", remedy=remedy) from error
    if not isinstance(found, dict):
        raise _wrong(found, "an object", "spec", remedy)
    return found


@lru_cache(maxsize=4096)
def parse_spec(text: str) -> JobSpec:
    """Read a `job_spec` (JSON).

    Raises InvalidRequest with the path of the first fault; whether tables and columns exist is not checked here.
    """
    return _spec_of(_read_fields(parse_object(text, _AS_JSON), None))


def spec_faults(text: str) -> list[IscpError]:
    """Return every fault of a `job_spec`. What its fields are together is checked once each is right by itself."""
    refusals = Refusals()
    with refusals.collect():
        values = _read_fields(parse_object(text, _AS_JSON), refusals)
        if not refusals.found:
            _spec_of(values)
    return refusals.found


def _spec_of(values: dict[type, dict[str, Any]]) -> JobSpec:
    consumer, trigger = ConsumerSpec(**values[ConsumerSpec]), TriggerSpec(**values[TriggerSpec])
    if not consumer.kind:
        raise InvalidRequest("is missing", field="spec.iteration.consumer.kind", remedy="Name a consumer, as replica")
    _check_trigger(trigger, "spec.trigger")
    spec = JobSpec(consumer, trigger, **values[JobSpec])
    check_set(spec.set, "spec.set")
    if spec.independent and spec.trigger.job_type is not TriggerType.DEFAULT:
        raise InvalidRequest(
            "goes only with the default trigger", field="spec.independent", remedy="Leave it out: only that one shares"
        )
    if spec.enable_cdf and spec.change_source not in (ChangeMode.AUTO, ChangeMode.CDF):
        raise InvalidRequest(
            f"is of no use to a job whose change_source is {spec.change_source}",
            field="spec.iteration.enable_cdf",
            remedy="Leave it out, or choose auto or cdf",
        )
    return spec


def _read_fields(root: dict[str, Any], refusals: Refusals | None) -> dict[type, dict[str, Any]]:
    """Return the values of all fields by the dataclass that has them, and by its attributes.

    Every fault is collected in `refusals`, or the first one raised if that is None.
    """

    def collect() -> AbstractContextManager[None]:
        return refusals.collect() if refusals else nullcontext()

    values: dict[type, dict[str, Any]] = {ConsumerSpec: {}, TriggerSpec: {}, JobSpec: {}}
    given = {"spec": root}
    for parent, name, path, known in _sections():
        given[path] = {}
        with collect():
            given[path] = _object(given[parent].get(name), path) if name else root
        for unknown in given[path]:
            if unknown not in known:
                with collect():
                    raise unknown_field(unknown, path, known)
    for section, name, path, read, holder, attribute in _readings():
        with collect():
            values[holder][attribute] = read(given[section].get(name), path)
    return values


@cache
def _sections() -> tuple[tuple[str, str, str, set[str]], ...]:
    """Return the sections, outer ones first, each as the one around it, its name and path there, and the names in
    it.
    """
    found: dict[str, set[str]] = {}
    for each in schema_of_spec():
        place = ("spec", *each.path)
        for depth in range(1, len(place)):
            found.setdefault(".".join(place[:depth]), set()).add(place[depth])
    parts = ((*path.rpartition("."), path) for path in sorted(found, key=lambda path: path.count(".")))
    return tuple((parent, name if parent else "", path, found[path]) for parent, _, name, path in parts)


@cache
def _readings() -> tuple[tuple[str, str, str, Callable[[Any, str], Any], type, str], ...]:
    """Return the fields, each as its section, its name and path there, its reader, and where the value goes."""
    return tuple(
        (
            ".".join(("spec", *each.path[:-1])),
            each.path[-1],
            ".".join(("spec", *each.path)),
            partial(_choice, each.kind) if each.choices else _READERS[each.kind],
            each.holder,
            each.attribute,
        )
        for each in schema_of_spec()
    )


def check_set(name: str, path: str) -> None:
    """Raise InvalidRequest for what cannot be the name of a set; an empty name is of none."""
    if name and not _SET.fullmatch(name):
        raise InvalidRequest(
            f"{shown(name)} cannot be the name of a set",
            about=path,
            remedy="Use at most 100 letters and digits of ASCII, with . _ - between them",
        )


def _check_trigger(trigger: TriggerSpec, path: str) -> None:
    periodic, custom = trigger.job_type is TriggerType.PERIODIC, trigger.job_type is TriggerType.CUSTOM
    _refuse_stray(trigger.interval_s is not None and not periodic, f"{path}.schedule.interval", TriggerType.PERIODIC)
    _refuse_stray(bool(trigger.cron) and not periodic, f"{path}.schedule.cron", TriggerType.PERIODIC)
    _refuse_stray(trigger.share and not periodic, f"{path}.schedule.share", TriggerType.PERIODIC)
    _refuse_stray(bool(trigger.name) and not custom, f"{path}.name", TriggerType.CUSTOM)
    _refuse_stray(bool(trigger.options) and not custom, f"{path}.options", TriggerType.CUSTOM)
    if periodic and trigger.interval_s is None and not trigger.cron:
        raise InvalidRequest(
            "is missing, and the trigger is periodic",
            field=f"{path}.schedule.interval",
            remedy="Give the seconds between iterations, as 600 (`--every 10m`), or times by cron",
        )
    _check_cron(trigger, f"{path}.schedule")
    if custom and not trigger.name:
        raise InvalidRequest(
            "is missing, and the trigger is custom",
            field=f"{path}.name",
            remedy="Name an entry point of the group iscp.triggers",
        )


def _check_cron(trigger: TriggerSpec, path: str) -> None:
    if not trigger.cron:
        if trigger.time_zone:
            raise InvalidRequest("goes only with cron", field=f"{path}.time_zone", remedy="Leave it out, or give cron")
        return
    if trigger.interval_s is not None or trigger.share:
        other = "share" if trigger.share else "interval"
        raise InvalidRequest("does not go with cron", field=f"{path}.{other}", remedy="Leave one of both out")
    parse_cron(trigger.cron, trigger.time_zone, f"{path}.cron", f"{path}.time_zone")


def _refuse_stray(stray: bool, path: str, of: TriggerType) -> None:
    if stray:
        raise InvalidRequest(
            f"goes only with the {of} trigger", field=path, remedy=f"Leave it out, or choose the trigger {of}"
        )


def _object(value: Any, path: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(value, "an object", path, 'Write it as in {"name": "value"}')
    return value


def unknown_field(name: object, path: str, known: Iterable[str]) -> InvalidRequest:
    """Return the error of a field of what is at `path` that is none of those which are known there."""
    remedy = f"{name_hint(str(name), known)} Known are {', '.join(sorted(known))}".lstrip()
    return InvalidRequest("is not a known field", field=f"{path}.{name}", remedy=remedy)


def _names(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _wrong(value, "a list of column names", path, 'Write it as in ["a", "b"]')
    if len(set(value)) != len(value):
        raise InvalidRequest("names a column twice", field=path, remedy="Name each column once")
    return tuple(value)


def _tags(value: Any, path: str) -> tuple[Tag, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag.isprintable() and tag for tag in value):
        raise _wrong(value, "a list of texts", path, 'Write it as in ["nightly", "team:sales"]')
    if len(value) > TAGS_MAX or max(map(len, value), default=0) > TAG_CHARS_MAX:
        remedy = f"Give at most {TAGS_MAX} tags of at most {TAG_CHARS_MAX} characters"
        raise InvalidRequest("has too many tags, or too long ones", field=path, remedy=remedy)
    return tuple(map(Tag, dict.fromkeys(value)))


def _text(value: Any, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(value, "a text", path, "Quote it")
    return value


def _flag(value: Any, path: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise _wrong(value, "true or false", path, "Write it without quotes, or leave it out")
    return bool(value)


def _seconds(value: Any, path: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not isfinite(value) or value <= 0:
        raise _wrong(value, "a number of seconds above 0", path, "Write it as in 60 or 0.5")
    return float(value)


def _version(value: Any, path: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise _wrong(value, "a version of the source", path, "Give the one whose rows the target holds, as 12")
    return value


def _choice(kind: type[E], value: Any, path: str) -> E:
    if value is None:
        return default_of(kind)
    if not isinstance(value, str) or value not in set(kind):
        raise InvalidRequest(
            f"is {shown(value)}, which is not known here", field=path, remedy=f"Use one of {', '.join(kind)}"
        )
    return kind(value)


def _priority(value: Any, path: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not PRIORITY_MIN <= value <= PRIORITY_MAX:
        wanted = f"a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}"
        raise _wrong(value, wanted, path, "Higher goes first; leave it out for 0")
    return value


def _wrong(value: Any, wanted: str, path: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"is {shown(value)}: must be {wanted}", field=path, remedy=remedy)


_READERS: dict[Any, Callable[[Any, str], Any]] = {
    str: _text,
    bool: _flag,
    int: _priority,
    int | None: _version,
    float | None: _seconds,
    tuple[str, ...]: _names,
    tuple[Tag, ...]: _tags,
    Mapping[str, Any]: _object,
}
"""The readers of fields by their types; they refuse other values."""


# --- changes of some fields -------------------------------------------------------------------------------------------
# A field that is not given stays as it is, and null takes a field back to its default. The result is checked as a
# whole, as a new job's spec is. A trigger of another kind replaces the one before with all that belongs to it. What
# decides over the rows of the target cannot be changed, as the target would no longer have what its watermark says.

_PATCH_AS_JSON = 'Write it as in {"target_lag": 60}'

_OPAQUE = "options"
"""The field of a consumer or trigger of the user's that is replaced as a whole, not field by field."""


def changed_spec(current_json: str, changes_json: str) -> JobSpec:
    """Return the spec with `changes_json` (a job_spec with the fields to change) over it; raises InvalidRequest."""
    changes = parse_object(changes_json, _PATCH_AS_JSON)
    before = parse_spec(current_json)
    current = json.loads(current_json)
    trigger = changes.get("trigger")
    if isinstance(trigger, dict) and trigger.get("job_type", before.trigger.job_type) != before.trigger.job_type:
        current.pop("trigger", None)
        if trigger["job_type"] not in (None, TriggerType.DEFAULT):
            current.pop("independent", None)
    _drop_other_schedule(current, trigger)
    after = parse_spec(json.dumps(_merged(current, changes)))
    _refuse_another_target(before, after)
    return after


def _drop_other_schedule(current: dict[str, Any], trigger: Any) -> None:
    """Remove the interval where times by cron are given, and the other way round."""
    given = trigger.get("schedule") if isinstance(trigger, dict) else None
    schedule = current.get("trigger", {}).get("schedule", {})
    for one, others in (("cron", ("interval", "share")), ("interval", ("cron", "time_zone"))):
        if isinstance(given, dict) and given.get(one) is not None:
            for name in others:
                schedule.pop(name, None)


def _merged(current: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(current)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict) and name != _OPAQUE:
            value = _merged(before, value)
        merged[name] = value
    return merged


def _refuse_another_target(before: JobSpec, after: JobSpec) -> None:
    for each in fields(before.consumer):
        if getattr(before.consumer, each.name) != getattr(after.consumer, each.name):
            raise InvalidRequest(
                "cannot be changed while the target holds rows by it",
                field=f"spec.iteration.consumer.{each.name}",
                remedy="Have the target rebuilt: `iscp-admin job resync` takes another spec",
            )


# --- materialized views -----------------------------------------------------------------------------------------------
# What users give of a view is turned into the job_spec of the job that maintains it, and back.

VIEW_KIND = "view"
"""The kind of consumer that maintains a query's result."""

REFRESH_POLICIES = ("auto", "incremental", "strict", "full")
"""The ways in which a view may be refreshed; the first is the default, and is not written into a spec."""

WAITS_FOR_S = 10.0
"""Seconds that a view waits at most for tables that are behind others which it reads, where `waits_for_s` is not given;
then it is refreshed without them, and says that its rows are mixed.
"""

WAITS_FOR_MAX_S = 86_400.0
"""Most seconds for `waits_for_s` of a view; more are refused."""

OPTIONS_FIELD = "spec.iteration.consumer.options"


@dataclass(frozen=True, slots=True)
class ViewFields:
    """A materialized view. `tables` are URIs by the names in the query; the job is registered on the first one.

    With `deletion_vectors` the target may have them. `hold_s` is how long the tables retain what was removed; 0: they
    are left as they are. `waits_for_s` is how long the view waits at most for tables that are behind others; None: as
    long as by default. `run` has the fields of iscp.model.spec.spec.RunFields.
    """

    sql: str
    tables: Mapping[str, str]
    target: str = ""
    refresh: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    deletion_vectors: bool = True
    hold_s: float = 0.0
    waits_for_s: float | None = None

    @property
    def table(self) -> str:
        """Return the table on which the job is registered; raise InvalidRequest if there is none."""
        if not self.tables:
            raise InvalidRequest(
                "names no table", field=f"{OPTIONS_FIELD}.tables", remedy="Say where each table of the query is"
            )
        return next(iter(self.tables.values()))

    def spec_json(self) -> str:
        """Return the job_spec. `every` or `cron` alone makes a trigger periodic. Raises InvalidRequest if it is no
        JSON.
        """
        refresh = {} if self.refresh in ("", REFRESH_POLICIES[0]) else {"refresh": self.refresh}
        vectors = {} if self.deletion_vectors else {"deletion_vectors": False}
        hold = {"hold_s": self.hold_s} if self.hold_s else {}
        waits = {} if self.waits_for_s is None else {"waits_for_s": self.waits_for_s}
        options = {"sql": self.sql, "tables": dict(self.tables), **refresh, **vectors, **hold, **waits}
        run = {name: value for name, value in self.run.items() if value is not None}
        if not run.keys().isdisjoint(("every", "cron")):
            run.setdefault("trigger", "periodic")
        return to_spec_json({"consumer": VIEW_KIND, "target": self.target or None, "options": options, **run})


def view_of(spec_json: str) -> ViewFields | None:
    """Return the view of a job, or None if the job maintains something else, or its spec was damaged in the job log."""
    try:
        fields = flatten(spec_json or "{}")
    except (ValueError, RecursionError, AttributeError):
        return None
    options = fields.pop("options", {})
    if fields.pop("consumer", "") != VIEW_KIND or not isinstance(options, dict):
        return None
    tables = options.get("tables")
    return ViewFields(
        sql=str(options.get("sql", "")),
        tables={str(name): str(uri) for name, uri in tables.items()} if isinstance(tables, dict) else {},
        target=str(fields.pop("target", "")),
        refresh=str(options.get("refresh", REFRESH_POLICIES[0])),
        run=fields,
        deletion_vectors=options.get("deletion_vectors", True) is not False,
        hold_s=hold_s if isinstance(hold_s := options.get("hold_s", 0.0), (int, float)) else 0.0,
        waits_for_s=waits_s if isinstance(waits_s := options.get("waits_for_s"), (int, float)) else None,
    )


def shown_tables(tables: Mapping[str, str]) -> str:
    """Return the tables in one line, as in `orders=/lake/orders, items=/lake/items`."""
    return ", ".join(f"{name}={uri}" for name, uri in tables.items())


def view_text(text: str | None) -> str:
    """Return a query as it is stored: without the blanks and semicolons around it."""
    return (text or "").strip().rstrip(";").rstrip()


def target_of(spec_json: str) -> str:
    """Return the target in a job_spec, without the cost of checking all of it; none of one that cannot be read."""
    try:
        target = json.loads(spec_json).get("iteration", {}).get("consumer", {}).get("target", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return target if isinstance(target, str) else ""
