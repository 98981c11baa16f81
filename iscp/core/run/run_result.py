"""The result of each job of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from iscp.core.job.usage import SparkNeed


class ResultState(StrEnum):
    """The end of a job's part in a run.

    UPDATED: it wrote to its target. CURRENT: the target was as it should be, and nothing was written. FAILED: `error`
    says why. SKIPPED: a job whose target it reads has failed, or the run was ended before its turn.
    """

    UPDATED = "updated"
    CURRENT = "current"
    FAILED = "failed"
    SKIPPED = "skipped"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class RunResult:
    """One job's part in a run.

    `strategy` and `reason` say how its rows were brought up to date, and why so. `from_version` and `to_version` are
    those of its own table that the target was at before (-1: it held nothing of the job's) and is at now. `rows` were
    written, within `seconds`, in `iterations` commits. `error_code` is an ErrorCode, and `error` a sentence with its
    remedy; both are empty unless it failed or was skipped. `warning` is what its user should know otherwise.

    `spark` says why the job needed Spark; None: it needed none, or Spark was given, and nobody has seen who uses it.
    `started_spark`: it was the first that needed Spark, which was started for it.
    """

    name: str
    account: str
    kind: str
    table: str
    target: str
    state: ResultState
    strategy: str = ""
    reason: str = ""
    from_version: int = -1
    to_version: int = -1
    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    seconds: float = 0.0
    iterations: int = 0
    error_code: int = 0
    error: str = ""
    warning: str = ""
    spark: str | None = None
    started_spark: bool = False

    @property
    def ok(self) -> bool:
        return self.state in (ResultState.UPDATED, ResultState.CURRENT)

    def document(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        return {name: value.value if isinstance(value, ResultState) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        versions = (
            f"version {self.from_version} → {self.to_version}"
            if self.from_version >= 0
            else (f"version {self.to_version}")
        )
        match self.state:
            case ResultState.FAILED | ResultState.SKIPPED:
                return f"{self.name}: {self.state}: {self.error}"
            case ResultState.CURRENT:
                return f"{self.name}: current at version {self.to_version}"
            case _:
                why = f" ({self.reason})" if self.reason else ""
                return f"{self.name}: {self.strategy}{why}, {self.rows} rows in {self.seconds:.2f} s, {versions}"


def with_need(result: RunResult, need: SparkNeed | None) -> RunResult:
    """Return the result with all that the job needed Spark for; None: it needed none."""
    return result if need is None else replace(result, spark=str(need), started_spark=need.started)
