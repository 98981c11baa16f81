"""Files of indexes on S3 are tried before they are opened, unless this process has written or tried them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from iscp.storage import files
from iscp.storage.dataset_trial import HEADS_MAX, DatasetTrial, KnownFiles, Stamp
from iscp.storage.regular_files import RefusedFileError
from tests.fakes.followed_index_program import REPORTS
from tests.fakes.s3 import FakeS3, asking, s3_server

DEADLINE_S = 900.0
NAMES = ("data/a.lance", "_deletions/1-1-1.arrow", "_indices/s")
FILES = ("data/a.lance", "_deletions/1-1-1.arrow", "_indices/s/one", "_indices/s/two")


class Tried(DatasetTrial):
    """A trial that finds all in order, and notes what it was given."""

    def __init__(self, known: KnownFiles) -> None:
        super().__init__(known)
        self.tried: list[list[str]] = []

    def _fault_of(self, root: str, version: int, unknown: Mapping[str, Stamp]) -> str:
        self.tried.append(sorted(path.removeprefix(f"{root}/") for path in unknown))
        return ""


def put(root: str, *names: str, content: bytes = b"rows") -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(lambda name: files.replace(f"{root}/{name}", content), names))) == len(names)


def test_what_is_unknown_is_tried_once_and_again_when_it_was_overwritten(s3: FakeS3, tmp_path: Path) -> None:
    root, file = s3.uri("stamped", "acme"), tmp_path / "known"
    put(root, *FILES, "data/of-no-version.lance", "_indices/other/one")
    trial = Tried(KnownFiles(file))
    for _ in range(2):
        trial.require(root, 1, [*NAMES, "data/gone.lance"])
    put(root, "_indices/s/two", content=b"ROWS")
    trial.require(root, 1, NAMES)
    put(root, "_indices/s/three")
    trial.require(root, 1, NAMES)
    assert trial.tried == [sorted(FILES), ["_indices/s/two"], ["_indices/s/three"]]
    again = Tried(KnownFiles(file))
    again.require(root, 1, NAMES)
    assert not again.tried, "what is known outlives the process"


def test_what_this_process_has_written_is_known(s3: FakeS3) -> None:
    root, trial = s3.uri("written", "acme"), Tried(KnownFiles(None))
    put(root, *FILES)
    trial.add_written(root, [*NAMES, "data/gone.lance"])
    trial.require(root, 1, NAMES)
    assert not trial.tried


def test_more_files_than_a_listing_has_on_one_page_are_known(s3: FakeS3) -> None:
    root, trial = s3.uri("pages"), Tried(KnownFiles(None))
    names = [f"data/{number:04}.lance" for number in range(1_000 + HEADS_MAX)]
    put(root, *names)
    trial.add_written(root, names)
    trial.require(root, 1, names)
    put(root, names[-1], content=b"ROWS")
    trial.require(root, 1, names)
    assert trial.tried == [[names[-1]]]


def test_a_file_that_cannot_be_read_is_refused_by_the_name_of_its_dataset(s3: FakeS3) -> None:
    root, trial = s3.uri("none", "acme"), DatasetTrial(KnownFiles(None))
    put(root, "data/a.lance")
    for _ in range(2):
        with pytest.raises(RefusedFileError, match=f"{root} is not opened: its files cannot be read"):
            trial.require(root, 1, ["data/a.lance"])


def test_a_store_that_does_not_give_files_is_no_fault_of_theirs(tmp_path: Path) -> None:
    with s3_server(tmp_path / "log", fault="keep-rows") as s3, asking(s3):
        root, trial = s3.uri("kept"), DatasetTrial(KnownFiles(None))
        put(root, "data/a.lance")
        for _ in range(2):
            with pytest.raises(OSError, match="cannot be tried now: S3 does not give its files") as raised:
                trial.require(root, 1, ["data/a.lance"])
            assert not isinstance(raised.value, RefusedFileError), "it is tried again"


@pytest.mark.parametrize(
    ("folder", "why"), [("data", "reading its files ends a process"), ("_indices", "its files cannot be read")]
)
@pytest.mark.slow(but=1)
def test_an_index_is_followed_without_trials_until_a_byte_of_it_is_changed(s3: FakeS3, folder: str, why: str) -> None:
    uri = s3.uri(f"followed-{folder}", "acme")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fakes.followed_index_program", uri, folder],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout[-2_000:], ended.stderr[-4_000:])
    *followed, first, second, restored = map(json.loads, ended.stdout.splitlines())
    assert followed == [[0, "done", "done"]] * REPORTS
    for _, *said in (first, second):
        assert all(f"{uri} is not opened: {why}" in each for each in said)
    assert restored[1:] == ["done", "done"]
