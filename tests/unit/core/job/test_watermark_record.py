"""The watermark record of a sink with its own transactions survives encoding, and gives the sink's position."""

from __future__ import annotations

import json

import pytest

from iscp.core.job.watermark_record import WatermarkRecord, parse_record, position_of, record_key
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.ids import JobKey
from iscp.core.values.watermark import Watermark

RECORD = WatermarkRecord(7, Watermark(41, 1234.5), "j-1", "t-1", from_version=39, epoch=3, attempt="ab12")


def test_a_record_comes_back_the_same() -> None:
    assert parse_record(RECORD.to_json()) == RECORD


def test_it_returns_the_position_of_the_sink() -> None:
    position = position_of(RECORD.to_json())
    assert (position.seq, position.watermark, position.job_id, position.source_id) == (
        7,
        Watermark(41, 1234.5),
        "j-1",
        "t-1",
    )
    assert position.base_version == 7
    assert position.void == ""


@pytest.mark.parametrize("text", [None, ""])
def test_a_sink_without_one_was_never_written_to(text: str | None) -> None:
    position = position_of(text)
    assert (position.seq, position.watermark.version, position.base_version) == (0, -1, -1)


def _without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(RECORD.to_json()).items() if key != name})


@pytest.mark.parametrize(
    "text", ["nonsense", "[]", "{}", "7", RECORD.to_json().replace('"format":1', '"format":3'), _without("seq")]
)
def test_what_is_no_record_is_reported_with_what_to_do(text: str) -> None:
    with pytest.raises(PermanentError, match="cannot be read") as refused:
        parse_record(text)
    assert refused.value.code is ErrorCode.CONSUMER_BROKEN
    assert refused.value.remedy


def test_its_key_is_the_sinks_place_and_outlives_registrations() -> None:
    key = JobKey("acme", "t-1", "search")
    assert record_key(key, "/data/x.db") == record_key(JobKey("acme", "t-1", "other"), "/data/x.db")
    assert record_key(key, "") != record_key(JobKey("acme", "t-1", "other"), "")
