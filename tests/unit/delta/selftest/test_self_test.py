"""The result of the storage self-test, and where it puts its scratch files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from iscp.delta.selftest.commit_race import Round, commit_lines
from iscp.delta.selftest.self_test import (
    LOCAL,
    SelfTestError,
    kind_of,
    require_fair,
    self_test_directly,
    verdict,
)
from iscp.model.values.errors import ErrorCode, IscpError, StorageError

if TYPE_CHECKING:
    from pathlib import Path


def won_by(name: str, version: int) -> Round:
    return Round(version, frozenset([name]), "\n".join(commit_lines(name, version)).encode())


def test_a_fair_race_counts_who_won(tmp_path: Path) -> None:
    rounds = [won_by("spark", 1), won_by("delta-rs", 2), won_by("spark", 3)]
    assert require_fair(rounds, str(tmp_path), "target", LOCAL.remedy) == {"spark": 2, "delta-rs": 1}


def test_delta_rs_is_raced_against_itself_and_leaves_nothing(tmp_path: Path) -> None:
    report = self_test_directly(f"{tmp_path}/not/there/yet", field="target", rounds=6)
    assert sum(report.wins.values()) == 6
    assert set(report.wins) <= {"delta-rs 1", "delta-rs 2"}
    assert (report.directory, list(tmp_path.iterdir())) == (str(tmp_path), [])


def test_one_double_win_in_many_rounds_fails_with_field_and_remedy(tmp_path: Path) -> None:
    double = Round(2, frozenset(["spark", "delta-rs"]), won_by("spark", 2).content)
    with pytest.raises(SelfTestError) as failed:
        require_fair([won_by("spark", 1), double, won_by("spark", 3)], str(tmp_path), "jobs.target", LOCAL.remedy)
    assert failed.value.code is ErrorCode.SELF_TEST
    assert failed.value.field == "jobs.target"
    assert "link(2)" in failed.value.remedy
    assert "1 of 3" in failed.value.message
    assert "version 2" in failed.value.message


def test_paths_of_one_file_system_are_of_one_kind(tmp_path: Path) -> None:
    assert kind_of(f"{tmp_path}/a", "f") == kind_of(f"{tmp_path}/b/not/there/yet", "f")


def test_a_path_without_a_way_to_it_is_refused_by_the_field_that_named_it(tmp_path: Path) -> None:
    """As where a directory may not be entered, which root always may."""
    with pytest.raises(SelfTestError, match=r"there is no way to .* too long") as refused:
        kind_of(f"{tmp_path}/{'x' * 300}/table", "log.uri")
    assert refused.value.field == "log.uri"
    assert "that the node may write" in refused.value.remedy


def test_a_bucket_is_a_kind_of_its_own() -> None:
    assert kind_of("s3://lake/a/b", "f") == kind_of("s3://lake/c", "f") == "s3://lake"
    assert kind_of("s3://other/a", "f") == "s3://other"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (OSError("java.io.IOException: No space left on device"), StorageError),
        (TimeoutError("delta-rs has not answered for 20 s"), StorageError),
        (ChildProcessError("delta-rs ended before it answered"), StorageError),
        (OSError(errno.EACCES, "Permission denied"), SelfTestError),
        (OSError("java.nio.file.FileSystemException: Operation not supported"), SelfTestError),
    ],
)
def test_what_says_nothing_of_the_file_system_is_no_verdict_on_it(fault: OSError, kind: type[IscpError]) -> None:
    """The job that was to write there is then retried instead of failing for good."""
    assert type(verdict(fault, "cannot", "target", "Mend it")) is kind


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("NoSuchBucket", StorageError),
        ("connection refused", StorageError),
        ("PathIOException: `s3://b/x': Conditional Writes Unavailable", SelfTestError),
        ("Server returned non-2xx status code: 501 Not Implemented", SelfTestError),
    ],
)
def test_a_store_that_does_not_answer_is_tried_again_and_one_that_refuses_conditions_is_not(
    reason: str, kind: type[IscpError]
) -> None:
    assert type(verdict(OSError(reason), f"a commit failed ({reason})", "target", "Mend it", remote=True)) is kind
