from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.cli.shell.history_lines import show_history, usage_words
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.usage import Usage

TAIL = HistoryEntry("a", "t", "j", "id", 7, 1, 2, 10.0, 12.5, 9.0, 0, "", 3, 4_096, "tail", "n-1")
USED = Usage(wait_s=1.5, read_s=0.25, compute_s=0.001, commit_s=2.0, rows_read=5, retries=1, conflicts=2)


def test_the_words_are_of_what_took_long_or_stood_in_the_way() -> None:
    assert usage_words(USED) == "wait 1.50 s, read 0.25 s, commit 2.00 s, 1 retry, 2 conflicts"
    assert usage_words(Usage(retries=3, conflicts=1)) == "3 retries, 1 conflict"
    assert usage_words(Usage()) == usage_words(None) == ""


def test_columns_stand_where_an_iteration_has_something_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_history([TAIL])
    plain = capsys.readouterr().out.splitlines()[0].split()
    assert plain == ["SEQ", "KIND", "FROM", "TO", "ENDED", "TOOK", "ROWS", "BYTES", "NODE", "ERROR"]
    show_history([replace(TAIL, usage=USED), TAIL])
    first, measured, unmeasured = capsys.readouterr().out.splitlines()
    assert first.split() == [*plain[:6], "READ", *plain[6:8], "USAGE", *plain[8:]]
    assert "wait 1.50 s, read 0.25 s" in measured
    assert " 5 " in measured
    assert " - " in unmeasured, "nobody has counted what a node of an earlier release has read"
