"""Which commits follow a version, and whether one that is there belongs to the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from iscp.delta.log.commits import COMMIT_ID
from iscp.delta.log.log_writing import commits_after, counts
from iscp.model.values.errors import TableNotFound
from tests.fakes.commit_files import commit_path


def put(uri: str, versions: Sequence[int]) -> None:
    for version in versions:
        path = commit_path(uri, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"commitInfo": {"operation": "WRITE", COMMIT_ID: f"id-{version}"}}))


def test_the_commits_behind_a_version_end_at_the_first_that_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path)
    put(uri, [3, 4, 5, 7])
    assert [(each.version, each.commit_id) for each in commits_after(uri, 3)] == [(4, "id-4"), (5, "id-5")]
    assert list(commits_after(uri, 5)) == []
    assert [each.version for each in commits_after(uri, 6)] == [7]


@pytest.mark.parametrize(
    ("there", "version", "expected"),
    [
        ([0], 0, True),
        ([0, 1], 0, True),
        ([0, 1, 2], 1, True),
        ([0, 1, 2], 2, True),
        # The log begins at version 5: it was cleaned up to there.
        ([5, 6, 7], 7, True),
        ([5, 6, 7], 6, True),
        ([7], 7, True),
        # A late commit, which lies before the beginning of the log.
        ([2, 5, 6], 2, False),
        ([4, 5, 6], 4, False),
        ([0, 5, 6], 0, False),
    ],
)
def test_a_commit_counts_if_the_log_goes_on_from_it(
    tmp_path: Path, there: Sequence[int], version: int, expected: bool
) -> None:
    put(str(tmp_path), there)
    assert counts(str(tmp_path), version) is expected


def test_no_commit_counts_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        counts(str(tmp_path), 0)
