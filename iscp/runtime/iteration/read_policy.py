"""Applies the policies of a job's spec to its iterations: how its changes are read, and which source it follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto

from iscp.core.spec.spec import ChangeMode, JobSpec, OnReplace
from iscp.core.values.column_identity import chosen_collated
from iscp.core.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.core.values.watermark import Position, committed_apart
from iscp.ports.catalog import TableDescription
from iscp.ports.refreshing import Refreshed
from iscp.ports.source import SourceRange

_CDF = "delta.enableChangeDataFeed"
_TURN_ON = f"ALTER TABLE ... SET TBLPROPERTIES ({_CDF} = true)"


class Reading(Enum):
    """A way to read a range: the change data feed, the files that were added, or all rows, to be compared."""

    CDF = auto()
    FILES = auto()
    COMPARE = auto()


def reading(spec: JobSpec, span: SourceRange) -> Reading:
    """Return how a range is read. Added files say all if no commit took rows away."""
    match spec.change_source:
        case ChangeMode.DIFF:
            return Reading.COMPARE
        case ChangeMode.CDF:
            return Reading.CDF
        case ChangeMode.AUTO if span.cdf_on:
            return Reading.CDF
        case _:
            return Reading.FILES if span.inserts_only else Reading.COMPARE


def unread(spec: JobSpec) -> str:
    """Return why a range is read as COMPARE, or an empty text if the policy says so."""
    match spec.change_source:
        case ChangeMode.DIFF:
            return ""
        case ChangeMode.APPEND:
            return "a commit took rows away"
        case _:
            return "the change data feed is off"


def warning(spec: JobSpec, span: SourceRange, compared: str = "", rebuilt: str = "") -> str:
    """Return the warning for the user of a job whose iteration costs more than it needs to, or an empty text.

    `compared` says why changes did not do where all rows were compared, and is empty if the policy says so. `rebuilt`
    says why the target was rebuilt.
    """
    if rebuilt:
        return f"the target was rebuilt: {rebuilt}"
    if spec.change_source is ChangeMode.AUTO and not span.cdf_on:
        off = "the change data feed of the source is off: what is not appended is found by comparing"
        return off if spec.enable_cdf else f"{off}. {_TURN_ON}, or have the job do so (enable_cdf)"
    return f"all rows were compared: {compared}" if compared else ""


def warning_of_refresh(done: Refreshed, rebuilt: str) -> str:
    """Return the warning after a refresh, which may have one of its own."""
    return f"the target was rebuilt: {rebuilt}" if rebuilt else done.warning


def refuse_unfit(spec: JobSpec, source: TableDescription) -> None:
    """Raise InvalidRequest at the registration if the source does not fit the policies."""
    cdf_on = source.configuration.get(_CDF, "false").lower() == "true"
    if spec.change_source is ChangeMode.CDF and not (cdf_on or spec.enable_cdf):
        raise InvalidRequest(
            f"is cdf, and the change data feed of {source.name} is off",
            field="spec.iteration.change_source",
            remedy=f"{_TURN_ON}, or have the job do so (enable_cdf); or use auto, which compares",
        )


def refuse_cdf_off(spec: JobSpec, span: SourceRange) -> None:
    """Raise PermanentError if a job wants the CDF, and it was switched off.

    Otherwise such a job would compare with each commit from now on; a gap in the CDF costs one comparison.
    """
    if spec.change_source is ChangeMode.CDF and not span.cdf_on:
        raise PermanentError(
            "the change data feed of the source was switched off",
            about="spec.iteration.change_source",
            remedy=f"{_TURN_ON}, then `iscp-admin job resume`; or set it to auto",
            code=ErrorCode.CDF_OFF,
        )


def refuse_collated(spec: JobSpec, span: SourceRange) -> None:
    """Raise PermanentError if the job would store texts with a collation.

    They are refused at the registration, too, but may come later.
    """
    if collated := chosen_collated(span.collated, spec.consumer.columns):
        raise PermanentError(
            f"the source's {', '.join(collated)} has texts with a collation now, with which Delta writes no table here",
            about="spec.iteration.consumer.columns",
            remedy="Take it off and resume the job; or `iscp-admin job resync` it with a spec whose columns do without",
            code=ErrorCode.SCHEMA_CHANGED,
        )


def same_log(positions: Iterable[Position], span: SourceRange) -> bool:
    """Return whether the log is still the one that the watermarks are of.

    A log that was restored from a backup has the same id.
    """
    return all(
        position.source_id == span.table_id and not committed_apart(position.watermark.at_s, span.from_at_s)
        for position in positions
    )


def refuse_rebuild(spec: JobSpec, position: Position, now: SourceRange, applied_at_s: Callable[[], float]) -> None:
    """Raise PermanentError if the log was recreated, and the job is not to follow that.

    A table that was replaced has another id, but its log goes on: the commit at the watermark is the same.
    `applied_at_s` finds the time of that commit now (0: it is not there any more).
    """
    lower = now.to.version < position.watermark.version
    if spec.on_replace is OnReplace.FOLLOW or not (lower or now.table_id != position.source_id):
        return
    at_s = 0.0 if lower else applied_at_s()
    if at_s and not committed_apart(position.watermark.at_s, at_s):
        return
    version, fault = position.watermark.version, "the source was dropped and recreated"
    if lower:
        fault += f"; its log ends at version {now.to.version}, before {version}"
    elif not at_s:
        fault = (
            f"the source was replaced, and its log, cleaned beyond version {version}, does not show whether it goes on"
        )
    raise PermanentError(
        fault,
        remedy="`iscp-admin job resync` builds the target from what is there now; with on_replace follow jobs do so "
        "by themselves",
        code=ErrorCode.SOURCE_REPLACED,
    )
