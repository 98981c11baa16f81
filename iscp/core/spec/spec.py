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


def _about(text: str, *, least: int | None = None, most: int | None = None) -> dict[str, Any]:
    """What is known of a field besides its type, for whoever writes job files: a sentence, and bounds (inclusive)."""
    return {"about": text, "least": least, "most": most}


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
    """Of PERIODIC are `interval_s`, or `cron` with `time_zone`, and `share`; of CUSTOM `name` (an entry point of
    `iscp.triggers`) and `options`.
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
        metadata=_about("Of the periodic trigger, instead of an interval: times, as in '0 30 6 * * ?' (Quartz)"),
    )
    time_zone: str = field(
        default="", metadata=_about("Of cron: the zone of its times, as Europe/Berlin; by default UTC")
    )


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

    def to_json(self) -> str:
        return json.dumps(self._document(), separators=(",", ":"))

    def _document(self) -> dict[str, Any]:
        consumer, trigger = self.consumer, self.trigger
        job_type = None if trigger.job_type is TriggerType.DEFAULT else trigger.job_type.value
        schedule = _given(
            interval=trigger.interval_s,
            cron=trigger.cron or None,
            time_zone=trigger.time_zone or None,
            share=trigger.share or None,
        )
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
