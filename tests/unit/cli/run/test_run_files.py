"""Proves that the files of a run are read in their order, and that all their faults are named at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_a_project_of_dbt_that_is_not_compiled_is_named_as_such(tmp_path: Path) -> None:
    write(tmp_path / "dbt_project.yml", "name: p")
    write(tmp_path / "models" / "a.sql", "select 1")
    with pytest.raises(InvalidRequest, match="project of dbt without") as refused:
        read(tmp_path)
    assert (refused.value.field, refused.value.others) == (str(tmp_path), ())
    assert "dbt compile" in refused.value.remedy


def compiled_model(tmp_path: Path, **more: Any) -> Path:
    made = {"resource_type": "model", "name": "m", "compiled_code": "SELECT id FROM orders", **more}
    return write(tmp_path / "manifest.json", json.dumps({"nodes": {"model.p.m": made}}))


def test_a_project_of_which_no_model_is_to_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no view"):
        read(compiled_model(tmp_path, meta={}))


def test_jobs_have_the_tags_of_their_files_and_models_those_of_dbt(tmp_path: Path) -> None:
    job = write(tmp_path / "copy.yaml", JOB.replace("name:", "tags: [nightly, sales], name:"))
    found = read(job, compiled_model(tmp_path, meta={"iscp": True}, tags=["hourly", 7]))
    assert {each.request.job.name: each.tags for each in found} == {"copy": ("nightly", "sales"), "m": ("hourly",)}
