"""What `iscp doctor` finds of a machine: by real files and sockets, and by given figures."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from iscp.cli.doctor import machine
from iscp.cli.doctor.examination import Verdict

GIB = 1024**3


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [(None, Verdict.WARNING), (GIB, Verdict.FAULT), (2 * GIB, Verdict.WARNING), (3 * GIB, Verdict.OK)],
)
def test_memory_has_to_hold_the_heap_and_the_rest(memory: int | None, verdict: Verdict) -> None:
    found = machine.examine_memory(memory, 2048)
    assert found.verdict is verdict
    assert ("spark.driver_memory_mb" in found.remedy) is (verdict is not Verdict.OK)


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    assert machine.memory_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8388608 kB\nMemFree: 1 kB\n")
    assert machine.memory_bytes(tmp_path) == 8 * GIB
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("max\n")
    assert machine.memory_bytes(tmp_path) == 8 * GIB
    limit.write_text(f"{GIB}\n")
    assert machine.memory_bytes(tmp_path) == GIB


@pytest.mark.parametrize(("free", "verdict"), [(1024, Verdict.FAULT), (GIB, Verdict.WARNING), (3 * GIB, Verdict.OK)])
def test_disks_are_judged_by_what_is_free(tmp_path: Path, free: int, verdict: Verdict) -> None:
    assert machine.examine_disk("data", tmp_path, free).verdict is verdict
    assert "GiB free" in machine.examine_disk("data", tmp_path / "not" / "there" / "yet").found


def test_links_are_tried_above_a_directory_that_is_not_there_and_nothing_is_left(tmp_path: Path) -> None:
    (found,) = machine.examine_links("data", tmp_path / "new" / "dir")
    assert found.verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_files_is_a_fault() -> None:
    (found,) = machine.examine_links("data", Path("/proc/none"))
    assert found.verdict is Verdict.FAULT
    assert "hard links, or on S3" in found.remedy


@pytest.mark.parametrize(("state", "verdict"), [(5, Verdict.WARNING), (0, Verdict.OK), (None, Verdict.OK)])
def test_a_clock_that_nothing_sets_is_a_warning(state: int | None, verdict: Verdict) -> None:
    assert machine.examine_clock(state).verdict is verdict
    assert machine.clock_state() in (None, *range(-1, 6))


def test_a_port_in_use_is_a_fault_unless_it_is_ones_own() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert machine.examine_port(port).verdict is Verdict.FAULT
        assert machine.examine_port(port, "`iscp up` on /d").found == "in use by `iscp up` on /d"
    assert machine.examine_port(port).verdict is Verdict.OK


def test_old_pythons_other_systems_and_few_open_files_are_named() -> None:
    assert machine.examine_python((3, 10)).verdict is Verdict.FAULT
    assert machine.examine_python((3, 12), "darwin").verdict is Verdict.WARNING
    assert machine.examine_python((3, 12), "linux").verdict is Verdict.OK
    assert machine.examine_open_files(1024).verdict is Verdict.WARNING
    assert machine.examine_open_files(4096).verdict is Verdict.OK


def test_the_users_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("mine")
    machine.examine_links("data", tmp_path)
    assert os.listdir(tmp_path) == ["first"]
