"""Proves that the files of a run are read in their order, and that all their faults are named at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from iscp.cli.view.definition_files import in_set, read_definitions, sql_files_of
from iscp.model.run.run_plan import Wanted
from iscp.model.spec.spec import set_of, tags_of
from iscp.model.values.errors import InvalidRequest

JOB = "- {table: /lake/orders, name: NAME, target: /lake/NAME, key: [id]}"
VIEW = "CREATE MATERIALIZED VIEW NAME AS SELECT count(*) AS n FROM orders"


def read(*paths: Path) -> list[Wanted]:
    found = read_definitions([str(each) for each in paths], quiet=True)
    return found.jobs([], {"orders": "/lake/orders"}, "/lake", "a")


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
    assert {each.request.job.name: tags_of(each.request.spec_json) for each in found} == {
        "copy": ("nightly", "sales"),
        "m": ("hourly",),
    }


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("totals.sql~", "is not understood"),
        ("totals.sql.bak", "is not understood"),
        ("#totals.sql#", "is not understood"),
        ("totals.sq1", "is not understood"),
        ("totals", "is not understood"),
        ("job.toml", "is not understood"),
        (".totals.sql", "is hidden"),
        (".TOTALS.Yaml", "is hidden"),
        ("more/.totals.json", "is hidden"),
    ],
)
def test_what_is_not_understood_in_a_directory_is_refused_by_its_name(tmp_path: Path, name: str, why: str) -> None:
    write(tmp_path / "a.yaml", JOB)
    odd = write(tmp_path / name, VIEW, "odd")
    with pytest.raises(InvalidRequest, match=why) as refused:
        read(tmp_path)
    assert refused.value.field == str(odd)


def test_endings_are_understood_in_upper_case_too(tmp_path: Path) -> None:
    for name, text in (("a.YAML", JOB), ("b.Yml", JOB), ("c.JSON", JOB.removeprefix("- ")), ("d.SQL", VIEW)):
        write(tmp_path / name, text.replace("NAME", name[0]))
    assert names(tmp_path) == ["a", "b", "c", "d"]
    assert names(tmp_path / "d.SQL") == ["d"]


def test_hidden_directories_and_texts_for_people_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", JOB)
    write(tmp_path / ".git" / "config.yaml", "- no: job")
    for name in ("README.md", "notes.TXT", "more.rst", ".gitignore", ".a.yaml.swp"):
        write(tmp_path / name, "not read")
    assert names(tmp_path) == ["a"]


def test_links_to_files_are_followed_as_mounted_configuration_has_them(tmp_path: Path) -> None:
    write(tmp_path / "..2026" / "a.yaml", JOB)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("link", "to", "why"),
    [
        ("b.yaml", "gone.yaml", "is a link to nothing"),
        ("more", "..", "is a link to a directory"),
        ("b.sql", "/dev/null", "is no file"),
    ],
)
def test_links_that_cannot_be_followed_are_refused(tmp_path: Path, link: str, to: str, why: str) -> None:
    write(tmp_path / "a.yaml", JOB)
    (tmp_path / link).symlink_to(to)
    with pytest.raises(InvalidRequest, match=why) as refused:
        read(tmp_path)
    assert refused.value.field == str(tmp_path / link)


def test_a_directory_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", JOB)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    if os.access(closed, os.R_OK):  # this user may read everything: its directory is empty then
        assert names(tmp_path) == ["a"]
        return
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read(tmp_path)


def test_a_project_within_a_directory_is_one_definition(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", JOB)
    compiled_model(tmp_path / "dbt", meta={"iscp": True})
    write(tmp_path / "dbt" / "dbt_project.yml", "name: p")
    write(tmp_path / "dbt" / "models" / "m.sql", "select {{ 1 }}")
    assert names(tmp_path) == ["a", "m"]
    (tmp_path / "dbt" / "manifest.json").unlink()
    with pytest.raises(InvalidRequest, match="project of dbt without"):
        read(tmp_path)


def test_a_directory_of_views_refuses_other_files_of_jobs(tmp_path: Path) -> None:
    view, job = write(tmp_path / "c.sql", VIEW), write(tmp_path / "b.yaml", JOB)
    with pytest.raises(InvalidRequest, match="no file of SQL") as refused:
        sql_files_of([str(tmp_path)])
    assert refused.value.field == str(job)
    job.unlink()
    assert sql_files_of([str(tmp_path), "-"]) == [str(view), "-"]


def test_files_name_their_set_once(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", f"set: sales\n---\n{JOB}")
    write(tmp_path / "b.sql", VIEW)
    found = read_definitions([str(tmp_path)], quiet=True)
    assert found.set_name("") == found.set_name("sales") == "sales"
    with pytest.raises(InvalidRequest, match="names the set sales, and the set is other"):
        found.set_name("other")
    jobs = in_set(found.jobs([], {"orders": "/lake/orders"}, "/lake", "a"), "sales")
    assert [set_of(each.request.spec_json) for each in jobs] == ["sales", "sales"]
    with pytest.raises(InvalidRequest, match="of the set sales, and the set is other"):
        in_set(jobs, "other")
    with pytest.raises(InvalidRequest, match="cannot be the name of a set"):
        read(write(tmp_path / "c.yaml", "set: a/b"))
