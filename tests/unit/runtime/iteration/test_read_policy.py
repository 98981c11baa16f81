"""How a job's policies read a range of its source, and what they do when the source was replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.core.spec.spec import ChangeMode, ConsumerSpec, JobSpec, OnReplace
from iscp.core.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.core.values.watermark import Position, Watermark
from iscp.ports.catalog import TableDescription
from iscp.ports.source import SourceRange
from iscp.runtime.iteration import read_policy
from iscp.runtime.iteration.read_policy import Reading

SPEC = JobSpec(ConsumerSpec("replica", "/lake/target"))
SPAN = SourceRange(1, Watermark(3, 30.0), "t-1", from_at_s=10.0, cdf_on=True)
APPLIED = Position(seq=2, watermark=Watermark(1, 10.0), source_id="t-1")


@pytest.mark.parametrize(
    ("source", "cdf_on", "inserts_only", "expected"),
    [
        (ChangeMode.AUTO, True, False, Reading.CDF),
        (ChangeMode.AUTO, True, True, Reading.CDF),
        (ChangeMode.AUTO, False, True, Reading.FILES),
        (ChangeMode.AUTO, False, False, Reading.COMPARE),
        (ChangeMode.CDF, True, True, Reading.CDF),
        (ChangeMode.CDF, False, True, Reading.CDF),
        (ChangeMode.APPEND, True, True, Reading.FILES),
        (ChangeMode.APPEND, True, False, Reading.COMPARE),
        (ChangeMode.DIFF, True, True, Reading.COMPARE),
    ],
)
def test_how_a_range_is_read(source: ChangeMode, cdf_on: bool, inserts_only: bool, expected: Reading) -> None:
    span = replace(SPAN, cdf_on=cdf_on, inserts_only=inserts_only)
    assert read_policy.reading(replace(SPEC, change_source=source), span) is expected


def test_only_auto_warns_of_a_feed_that_is_off_and_who_compares_by_choice_is_not_warned() -> None:
    off = replace(SPAN, cdf_on=False)
    assert "is off" in read_policy.warning(SPEC, off, "")
    assert read_policy.warning(replace(SPEC, change_source=ChangeMode.APPEND), off, "") == ""
    assert read_policy.warning(SPEC, SPAN, "vacuumed") == "all rows were compared: vacuumed"
    assert read_policy.warning(SPEC, SPAN, "") == ""


@pytest.mark.parametrize(("configured", "refused"), [({}, True), ({"delta.enableChangeDataFeed": "true"}, False)])
def test_cdf_is_refused_at_once_where_the_feed_is_off(configured: dict[str, str], refused: bool) -> None:
    source = TableDescription("t-1", "orders", "/lake/orders", 3, 1.0, configuration=configured)
    read_policy.refuse_unfit(SPEC, source)
    if not refused:
        read_policy.refuse_unfit(replace(SPEC, change_source=ChangeMode.CDF), source)
        return
    with pytest.raises(InvalidRequest, match="is off") as fault:
        read_policy.refuse_unfit(replace(SPEC, change_source=ChangeMode.CDF), source)
    assert fault.value.field == "spec.iteration.change_source"


@pytest.mark.parametrize(
    ("now", "applied_at_s", "fault"),
    [
        (SPAN, 10.0, ""),
        (replace(SPAN, table_id="t-2"), 10.0, ""),  # replaced, and the log goes on
        (replace(SPAN, table_id="t-2"), 11.0, "recreated"),
        # The commit is gone: nobody can know that the log goes on.
        (replace(SPAN, table_id="t-2"), 0.0, "does not show whether it goes on"),
        (SPAN, 11.0, ""),  # restored from a backup, and written on
        (replace(SPAN, to=Watermark(0, 5.0)), 0.0, "ends at version 0"),
    ],
)
def test_a_log_that_was_recreated_is_distinguished_from_one_that_goes_on(
    now: SourceRange, applied_at_s: float, fault: str
) -> None:
    read_policy.refuse_rebuild(replace(SPEC, on_replace=OnReplace.FOLLOW), APPLIED, now, lambda: applied_at_s)
    if not fault:
        read_policy.refuse_rebuild(SPEC, APPLIED, now, lambda: applied_at_s)
        return
    with pytest.raises(PermanentError, match=fault) as refused:
        read_policy.refuse_rebuild(SPEC, APPLIED, now, lambda: applied_at_s)
    assert (refused.value.code, "resync" in refused.value.remedy) == (ErrorCode.SOURCE_REPLACED, True)
