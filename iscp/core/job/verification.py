"""Comparisons of a job's target with its source: the request, the report, and when one is refused."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import ErrorCode, JobFailed
from iscp.core.values.ids import ShardId

SAMPLES_MAX = 10
"""Keys that a comparison shows; the others are only counted."""

SAMPLE_CHARACTERS_MAX = 300
"""Characters that a comparison shows of a value; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Compare the target of the registration `job_id`, and with `repair` make it equal.

    It is answered once, under `verify_id`; `shard` says which node has to do it.
    """

    verify_id: str
    shard: ShardId
    job_id: str
    repair: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One key that is not as it should be.

    `fault` is `missing` in the target, `extra` there, or `different`, in `columns`. `key` is JSON, cut where it is
    long; without a key it is the row itself.
    """

    fault: str
    key: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the rows of a target and those that it should have.

    `ranges_differing` of the `ranges` ranges of keys were read row by row. `missing` and `extra` count rows that the
    target lacks or has too many, `different` keys that it has as often, but with other values; `shared` the keys that
    rows of the source share, about which nothing else is said.
    """

    rows_source: int = 0
    rows_target: int = 0
    ranges: int = 0
    ranges_differing: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    shared: int = 0
    samples: tuple[Sample, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        shown = "; ".join(f"{one.fault} {one.key}" for one in self.samples)
        counts = f"{self.missing} rows are missing, {self.extra} are too many, {self.different} are different"
        return f"{counts}, as {shown}" if shown else counts


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """A job's target compared with its source at `version`, the job's watermark.

    `void` says why the target's rows were in doubt before (others have written to it). With `repaired` they were made
    equal, by the iteration `seq`; otherwise that is the target's last.
    """

    version: int
    seq: int
    comparison: Comparison
    void: str = ""
    repaired: bool = False

    @property
    def equal(self) -> bool:
        return self.comparison.equal


def refuse_unverifiable(row: JobRow, repair: bool) -> None:
    """Raise JobFailed if there is nothing to compare, or if a repair must not be made."""
    name = row.key.job_name
    if row.failed_for_good:
        why = "Repair that, `iscp-admin job resume`, and verify then"
        raise JobFailed(f"the job {name!r} has failed: {row.status.error_msg}", remedy=why)
    if row.watermark.version < 0:
        raise JobFailed(
            f"the job {name!r} has not been built yet",
            about="job",
            remedy="Wait for it with `iscp-admin job wait`, and verify then",
        )
    if repair and row.paused:
        raise JobFailed(
            f"the job {name!r} is paused, and a repair writes",
            about="repair",
            remedy="Resume it with `iscp-admin job resume`, or verify without repair",
            code=ErrorCode.JOB_FAILED,
        )
