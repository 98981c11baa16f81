"""A job log that nodes of the release before share stays as they know it, until a person raises its format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.delta.joblog.log_opening import FORMAT_BEFORE, history_schema, upgrade_job_log
from iscp.delta.joblog.log_schema import FORMAT, HISTORY_SCHEMA, LOG_SCHEMA, history_table
from iscp.model.job.iteration import HistoryEntry, Usage
from iscp.model.job.job_row import LogEntry
from iscp.model.values.errors import ConfigurationError
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.log_program import job


def owner(uri: Path) -> DeltaJobLog:
    joblog = DeltaJobLog(str(uri), SystemClock(), EnvironmentFailpoints({}))
    joblog.claim_term()
    joblog.load()
    return joblog


def entry(seq: int) -> HistoryEntry:
    return HistoryEntry("default", "t", "j", "id", seq, 1, 2, 10.0, 10.0 + seq, 9.0, 0, "", 3, 4, "tail", "n1")


def refreshed(seq: int) -> HistoryEntry:
    """With what the history of the format before has no columns for."""
    usage = Usage(0.5, 0.25, 1.5, 0.125, 7, 3, 4_096, 512, 1, 2)
    return replace(
        entry(seq), reason="few rows have changed", rows_in=7, parts_s={"plan": 0.5, "rows": 1.25}, usage=usage
    )


def create(uri: Path, schema: pa.Schema, format_: int = FORMAT_BEFORE) -> DeltaTable:
    configuration: dict[str, str | None] = {"iscp.format": str(format_)}
    return DeltaTable.create(str(uri), schema, configuration=configuration, raise_if_key_not_exists=False)


def formats(uri: Path) -> list[str]:
    tables = (DeltaTable(str(uri / name)) for name in ("iscp_log", "iscp_history"))
    return [table.metadata().configuration["iscp.format"] for table in tables]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A log that the release before has begun, and a history with one entry."""
    create(tmp_path / "iscp_log", LOG_SCHEMA)
    known = history_schema(FORMAT_BEFORE)
    history = create(tmp_path / "iscp_history", known)
    write_deltalake(history, history_table([entry(1)]).select(known.names), mode="append")
    return tmp_path


def test_a_log_of_the_format_before_is_written_as_it_is(before: Path) -> None:
    joblog = owner(before)
    joblog.append([LogEntry(job(1))])
    joblog.append_history([refreshed(2)])
    assert joblog.history("id", 9) == [entry(2), entry(1)]
    assert formats(before) == [str(FORMAT_BEFORE)] * 2
    assert "reason" not in [field.name for field in DeltaTable(str(before / "iscp_history")).schema().fields]
    joblog.compact([job(1)])
    assert [row.key for row in owner(before).load()] == [job(1).key]


def test_a_history_that_is_made_beside_such_a_log_is_of_its_format(before: Path) -> None:
    DeltaTable(str(before / "iscp_history")).delete()
    for file in sorted((before / "iscp_history").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (before / "iscp_history").rmdir()
    owner(before).append_history([entry(1)])
    assert formats(before) == [str(FORMAT_BEFORE)] * 2


def test_it_is_raised_while_an_owner_writes(before: Path) -> None:
    joblog = owner(before)
    joblog.append_history([refreshed(2)])
    assert upgrade_job_log(str(before)) == FORMAT_BEFORE
    assert formats(before) == [str(FORMAT)] * 2
    joblog.append([LogEntry(job(1))])
    joblog.append_history([refreshed(3)])
    assert joblog.history("id", 9) == [refreshed(3), entry(2), entry(1)]
    assert upgrade_job_log(f"{before}/") == FORMAT


def test_what_is_no_log_or_a_later_one_is_not_raised(before: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no job log"):
        upgrade_job_log(str(tmp_path / "nowhere"))
    for name in ("iscp_log", "iscp_history"):
        table = DeltaTable(str(before / name))
        table.alter.set_table_properties({"iscp.format": "99"}, raise_if_not_exists=False)
    with pytest.raises(ConfigurationError, match="Install a newer iscp"):
        upgrade_job_log(str(before))
    assert formats(before) == ["99", "99"]


def test_a_new_log_is_of_this_format(tmp_path: Path) -> None:
    owner(tmp_path).append_history([refreshed(1)])
    assert formats(tmp_path) == [str(FORMAT)] * 2


def test_a_history_that_0_1_0_has_written_is_gone_on_with_and_read_by_it(tmp_path: Path) -> None:
    """Its columns are the same: neither release fails at the other's entries, whichever is owner."""
    create(tmp_path / "iscp_log", LOG_SCHEMA, FORMAT)
    history = create(tmp_path / "iscp_history", HISTORY_SCHEMA, FORMAT)
    columns = [field.name for field in history.schema().fields]
    unmeasured = replace(refreshed(1), usage=None)
    write_deltalake(history, history_table([unmeasured, entry(2)]), mode="append")
    joblog, measured = owner(tmp_path), replace(entry(4), usage=Usage())
    joblog.append_history([refreshed(3), measured])
    assert joblog.history("id", 9) == [measured, refreshed(3), entry(2), unmeasured]
    table = DeltaTable(str(tmp_path / "iscp_history"))
    assert [field.name for field in table.schema().fields] == columns
    texts = [text for text in table.to_pyarrow_table()["parts_s"].to_pylist() if text]
    # It takes each for seconds, and its API has nothing but numbers for them.
    assert all(type(value) in (int, float) for text in texts for value in json.loads(text).values())
