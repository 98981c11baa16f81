"""The `job_spec`: what a job keeps, when its iterations start, and what it does about what may happen.

Its JSON form is that of the job log and of the API; it carries no defaults that were not given, so that a later
default also reaches jobs registered before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

E = TypeVar("E", bound=StrEnum)

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000


class TriggerType(StrEnum):
    """When iterations start: shared with the table's other jobs, alone at once, every so often, or as a class says."""

    DEFAULT = "default"
    GREEDY = "greedy"
    PERIODIC = "periodic"
    CUSTOM = "custom"


class ChangeMode(StrEnum):
    """Where changes are read from: change data feed, the files of append-only commits, or a comparison."""

    AUTO = "auto"
    CDF = "cdf"
    APPEND = "append"
    DIFF = "diff"


class OnReplace(StrEnum):
    """What follows when the source was dropped and recreated."""

    FAIL = "fail"
    FOLLOW = "follow"


class OnDuplicate(StrEnum):
    """What follows when rows share a key."""

    DEAD_LETTER = "dead_letter"
    STOP = "stop"


class OnSchemaChange(StrEnum):
    """What follows when the source's columns change in another way than that one is added."""

    EVOLVE = "evolve"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """What a job keeps, and where: `kind` names an entry point of the group `iscp.consumers`, `options` are its own."""

    kind: str
    target: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """`interval_s` and `share` are of PERIODIC; `name` (an entry point of `iscp.triggers`) and `options` of CUSTOM."""

    job_type: TriggerType = TriggerType.DEFAULT
    interval_s: float | None = None
    share: bool = False
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The parsed `job_spec`.

    `target_lag_s`: by how much the target may lie behind its source before the job counts as late. `independent`:
    the default trigger, but in iterations of the job's own. `enable_cdf`: a source without a change data feed is
    altered to have one. `adopt_from`: the target is there and holds the source's rows at this version; the job's first
    iteration checks that, and goes on from there.
    """

    consumer: ConsumerSpec
    trigger: TriggerSpec = field(default_factory=TriggerSpec)
    target_lag_s: float | None = None
    independent: bool = False
    priority: int = 0
    change_source: ChangeMode = ChangeMode.AUTO
    on_replace: OnReplace = OnReplace.FAIL
    on_duplicate: OnDuplicate = OnDuplicate.DEAD_LETTER
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    enable_cdf: bool = False
    adopt_from: int | None = None

    def to_json(self) -> str:
        return json.dumps(self._document(), separators=(",", ":"))

    def _document(self) -> dict[str, Any]:
        consumer, trigger = self.consumer, self.trigger
        job_type = None if trigger.job_type is TriggerType.DEFAULT else trigger.job_type.value
        schedule = _given(interval=trigger.interval_s, share=trigger.share or None)
        return _given(
            trigger=_given(
                job_type=job_type,
                schedule=schedule or None,
                name=trigger.name or None,
                options=dict(trigger.options) or None,
            )
            or None,
            target_lag=self.target_lag_s,
            independent=self.independent or None,
            iteration={
                "consumer": {"kind": consumer.kind, "target": consumer.target}
                | _given(
                    key=list(consumer.key) or None,
                    columns=list(consumer.columns) or None,
                    where=consumer.where or None,
                    options=dict(consumer.options) or None,
                ),
                **_given(
                    priority=self.priority or None, enable_cdf=self.enable_cdf or None, adopt_from=self.adopt_from
                ),
                **{
                    name: value for name, kind in POLICIES.items() if (value := getattr(self, name)) != default_of(kind)
                },
            },
        )


POLICIES: dict[str, type[StrEnum]] = {
    "change_source": ChangeMode,
    "on_replace": OnReplace,
    "on_duplicate": OnDuplicate,
    "on_schema_change": OnSchemaChange,
}
"""The fields of `iteration` that choose between ways; the first of each is its default."""


def default_of(kind: type[E]) -> E:
    return next(iter(kind))


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
