"""`iscp-admin apply` of SQL files: views and indexes become jobs, beside those of other files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from iscp.core.api.api_requests import JobFilter
from iscp.core.spec.spec_fields import flatten
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]
JOBS = (("/lake/old", "old"),)

SQL = """
CREATE SEARCH INDEX both ON recent (title BOOST 2.5, body) KEY (id)
  OPTIONS (text = 'body', embed = 'minilm', language = 'english') SCHEDULE EVERY 10 MINUTES;
CREATE MATERIALIZED VIEW recent AS SELECT * FROM docs WHERE year > 2000;
CREATE FULLTEXT INDEX words ON docs (body) KEY (id, part) TARGET '/indexes/words' WHERE lang = 'en';
CREATE VECTOR INDEX near ON 's3://b/vectors' (embedding) KEY (id) OPTIONS (metric = 'cosine');
"""
YAML = "{table: /lake/other, name: copy, target: /copy, key: id}"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "all.sql").write_text(SQL)
    (tmp_path / "jobs.yaml").write_text(YAML)
    return str(tmp_path / "all.sql"), str(tmp_path / "jobs.yaml")


def kept(service: FakeAdmin) -> dict[str, tuple[str, dict[str, Any]]]:
    return {job.name: (job.table, flatten(job.spec_json)) for job in service.list_jobs(JobFilter())}


def test_indexes_views_and_replicas_are_applied_together(run: Run, service: FakeAdmin, files: tuple[str, str]) -> None:
    where = ("--table", "docs=/lake/docs", "--target-root", "/x")
    done = run("apply", "-f", files[0], "-f", files[1], *where, "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"]["create"] == 5
    jobs = kept(service)
    assert jobs["both"] == (
        "/x/recent",
        {
            "consumer": "search",
            "target": "/x/both",
            "key": ["id"],
            "options": {"columns": "title^2.5,body", "text": "body", "embed": "minilm", "language": "english"},
            "trigger": "periodic",
            "every": 600.0,
        },
    )
    assert jobs["words"] == (
        "/lake/docs",
        {
            "consumer": "fulltext",
            "target": "/indexes/words",
            "key": ["id", "part"],
            "where": "lang = 'en'",
            "options": {"columns": "body"},
        },
    )
    assert jobs["near"][0] == "s3://b/vectors"
    assert jobs["near"][1]["options"] == {"column": "embedding", "metric": "cosine"}
    assert set(jobs) == {"both", "recent", "words", "near", "copy", "old"}
    again = run("apply", "-f", files[0], "-f", files[1], *where, "-o", "json")
    assert json.loads(again.stdout)["counts"] == {"create": 0, "update": 0, "resync": 0, "unchanged": 5, "delete": 0}


def test_an_index_on_a_new_view_is_registered_once_that_is_built(
    run: Run, service: FakeAdmin, files: tuple[str, str]
) -> None:
    service.absent.add("/x/recent")

    def build(verb: str) -> None:
        if verb == "wait":
            service.absent.clear()
            service.apply("/lake/docs", "recent", 0)

    service.before = build
    where = ("--table", "docs=/lake/docs", "--target-root", "/x")
    dry = run("view", "apply", "-f", files[0], *where, "--dry-run")
    assert "create both on /x/recent (once built: recent)" in dry.stdout
    done = run("view", "apply", "-f", files[0], *where)
    assert done.exit_code == 0, done.output
    assert {"both", "recent"} <= set(kept(service))


def test_prune_deletes_what_no_file_names_any_more(run: Run, service: FakeAdmin, files: tuple[str, str]) -> None:
    where = ("--table", "docs=/lake/docs", "--target-root", "/x", "--yes", "--prune", "--set", "docs")
    assert run("apply", "-f", files[0], *where).exit_code == 0
    assert set(kept(service)) == {"both", "recent", "words", "near", "old"}
    Path(files[0]).write_text("CREATE VECTOR INDEX near ON 's3://b/vectors' (embedding) KEY (id) TARGET '/x/near'")
    shown = run("apply", "-f", files[0], "--yes", "--prune", "--set", "docs")
    assert "resync near on s3://b/vectors" in run("apply", "-f", files[0], "--resync", "--dry-run").stdout or shown
    assert shown.exit_code == 1  # its options are others: its target would be rebuilt
    assert "--resync" in shown.stderr


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("CREATE FULLTEXT INDEX i ON docs (a) KEY (id)", "1:1", "neither a view nor given by --table"),
        ("\nCREATE FULLTEXT INDEX i ON '/d' (a) KEY (id)", "2:1", "has no place"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 FROM s.t", "1:1", "has no place"),
        ("CREATE FULLTEXT INDEX `a/b` ON '/d' (a) KEY (id)", "1:1", "cannot be the name of its target"),
        (
            "CREATE FULLTEXT INDEX i ON '/d' (a) KEY (id) TARGET '/i';\n"
            "CREATE FULLTEXT INDEX I ON '/d' (b) KEY (id) TARGET '/j';",
            "2:1",
            "is an index at",
        ),
        ("CREATE FULLTEXT INDEX i ON '/d' (a) TARGET '/i'", "1:48", "names no key"),
        ("", "", "holds no view"),
    ],
)
def test_faults_have_their_places_and_nothing_is_written(
    run: Run, service: FakeAdmin, tmp_path: Path, text: str, place: str, why: str
) -> None:
    file = tmp_path / "x.sql"
    file.write_text(text)
    done = run("apply", "-f", str(file))
    assert done.exit_code == 1
    assert why in done.stderr
    assert f"  field: {file}{place and ':'}{place}" in done.stderr.splitlines()
    assert set(kept(service)) == {"old"}


def test_replace_and_if_not_exists(run: Run, service: FakeAdmin, tmp_path: Path) -> None:
    file = tmp_path / "x.sql"

    def applied(how: str, column: str, *more: str) -> Result:
        words = ("CREATE OR REPLACE" if how == "replace" else "CREATE", "IF NOT EXISTS" if how == "missing" else "")
        file.write_text(f"{words[0]} FULLTEXT INDEX {words[1]} i ON '/d' ({column}) KEY (id) TARGET '/i'")
        return run("apply", "-f", str(file), *more)

    assert applied("", "a").exit_code == 0
    assert "1 unchanged" in applied("missing", "b").stdout
    assert kept(service)["i"][1]["options"] == {"columns": "a"}
    assert applied("", "b").exit_code == 1
    assert "1 resync" in applied("replace", "b", "--yes").stdout
    assert kept(service)["i"][1]["options"] == {"columns": "b"}


def test_every_fault_of_all_files_is_said_at_once(run: Run, service: FakeAdmin, tmp_path: Path) -> None:
    (tmp_path / "x.sql").write_text(
        "CREATE VIEW a AS SELECT 1;\nCREATE FULLTEXT INDEX i ON '/d' (a) TARGET '/i';\n"
        "CREATE FULLTEXT INDEX j ON '/d' (a) KEY (id) TARGET '/j';"
    )
    (tmp_path / "y.sql").write_text("SELECT 'a")
    (tmp_path / "z.yaml").write_text("{table: /t, name: a, targt: /x}")
    files = [argument for name in ("x.sql", "y.sql", "z.yaml") for argument in ("-f", str(tmp_path / name))]
    done = run("apply", *files, "-o", "json")
    assert (done.exit_code, done.stdout) == (1, "")
    faults = [json.loads(line)["error"] for line in done.stderr.splitlines()]
    places = [each["field"].removeprefix(str(tmp_path)) for each in faults]
    assert places == ["/x.sql:1:8", "/x.sql:2:48", "/y.sql:1:8", "/z.yaml[0].targt", "/z.yaml[0].target"]
    assert service.asked == {"register": 1}


def test_every_statement_that_is_no_job_is_said_at_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.sql").write_text(
        "CREATE MATERIALIZED VIEW a AS SELECT * FROM b;\nCREATE MATERIALIZED VIEW b AS SELECT * FROM a;\n"
        "CREATE MATERIALIZED VIEW c AS SELECT * FROM gone;\nCREATE MATERIALIZED VIEW C AS SELECT * FROM gone;\n"
        "CREATE FULLTEXT INDEX i ON none (a) KEY (id);"
    )
    done = run("view", "apply", "-f", str(tmp_path / "x.sql"), "--target-root", "/x")
    assert done.exit_code == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        f"error: 'C' is a view at {tmp_path}/x.sql:3:1 already",
        "error: 'c' reads 'gone', which is neither a view nor given by --table",
        f"error: {tmp_path}/x.sql:1:1 is in a circle: a → b → a",
        "error: 'i' is on 'none', which is neither a view nor given by --table",
    ]
