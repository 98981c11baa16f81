"""Real processes that end in every way: only crashes count, and for those jobs whose work they may have been."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from iscp.model.job.start_rule import KILLS_MAX, Deaths
from iscp.system.crash_ledger import JOBS_MAX, WORK_BYTES_MAX, CrashLedger
from tests.fakes import crash_program
from tests.fakes.crash_program import row

WITHIN_S = 30.0


def run(directory: Path, how: str) -> int:
    """The exit status."""
    command = [sys.executable, crash_program.__file__, str(directory), how]
    return subprocess.run(command, timeout=WITHIN_S, stderr=subprocess.DEVNULL, check=False).returncode


def deaths(directory: Path) -> dict[str, int]:
    """As the next process finds them; it ends in order."""
    with closing(CrashLedger(directory, lambda: 1_700_000_000.0)) as ledger:
        return {name: count for name in "abcd" if (count := ledger.of(row(name)).count)}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("abort", {"b": 1}),
        ("segv", {"b": 1}),
        ("library", {"b": 1, "c": 1}),
        ("pool", {"b": 1, "c": 1}),
        ("main", {}),
        ("order", {}),
    ],
)
def test_crashes_alone_count_for_the_jobs_that_were_at_work(tmp_path: Path, how: str, expected: dict[str, int]) -> None:
    assert (run(tmp_path, how) == 0) == (how == "order")
    assert deaths(tmp_path) == expected
    assert deaths(tmp_path) == expected, "one that ends in order adds none"


def kills(directory: Path) -> dict[str, int]:
    with closing(CrashLedger(directory, lambda: 1_700_000_000.0)) as ledger:
        return {name: count for name in "abcd" if (count := ledger.of(row(name)).kills)}


class Board:
    """A board with what another node has put there."""

    def __init__(self, **elsewhere: Deaths) -> None:
        self.elsewhere = elsewhere
        self.own: list[dict[str, int]] = []

    def put(self, own: Mapping[str, Deaths]) -> None:
        self.own.append({name: each.count for name, each in own.items()})

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        return [self.elsewhere]


def test_deaths_count_with_those_of_other_nodes_and_are_shared_with_these(tmp_path: Path) -> None:
    run(tmp_path, "library")
    now_s = 1_700_000_000.0
    board = Board(**{"id-b": Deaths(1, now_s - 9.0, "Aborted", account="default")})
    with closing(CrashLedger(tmp_path, lambda: now_s)) as ledger:
        assert not ledger.of(row("b")).too_many
        assert ledger.of_account("default") == 1
        ledger.share(board)
        assert ledger.of(row("b")).too_many
        assert not ledger.of(row("c")).too_many
        assert (ledger.of_account("default"), ledger.of_account("other")) == (2, 0)
        ledger.forget("id-b")
        assert ledger.of(row("b")).count == 1
    assert board.own == [{"id-b": 1, "id-c": 1}, {"id-c": 1}]


@pytest.mark.parametrize("how", ["kill", "term", "exit"])
def test_what_was_at_work_when_the_process_was_killed_is_suspected(tmp_path: Path, how: str) -> None:
    assert run(tmp_path, how) != 0
    assert kills(tmp_path) == {"b": 1, "c": 1}
    assert kills(tmp_path) == {"b": 1, "c": 1}, "one that ends in order adds none"
    assert deaths(tmp_path) == {}
    for _ in range(KILLS_MAX - 1):
        run(tmp_path, how)
    with closing(CrashLedger(tmp_path, lambda: 1_700_000_000.0)) as ledger:
        assert ledger.of(row("b")).too_many
        assert "5 times in a row" in ledger.of(row("b")).described
        assert "(Killed)" in ledger.of(row("b")).described


def test_a_machine_that_went_down_is_no_fault_of_its_work(tmp_path: Path) -> None:
    run(tmp_path, "kill")
    (tmp_path / "running").write_text("of another start")
    assert kills(tmp_path) == {}


def test_deaths_in_a_row_add_up_and_say_when_and_by_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for how in ("abort", "kill", "segv"):
        run(tmp_path, how)
    with caplog.at_level(logging.ERROR), closing(CrashLedger(tmp_path, lambda: 1_700_000_000.0)) as ledger:
        found = ledger.of(row("b"))
        assert (found.count, found.signal, found.at_s) == (2, "Segmentation fault", 1_700_000_000.0)
        assert found.too_many
        (told,) = caplog.records
        assert (told.message, told.jobs, told.tables) == ("node.crashed", ["b"], ["/lake/t1"])  # type: ignore[attr-defined]
        assert "string_at" in told.stack  # type: ignore[attr-defined]
        ledger.forget("id-b")
    assert deaths(tmp_path) == {}


def test_what_is_forgiven_is_forgiven_once(tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path, "abort")
    with closing(CrashLedger(tmp_path, lambda: 1.0)) as ledger:
        ledger.forgive("id-b", 17.0)
        assert ledger.of(row("b")) == Deaths(forgiven_at_s=17.0)
    run(tmp_path, "abort")
    with closing(CrashLedger(tmp_path, lambda: 1.0)) as ledger:
        found = ledger.of(row("b"))
        assert (found.count, found.forgiven_at_s) == (1, 17.0)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1, "versions": ["0", "", ""]}']
)
def test_a_file_of_another_version_or_none_at_all_has_every_job_tried_again(tmp_path: Path, content: str) -> None:
    run(tmp_path, "abort")
    assert deaths(tmp_path) == {"b": 1}
    (tmp_path / "deaths.json").write_text(content)
    assert deaths(tmp_path) == {}


def test_lines_that_were_not_written_to_their_end_are_left_out(tmp_path: Path) -> None:
    run(tmp_path, "library")
    with (tmp_path / "work").open("a") as work:
        work.write('\n[7, "/lake/t1"\n7\n[8, "/lake/t1", {"id-d": "d')
    assert deaths(tmp_path) == {"b": 1, "c": 1}


def test_what_is_at_work_is_kept_small_and_costs_little(tmp_path: Path) -> None:
    rows = [row("x" * 1_000)]
    with closing(CrashLedger(tmp_path, lambda: 1.0)) as ledger:
        with ledger.at_work([row("a")]):
            began_s, times = time.thread_time(), 3 * WORK_BYTES_MAX // 2_000
            for _ in range(times):
                with ledger.at_work(rows):
                    pass
            each_s = (time.thread_time() - began_s) / times
            assert os.stat(tmp_path / "work").st_size < WORK_BYTES_MAX + 10_000
            assert '"id-a"' in (tmp_path / "work").read_text().splitlines()[-1]
        assert (tmp_path / "work").read_text() == ""
    assert each_s < 0.001, "microseconds, on a machine that has other work to do too"


def test_a_disk_that_is_full_stops_no_work(tmp_path: Path) -> None:
    with closing(CrashLedger(tmp_path, lambda: 1.0)) as ledger:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, ledger._fd)
        os.close(full)
        with ledger.at_work([row("a")]):
            pass
        ledger.forgive("id-a", 1.0)


def test_the_longest_ago_are_forgotten(tmp_path: Path) -> None:
    with closing(CrashLedger(tmp_path, lambda: 1.0)) as ledger:
        ledger.forgive("id-old", 1.0)
        document = json.loads((tmp_path / "deaths.json").read_text())
    document["jobs"] |= {f"id-{number}": {"count": 1, "at_s": 5.0 + number} for number in range(JOBS_MAX)}
    (tmp_path / "deaths.json").write_text(json.dumps(document))
    run(tmp_path, "abort")
    with closing(CrashLedger(tmp_path, lambda: 1_700_000_000.0)) as ledger:
        assert (ledger.of(row("old")), ledger.of(row("0"))) == (Deaths(), Deaths())
        assert ledger.of(row("b")).count == ledger.of(row(f"{JOBS_MAX - 1}")).count == 1
    assert len(json.loads((tmp_path / "deaths.json").read_text())["jobs"]) == JOBS_MAX
