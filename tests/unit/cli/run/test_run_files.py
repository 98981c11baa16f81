"""Proves that the files of a run are read in their order, and that all their faults are named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.cli.run.run_files import read_run_files
from iscp.core.run.wanted import Wanted
from iscp.core.values.errors import InvalidRequest

JOB = "- {table: /lake/orders, name: NAME, target: /lake/NAME, key: [id]}"
VIEW = "CREATE MATERIALIZED VIEW NAME AS SELECT count(*) AS n FROM orders"


def read(*paths: Path) -> list[Wanted]:
    return read_run_files([str(each) for each in paths], {"orders": "/lake/orders"}, "/lake", "a", quiet=True)


def names(*paths: Path) -> list[str]:
    return [each.request.job.name for each in read(*paths)]


def write(path: Path, text: str, name: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("NAME", name or path.stem))
    return path


def test_jobs_and_statements_are_read_side_by_side(tmp_path: Path) -> None:
    job, view = write(tmp_path / "copy.yaml", JOB), write(tmp_path / "totals.sql", VIEW)
    found = read(view, job)
    assert [each.request.job.name for each in found] == ["copy", "totals"]
    assert found[0].place.startswith(str(job))


def test_a_directory_stands_for_its_files(tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", JOB)
    write(tmp_path / "more" / "a.yml", JOB)
    write(tmp_path / "c.sql", VIEW)
    write(tmp_path / "notes.txt", "not read")
    assert names(tmp_path) == ["b", "a", "c"]


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no file") as refused:
        read(tmp_path)
    assert refused.value.field == str(tmp_path)


def test_the_faults_of_all_files_are_named_at_once(tmp_path: Path) -> None:
    wrong = [
        write(tmp_path / "a.yaml", "- {table: ["),
        write(tmp_path / "b.sql", "CREATE MATERIALIZED VIEW"),
        tmp_path / "missing.yaml",
    ]
    with pytest.raises(InvalidRequest) as refused:
        read(*wrong, write(tmp_path / "right.yaml", JOB))
    said = f"{refused.value} {refused.value.others}"
    assert all(str(each) in said for each in wrong)


def test_an_empty_directory_is_named_beside_the_faults_of_files(tmp_path: Path) -> None:
    wrong, empty = write(tmp_path / "a.yaml", "- {table: ["), tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidRequest) as refused:
        read(wrong, empty)
    assert all(str(each) in f"{refused.value} {refused.value.others}" for each in (wrong, empty))
