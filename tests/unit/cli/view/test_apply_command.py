"""`iscp-admin apply` of SQL files: views and indexes become jobs, beside those of other files.

`iscp-admin view apply`: views on views, in their order; what is there already; and what is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from iscp.model.api.api_requests import JobFilter
from iscp.model.spec.spec import flatten
from iscp.model.spec.spec_parsing import ViewFields
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


Kept = Callable[[], list[tuple[str, str, ViewFields]]]

CHAIN = """
CREATE MATERIALIZED VIEW top AS SELECT * FROM daily JOIN customers USING (id);
CREATE MATERIALIZED VIEW daily SCHEDULE EVERY 1 HOUR REFRESH POLICY INCREMENTAL STRICT
  AS SELECT id, sum(total) AS total FROM orders GROUP BY id;
"""
WHERE = ("--target-root", "/x", "--table", "orders=/lake/orders", "--table", "customers=sales.customers")


@pytest.fixture
def applied(run: Run) -> Run:
    def applied(text: str, *more: str) -> Result:
        return run("view", "apply", "-f", "-", *WHERE, *more, stdin=text)

    return applied


def test_a_view_on_a_new_view_is_registered_once_that_is_built(applied: Run, service: FakeAdmin, kept: Kept) -> None:
    service.absent.add("/x/daily")
    verbs: list[str] = []

    def build(verb: str) -> None:
        verbs.append(verb)
        if verb == "wait":
            service.absent.clear()
            service.apply("/lake/orders", "daily", 0)

    service.before = build
    dry = applied(CHAIN, "--dry-run")
    assert dry.stdout.splitlines()[:2] == [
        "create daily on /lake/orders",
        "create top on /x/daily (once built: daily)",
    ]
    assert kept() == []
    done = applied(CHAIN)
    assert done.exit_code == 0, done.output
    assert [verb for verb in verbs if verb in ("register", "wait")] == ["register", "wait", "register"]
    assert [(table, name, view.target) for table, name, view in kept()] == [
        ("/lake/orders", "daily", "/x/daily"),
        ("/x/daily", "top", "/x/top"),
    ]
    daily, top = (view for _, _, view in kept())
    assert (daily.refresh, daily.run) == ("strict", {"trigger": "periodic", "every": 3600.0})
    assert top.tables == {"daily": "/x/daily", "customers": "sales.customers"}


def test_applying_it_again_changes_nothing(applied: Run, kept: Kept) -> None:
    text = CHAIN.partition(";")[2]
    assert applied(text).exit_code == 0
    before = kept()
    again = applied(text, "-o", "json")
    assert json.loads(again.stdout)["counts"] == {"create": 0, "update": 0, "resync": 0, "unchanged": 1, "delete": 0}
    assert kept() == before


def test_a_view_that_is_not_built_in_time_ends_the_wait(applied: Run, service: FakeAdmin, kept: Kept) -> None:
    service.absent.add("/x/daily")
    late = applied(CHAIN, "--timeout", "10ms")
    assert late.exit_code == 3
    assert [name for _, name, _ in kept()] == ["daily"]


def test_a_view_may_read_one_that_is_registered(applied: Run, run: Run, kept: Kept) -> None:
    run("view", "create", "there", "--target", "/y/there", "--sql", "SELECT 1 FROM t", "--table", "t=/t")
    assert applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM There").exit_code == 0
    assert ("/y/there", "v") in [(table, name) for table, name, _ in kept()]


FIRST = "CREATE MATERIALIZED VIEW v AS SELECT 1 AS n FROM orders"
OTHER = FIRST.replace("1 AS", "2 AS")


def test_another_query_is_refused_replaced_or_left_as_the_statement_says(applied: Run, kept: Kept) -> None:
    def query() -> str:
        return kept()[0][2].sql

    applied(FIRST)
    refused = applied(OTHER)
    assert (refused.exit_code, query()) == (1, "SELECT 1 AS n FROM orders")
    assert "stdin:1:1: spec changes what the target holds" in refused.stderr
    assert applied(OTHER.replace("VIEW v", "VIEW IF NOT EXISTS v")).exit_code == 0
    assert query() == "SELECT 1 AS n FROM orders"
    asked = applied(OTHER.replace("CREATE", "CREATE OR REPLACE"))
    assert asked.exit_code == 1
    assert "--yes" in asked.stderr
    assert query() == "SELECT 1 AS n FROM orders"
    assert applied(OTHER.replace("CREATE", "CREATE OR REPLACE"), "--yes").exit_code == 0
    assert query() == "SELECT 2 AS n FROM orders"
    assert applied(FIRST, "--resync").exit_code == 0
    assert query() == "SELECT 1 AS n FROM orders"


def test_the_view_stays_on_its_table_when_the_query_names_another_first(applied: Run, kept: Kept) -> None:
    applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM orders JOIN customers USING (id)")
    turned = applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM customers JOIN orders USING (id)", "--resync")
    assert turned.exit_code == 0, turned.output
    assert [table for table, _, _ in kept()] == ["/lake/orders"]
    gone = applied("CREATE MATERIALIZED VIEW v AS SELECT * FROM customers", "--resync")
    assert gone.exit_code == 1
    assert "iscp-admin view drop v" in gone.stderr


def test_what_has_no_effect_is_said(applied: Run) -> None:
    done = applied("CREATE MATERIALIZED VIEW v COMMENT 'x' AS SELECT * FROM orders")
    assert done.exit_code == 0
    assert done.stderr == "warning: stdin:1:1: of v not kept: COMMENT\n"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", "stdin", "holds no view"),
        ("SELECT 1", "stdin:1:1", "is not supported; CREATE MATERIALIZED VIEW is"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM nowhere", "stdin:1:31", "--table nowhere="),
        ("CREATE MATERIALIZED VIEW v AS SELECT (1", "stdin:1:", "not SQL"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1", "stdin:1:31", "reads no table"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM v", "stdin:1:1", "circle: v → v"),
        (
            "CREATE MATERIALIZED VIEW a AS SELECT * FROM b;CREATE MATERIALIZED VIEW b AS SELECT * FROM a",
            "stdin:1:",
            "in a circle: ",
        ),
        (f"{FIRST};\n{FIRST}", "stdin:2:1", "is a view at stdin:1:1 already"),
        ("CREATE MATERIALIZED VIEW orders AS SELECT * FROM customers", "stdin:1:1", "given by --table"),
        ("CREATE MATERIALIZED VIEW `../v` AS SELECT * FROM orders", "stdin:1:1", "name of its target"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_place(
    applied: Run, kept: Kept, text: str, place: str, said: str
) -> None:
    refused = applied(text)
    assert refused.exit_code == 1
    assert f"field: {place}" in refused.stderr
    assert said in refused.stderr
    assert kept() == []


def test_directories_are_searched_for_sql(run: Run, kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.sql").write_text(FIRST)
    (tmp_path / "b.sql").write_text(FIRST.replace("VIEW v", "VIEW w"))
    (tmp_path / "README.md").write_text("no view")
    assert run("view", "apply", "-f", str(tmp_path), *WHERE).exit_code == 0
    assert [name for _, name, _ in kept()] == ["v", "w"]
