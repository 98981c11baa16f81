"""Say what a run would do to each job, and why, without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from iscp.core.run.target_standing import TargetStanding


class Forecast(StrEnum):
    """A run would CREATE the target, UPDATE it by what has changed, REBUILD its rows, or do nothing (CURRENT).

    REFUSED: it would fail before anything is written. SKIPPED: a job whose target it reads would be refused.
    """

    CREATE = "create"
    UPDATE = "update"
    REBUILD = "rebuild"
    TAKE_OVER = "take over"
    CURRENT = "current"
    REFUSED = "refused"
    SKIPPED = "skipped"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class JobForecast:
    """The forecast of one job. `versions` has for each table that it reads the version that the target is at (-1: none)
    and the newest one; it is empty where that cannot be known yet. `spark` says why it is certain that the job will
    need Spark; None: it is not known before.
    """

    name: str
    account: str
    table: str
    target: str
    action: Forecast
    why: str
    versions: Mapping[str, tuple[int, int]]
    spark: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the forecast as JSON has it."""
        versions = {uri: {"applied": applied, "newest": newest} for uri, (applied, newest) in self.versions.items()}
        return asdict(self) | {"action": self.action.value, "versions": versions}


BY_ALL_ROWS = (Forecast.CREATE, Forecast.REBUILD)
"""What is made of all rows of its tables."""


def forecast_action(
    standing: TargetStanding,
    versions: Mapping[str, tuple[int, int]],
    *,
    full: bool,
    void: str,
    upstream: Sequence[str],
    replaced: Sequence[str] = (),
) -> tuple[Forecast, str]:
    """Return what would be done and why. `upstream`: the jobs whose targets it reads, and that would write to them.

    `replaced`: the tables that are others than those whose rows the target has.
    `void` says why the target's rows cannot be trusted, and is empty if they can.
    """
    if standing is TargetStanding.NEW:
        return Forecast.CREATE, "nothing is there"
    if full:
        return Forecast.REBUILD, "so requested"
    if standing is TargetStanding.KEPT_BY_CLUSTER:
        return Forecast.TAKE_OVER, "a cluster keeps it"
    if void:
        return Forecast.UPDATE, void
    if upstream:
        return Forecast.UPDATE, f"reads {', '.join(repr(each) for each in upstream)}"
    if replaced:
        return Forecast.UPDATE, f"{', '.join(replaced)} was replaced"
    behind = [f"{uri}: {applied} → {newest}" for uri, (applied, newest) in versions.items() if applied != newest]
    return (Forecast.UPDATE, "; ".join(behind)) if behind else (Forecast.CURRENT, "no table has changed")
