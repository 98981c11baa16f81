"""Temporary directories: gone at the end, and where a process was killed, at the next start; those in use stay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from iscp.adapters.system.scratch_directory import SUFFIX, scratch_directory

_PROGRAM = """
import sys, time
from pathlib import Path
from iscp.adapters.system.scratch_directory import scratch_directory
with scratch_directory("node-", Path(sys.argv[1])) as made:
    (made / "a").write_text("")
    print(made, flush=True)
    time.sleep(60)
"""


@contextmanager
def user_of(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(parent)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def names(parent: Path) -> list[str]:
    return sorted(each.name for each in parent.iterdir())


def test_it_is_there_and_then_it_is_gone(tmp_path: Path) -> None:
    with scratch_directory("node-", tmp_path) as made:
        (made / "a").write_text("")
        assert made.parent == tmp_path
        assert made.name.startswith("node-")
        assert made.stat().st_mode & 0o777 == 0o700
    assert names(tmp_path) == []


def test_it_is_gone_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_directory("node-", tmp_path):
        raise RuntimeError
    assert names(tmp_path) == []


def test_what_a_killed_process_left_goes_at_the_next_start_and_what_is_in_use_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with user_of(tmp_path) as (killed, left), user_of(tmp_path) as (_, used):
        assert left != used
        killed.kill()
        killed.wait()
        assert left.exists()
        with scratch_directory("node-", tmp_path) as made:
            assert names(tmp_path) == sorted(["other", used.name, made.name])
            assert names(used) == ["a"]


def test_files_and_links_of_such_a_name_stay(tmp_path: Path) -> None:
    file, link = f"node-file{SUFFIX}", f"node-link{SUFFIX}"
    (tmp_path / file).write_text("")
    (tmp_path / "kept").mkdir()
    (tmp_path / link).symlink_to(tmp_path / "kept")
    with scratch_directory("node-", tmp_path):
        pass
    assert names(tmp_path) == ["kept", file, link]


def test_directories_of_users_that_begin_alike_stay(tmp_path: Path) -> None:
    (tmp_path / "node-of-mine").mkdir()
    with scratch_directory("node-", tmp_path):
        pass
    assert names(tmp_path) == ["node-of-mine"]


def test_many_that_start_at_the_same_time_have_one_each(tmp_path: Path) -> None:
    def use(_: int) -> bool:
        with scratch_directory("node-", tmp_path) as made:
            (made / "a").write_text("")
            with scratch_directory("node-", tmp_path):
                return (made / "a").exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))
    assert names(tmp_path) == []
