"""Files of datasets that are known to be in order are not tried again; changed ones are, however they were changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from iscp.storage.dataset_trial import (
    DEATHS_MAX,
    DatasetTrial,
    KnownFiles,
    Stamp,
    UnsureTrialError,
)
from iscp.storage.regular_files import RefusedFileError

NAMES = ("data/a.lance", "_indices/s")


class Tried(DatasetTrial):
    """A trial whose process says `fault` of what it is given."""

    def __init__(self, known: KnownFiles) -> None:
        super().__init__(known)
        self.fault = ""
        self.tried: list[list[str]] = []

    def _fault_of(self, root: str, version: int, unknown: Mapping[str, Stamp]) -> str:
        self.tried.append(sorted(os.path.relpath(path, root) for path in unknown))
        return self.fault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("data/a.lance", "_indices/s/one", "_indices/s/two"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def change(file: Path) -> None:
    """Change a byte, and put the time of the last change back as it was."""
    before = file.stat()
    file.write_text(file.read_text()[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_is_unknown_is_tried_once(root: Path) -> None:
    trial = Tried(KnownFiles(None))
    for _ in range(3):
        trial.require(str(root), 1, [*NAMES, "data/gone.lance"])
    change(root / "_indices/s/two")
    trial.require(str(root), 1, NAMES)
    (root / "_indices/s/three").write_text("new")
    trial.require(str(root), 1, NAMES)
    everything = ["_indices/s/one", "_indices/s/two", "data/a.lance"]
    assert trial.tried == [everything, ["_indices/s/two"], ["_indices/s/three"]]


def test_many_who_open_a_dataset_at_once_try_it_once(root: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Tried):
        def _fault_of(self, root: str, version: int, unknown: Mapping[str, Stamp]) -> str:
            begun.set()
            assert go_on.wait(10)
            return super()._fault_of(root, version, unknown)

    trial = Slow(KnownFiles(None))
    with ThreadPoolExecutor(5) as pool:
        each = [pool.submit(trial.require, str(root), 1, NAMES) for _ in range(5)]
        assert begun.wait(10)
        assert not any(one.done() for one in each), "nobody opens it before it was tried"
        go_on.set()
        for one in each:
            one.result(10)
    assert len(trial.tried) == 1


def test_what_this_process_has_written_is_known(root: Path) -> None:
    trial = Tried(KnownFiles(None))
    trial.add_written(str(root), NAMES)
    trial.require(str(root), 1, NAMES)
    assert not trial.tried


def test_what_is_known_outlives_the_process(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept" / "files"
    Tried(KnownFiles(file)).require(str(root), 1, NAMES)
    with file.open("a") as kept:
        kept.write("torn [")
    again = Tried(KnownFiles(file))
    again.require(str(root), 1, NAMES)
    assert not again.tried


def test_what_has_failed_is_refused_until_it_is_another_file(root: Path) -> None:
    trial = Tried(KnownFiles(None))
    trial.fault = "reading its files ends a process"
    for _ in range(3):
        with pytest.raises(RefusedFileError, match="is not opened: reading its files ends a process"):
            trial.require(str(root), 1, NAMES)
    assert len(trial.tried) == 1
    trial.fault = ""
    for name in ("data/a.lance", "_indices/s/one", "_indices/s/two"):
        change(root / name)
    trial.require(str(root), 1, NAMES)


def test_whoever_has_too_many_trials_fail_gets_no_more(root: Path) -> None:
    trial = Tried(KnownFiles(None))
    trial.fault = "reading its files ends a process"
    for number in range(DEATHS_MAX + 3):
        (root / "data/a.lance").write_text("x" * number)
        with pytest.raises(RefusedFileError):
            trial.require(str(root), 1, NAMES)
    assert len(trial.tried) == DEATHS_MAX


def test_a_trial_that_may_have_failed_for_the_storage_is_repeated_but_counts(root: Path) -> None:
    class Unsure(Tried):
        def _fault_of(self, root: str, version: int, unknown: Mapping[str, Stamp]) -> str:
            super()._fault_of(root, version, unknown)
            raise UnsureTrialError("S3 does not give its files")

    trial = Unsure(KnownFiles(None))
    for number in range(DEATHS_MAX + 3):
        with pytest.raises(OSError, match="S3 does not give its files") as raised:
            trial.require(str(root), 1, NAMES)
        assert isinstance(raised.value, RefusedFileError) == (number >= DEATHS_MAX - 1)
    assert len(trial.tried) == DEATHS_MAX


def test_lines_that_are_none_are_left_out_of_what_is_known(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "files"
    file.write_text('5\n[]\n[["a"], 1]\n{"a": 1}\n["a", "b", "c"]\n')
    trial = Tried(KnownFiles(file))
    trial.require(str(root), 1, NAMES)
    assert len(trial.tried) == 1
