"""`iscp-admin apply` and `export`: what would be done, what is done, and that doing it again does nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given

from iscp.cli.job.apply_plan import Step, update_json
from iscp.cli.job.job_file import entry_of, read_jobs
from iscp.cli.shell.terminal import yaml_text
from iscp.model.api.api_requests import CheckedJob, JobFilter, JobName, RegisterRequest
from iscp.model.spec.spec import JobSpec
from iscp.model.spec.spec_parsing import changed_spec, parse_spec
from tests.fakes.admin import MISSING, FakeAdmin
from tests.unit.model.spec.test_spec_parsing import SPECS

Run = Callable[..., Result]

ORDERS = """
- {table: /lake/orders, name: copy, target: /x/copy, key: [id]}
- {table: /lake/orders, name: open, target: /x/open, key: [id], where: state = 'open', priority: 5}
"""
ITEMS = "{table: sales.items, name: copy, target: /x/items, trigger: periodic, every: 10m, target_lag: 30}\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "sales").mkdir()
    (tmp_path / "orders.yaml").write_text(ORDERS)
    (tmp_path / "sales" / "items.yml").write_text(ITEMS)
    (tmp_path / "README.md").write_text("not a job")
    return tmp_path


def applied(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["refused"] == []
    return {action: number for action, number in found["counts"].items() if number}


def registered(run: Run) -> list[dict[str, Any]]:
    jobs = json.loads(run("job", "list", "-o", "json").stdout)
    return [{"table": job["table"], "name": job["name"], **job["spec"]} for job in jobs]


def test_a_directory_is_applied_and_applied_again_changes_nothing(run: Run, service: FakeAdmin, files: Path) -> None:
    dry = run("apply", "-f", str(files), "--dry-run")
    assert dry.exit_code == 0
    assert "create open on /lake/orders\n" in dry.stdout
    assert dry.stdout.endswith("would be 3 create, 0 update, 0 resync, 0 unchanged, 0 delete\n")
    assert set(service.asked) == {"check"}
    assert applied(run("apply", "-f", str(files), "-o", "json")) == {"create": 3}
    first = registered(run)
    assert [(job["table"], job["name"]) for job in first] == [
        ("/lake/orders", "copy"),
        ("/lake/orders", "open"),
        ("sales.items", "copy"),
    ]
    asked = dict(service.asked)
    assert applied(run("apply", "-f", str(files), "-o", "json")) == {"unchanged": 3}
    assert registered(run) == first
    assert {verb for verb, number in service.asked.items() if number > asked[verb]} == {"check", "list"}


def test_what_is_exported_is_taken_back_without_a_change(run: Run, service: FakeAdmin, files: Path) -> None:
    run("apply", "-f", str(files))
    run("job", "create", "--table", "/lake/orders", "--name", "theirs", "--target", "/y", "--account", "acme")
    exported = run("export")
    assert exported.exit_code == 0
    assert "consumer" not in exported.stdout
    assert applied(run("apply", "-f", "-", "-o", "json", stdin=exported.stdout)) == {"unchanged": 4}
    as_json = run("export", "sales.*", "-o", "json").stdout
    assert json.loads(as_json) == [
        {
            "table": "sales.items",
            "name": "copy",
            "target": "/x/items",
            "trigger": "periodic",
            "every": 600.0,
            "target_lag": 30.0,
        }
    ]
    assert applied(run("apply", "-f", "-", "-o", "json", stdin=as_json)) == {"unchanged": 1}
    assert [job["name"] for job in json.loads(run("export", "*", "o*", "-o", "json").stdout)] == ["open"]
    assert run("export", "--account", "nobody").stdout == "[]\n"


def test_only_what_differs_is_updated_and_what_is_not_given_any_more_goes_back(run: Run, files: Path) -> None:
    run("apply", "-f", str(files))
    changed = ORDERS.replace("priority: 5", "target_lag: 1m") + ITEMS.replace(", trigger: periodic, every: 10m", "")
    (files / "orders.yaml").write_text(changed.replace("{table: sales", "- {table: sales"))
    (files / "sales" / "items.yml").unlink()
    shown = run("apply", "-f", str(files), "--dry-run").stdout
    assert "update open on /lake/orders (target_lag: - → 60.0; priority: 5 → -)\n" in shown
    assert 'update copy on sales.items (trigger: "periodic" → -; every: 600.0 → -)\n' in shown
    assert applied(run("apply", "-f", str(files), "-o", "json")) == {"update": 2, "unchanged": 1}
    assert applied(run("apply", "-f", str(files), "-o", "json")) == {"unchanged": 3}
    _, opened, items = registered(run)
    assert (opened["target_lag"], opened["iteration"].get("priority")) == (60.0, None)
    assert (items.get("trigger"), items["target_lag"]) == (None, 30.0)


def test_what_the_target_holds_is_changed_with_resync_only(run: Run, service: FakeAdmin, files: Path) -> None:
    run("apply", "-f", str(files))
    (files / "orders.yaml").write_text(ORDERS.replace("'open'", "'paid'").replace("priority: 5", "priority: 6"))
    refused = run("apply", "-f", str(files))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{files}/orders.yaml[1]: spec changes what the target holds" in refused.stderr
    assert "where: \"state = 'open'\" → \"state = 'paid'\"" in refused.stderr
    assert "--resync" in refused.stderr
    assert {verb: service.asked.get(verb, 0) for verb in ("register", "resync")} == {"register": 1, "resync": 0}
    assert applied(run("apply", "-f", str(files), "--resync", "-o", "json")) == {"resync": 1, "unchanged": 2}
    assert applied(run("apply", "-f", str(files), "-o", "json")) == {"unchanged": 3}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.yaml", f"{{table: {MISSING}/t, name: a, target: /z}}", "a.yaml[0]: table: there is no Delta table at"),
        ("a.yaml", "{table: /lake/orders, name: copy, target: /z}", "name is the job at"),
        ("a.yaml", "{table: /t, name: a}", "a.yaml[0].target"),
        ("a.yaml", "{table: /t, name: a, target: /z, every: soon}", "a.yaml[0].every"),
        ("a.yaml", "{table: /t, name: a, target: /z, pause: true}", "a.yaml[0].pause"),
        ("a.yaml", "", "holds no job"),
        ("a.json", "{", "is not YAML"),
    ],
)
def test_one_fault_in_one_file_and_nothing_is_written(
    run: Run, service: FakeAdmin, files: Path, name: str, text: str, told: str
) -> None:
    (files / name).write_text(text)
    result = run("apply", "-f", str(files), "--set", "all", "--prune", "--yes")
    assert result.exit_code == 1
    assert told in result.stderr
    assert set(service.asked) <= {"check"}


def test_files_that_are_not_there_are_refused(run: Run, service: FakeAdmin, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.yaml"):
        result = run("apply", "-f", str(path))
        assert result.exit_code == 1
        assert str(path) in result.stderr
    assert run("apply").exit_code == 2
    assert service.asked == {}


@given(SPECS)
def test_any_spec_survives_its_export(spec: JobSpec) -> None:
    service = FakeAdmin()
    service.register([RegisterRequest(JobName("/t", "a", "acme"), spec.to_json())])
    (job,) = service.list_jobs(JobFilter())
    (read,) = read_jobs(io.StringIO(yaml_text([entry_of(job)])), "jobs.yaml")
    assert (read.job, parse_spec(read.spec_json)) == (JobName("/t", "a", "acme"), spec)


@given(SPECS, SPECS)
def test_an_update_makes_any_spec_the_one_that_is_wanted(before: JobSpec, wanted: JobSpec) -> None:
    after = replace(wanted, consumer=before.consumer)
    step = Step("update", JobName("t-1", "a"), "/t", checked=CheckedJob(spec_json=after.to_json()))
    assert changed_spec(before.to_json(), update_json(step)) == after


def test_faults_are_json_where_the_answer_is(run: Run) -> None:
    refused = run("apply", "-f", "-", "-o", "json", stdin=f"[{{table: {MISSING}/x, name: a, target: /x}}]")
    assert (refused.exit_code, refused.stdout) == (1, "")
    error = json.loads(refused.stderr)["error"]
    assert (error["name"], error["field"]) == ("TABLE_NOT_FOUND", "stdin[0].table")
    assert error["message"] == f"there is no Delta table at {MISSING}/x"


CHAIN = """
- {table: /x/second, name: third, target: /x/third}
- {table: /x/first, name: second, target: /x/second}
- {table: /lake/orders, name: first, target: /x/first}
"""


def test_a_job_on_the_target_of_a_new_one_is_registered_once_that_is_built(run: Run, service: FakeAdmin) -> None:
    service.absent |= {"/x/first", "/x/second"}
    built = {"first": "/lake/orders", "second": "/x/first"}

    def build(verb: str) -> None:
        if verb == "wait":
            name = next(iter(built))
            service.absent.discard(f"/x/{name}")
            service.apply(built.pop(name), name, 0)

    service.before = build
    dry = run("apply", "-f", "-", "--dry-run", stdin=CHAIN)
    assert dry.stdout.splitlines()[:3] == [
        "create first on /lake/orders",
        "create second on /x/first (once built: first)",
        "create third on /x/second (once built: second)",
    ]
    assert registered(run) == []
    assert applied(run("apply", "-f", "-", "-o", "json", stdin=CHAIN)) == {"create": 3}
    assert [job["name"] for job in registered(run)] == ["first", "second", "third"]


def test_jobs_that_read_each_others_targets_cannot_be_built(run: Run, service: FakeAdmin) -> None:
    service.absent |= {"/x/a", "/x/b"}
    refused = run(
        "apply", "-f", "-", stdin="[{table: /x/a, name: b, target: /x/b}, {table: /x/b, name: a, target: /x/a}]"
    )
    assert refused.exit_code == 1
    assert refused.stderr.count("there is no Delta table") == 2
    assert set(service.asked) == {"check"}


def test_a_job_that_is_refused_after_the_check_keeps_no_other_from_being_registered(
    run: Run, service: FakeAdmin
) -> None:
    service.absent |= {"/x/copy"}

    def drop_one(verb: str) -> None:
        if verb == "register":
            service.absent.add("/lake/gone")

    service.before = drop_one
    text = """
    - {table: /lake/orders, name: other, target: /x/other}
    - {table: /lake/gone, name: copy, target: /x/copy}
    - {table: /x/copy, name: reader, target: /x/reader}
    """
    result = run("apply", "-f", "-", "-o", "json", stdin=text)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    refused = {each["name"]: each["error"] for each in found["refused"]}
    assert (found["counts"]["create"], [each["name"] for each in found["steps"]]) == (1, ["other"])
    assert "there is no Delta table" in refused["copy"]
    assert "reads copy, which is not there" in refused["reader"]
    assert [job["name"] for job in registered(run)] == ["other"]


def test_applying_again_names_why_a_job_that_others_read_was_not_built(run: Run, service: FakeAdmin) -> None:
    """A job that is registered, and has built nothing, is awaited as a new one is."""
    service.absent |= {"/x/first"}
    text = "[{table: /lake/orders, name: first, target: /x/first}, {table: /x/first, name: second, target: /x/second}]"

    def fail(verb: str) -> None:
        if verb == "wait":
            run("job", "pause", "/lake/orders", "first")

    service.before = fail
    for number in (1, 0):
        done = run("apply", "-f", "-", stdin=text)
        assert done.exit_code == 1
        assert f"{number} create, " in done.stdout
        assert done.stdout.rstrip().endswith("1 refused")
        assert "create second" not in done.stdout
        assert "second on /x/first: the job is paused" in done.stderr
    assert [job["name"] for job in registered(run)] == ["first"]
