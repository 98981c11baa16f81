"""Reads a `job_spec`, and refuses what it does not know or cannot take, by the path of the field."""

from __future__ import annotations

import json
from functools import lru_cache
from math import isfinite
from typing import Any

from iscp.core.spec.cron_schedule import parse_cron
from iscp.core.spec.spec import (
    POLICIES,
    PRIORITY_MAX,
    PRIORITY_MIN,
    ChangeMode,
    ConsumerSpec,
    E,
    JobSpec,
    OnDuplicate,
    OnReplace,
    OnSchemaChange,
    TriggerSpec,
    TriggerType,
    default_of,
)
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import shown

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
    root = parse_object(text, _AS_JSON)
    _refuse_unknown(root, "spec", {"trigger", "target_lag", "independent", "iteration"})
    path = "spec.iteration"
    iteration = _section(root, "iteration", path, {"priority", "consumer", "enable_cdf", "adopt_from", *POLICIES})
    spec = JobSpec(
        consumer=_consumer(iteration, f"{path}.consumer"),
        trigger=_trigger(root, "spec.trigger"),
        target_lag_s=_seconds(root.get("target_lag"), "spec.target_lag"),
        independent=_flag(root.get("independent"), "spec.independent"),
        priority=_priority(iteration.get("priority")),
        change_source=_choice(ChangeMode, iteration.get("change_source"), f"{path}.change_source"),
        on_replace=_choice(OnReplace, iteration.get("on_replace"), f"{path}.on_replace"),
        on_duplicate=_choice(OnDuplicate, iteration.get("on_duplicate"), f"{path}.on_duplicate"),
        on_schema_change=_choice(OnSchemaChange, iteration.get("on_schema_change"), f"{path}.on_schema_change"),
        enable_cdf=_flag(iteration.get("enable_cdf"), f"{path}.enable_cdf"),
        adopt_from=_version(iteration.get("adopt_from"), f"{path}.adopt_from"),
    )
    if spec.independent and spec.trigger.job_type is not TriggerType.DEFAULT:
        raise InvalidRequest(
            "goes only with the default trigger", field="spec.independent", remedy="Leave it out: only that one shares"
        )
    if spec.enable_cdf and spec.change_source not in (ChangeMode.AUTO, ChangeMode.CDF):
        raise InvalidRequest(
            f"is of no use to a job whose change_source is {spec.change_source}",
            field=f"{path}.enable_cdf",
            remedy="Leave it out, or choose auto or cdf",
        )
    return spec


def _consumer(iteration: dict[str, Any], path: str) -> ConsumerSpec:
    given = _section(iteration, "consumer", path, {"kind", "target", "key", "columns", "where", "options"})
    kind = _text(given.get("kind"), f"{path}.kind")
    if not kind:
        raise InvalidRequest("is missing", field=f"{path}.kind", remedy="Name a consumer, as replica")
    return ConsumerSpec(
        kind=kind,
        target=_text(given.get("target"), f"{path}.target"),
        key=_names(given.get("key"), f"{path}.key"),
        columns=_names(given.get("columns"), f"{path}.columns"),
        where=_text(given.get("where"), f"{path}.where"),
        options=_object(given.get("options"), f"{path}.options"),
    )


def _trigger(root: dict[str, Any], path: str) -> TriggerSpec:
    given = _section(root, "trigger", path, {"job_type", "schedule", "name", "options"})
    schedule = _section(given, "schedule", f"{path}.schedule", {"interval", "cron", "time_zone", "share"})
    trigger = TriggerSpec(
        job_type=_choice(TriggerType, given.get("job_type"), f"{path}.job_type"),
        interval_s=_seconds(schedule.get("interval"), f"{path}.schedule.interval"),
        cron=_text(schedule.get("cron"), f"{path}.schedule.cron"),
        time_zone=_text(schedule.get("time_zone"), f"{path}.schedule.time_zone"),
        share=_flag(schedule.get("share"), f"{path}.schedule.share"),
        name=_text(given.get("name"), f"{path}.name"),
        options=_object(given.get("options"), f"{path}.options"),
    )
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
    return trigger


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


def _section(parent: dict[str, Any], name: str, path: str, known: set[str]) -> dict[str, Any]:
    value = _object(parent.get(name), path)
    _refuse_unknown(value, path, known)
    return value


def _object(value: Any, path: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(value, "an object", path, 'Write it as in {"name": "value"}')
    return value


def _refuse_unknown(value: dict[str, Any], path: str, known: set[str]) -> None:
    for name in value:
        if name not in known:
            raise InvalidRequest(
                "is not a known field", field=f"{path}.{name}", remedy=f"Known are {', '.join(sorted(known))}"
            )


def _names(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _wrong(value, "a list of column names", path, 'Write it as in ["a", "b"]')
    if len(set(value)) != len(value):
        raise InvalidRequest("names a column twice", field=path, remedy="Name each column once")
    return tuple(value)


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


def _priority(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not PRIORITY_MIN <= value <= PRIORITY_MAX:
        wanted = f"a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}"
        raise _wrong(value, wanted, "spec.iteration.priority", "Higher goes first; leave it out for 0")
    return value


def _wrong(value: Any, wanted: str, path: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"is {shown(value)}: must be {wanted}", field=path, remedy=remedy)
