"""`iscp-admin apply` of several sets of files: what each may delete, change and take from the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from iscp.cli.job.apply_jobs import ApplyOptions, apply_jobs
from iscp.cli.job.apply_plan import DELETE, prunable, steps_for
from iscp.cli.shell.context_file import Invocation
from iscp.model.api.api_requests import JobChange, JobFilter, JobName, JobView, RegisterRequest
from iscp.model.run.run_plan import Wanted
from iscp.model.spec.spec import flatten, set_of, to_spec_json
from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.errors import InvalidRequest
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]

ORDERS = "- {table: /lake/orders, name: NAME, target: /x/NAME, key: [id]}\n"
VIEW = "CREATE MATERIALIZED VIEW NAME AS SELECT * FROM TABLE;\n"
ROOT = ("--target-root", "/x", "--table", "orders=/lake/orders")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two jobs of YAML, and two views of which one reads the other."""
    (tmp_path / "copy.yaml").write_text(ORDERS.replace("NAME", "copy"))
    (tmp_path / "old.yaml").write_text(ORDERS.replace("NAME", "old"))
    (tmp_path / "views.sql").write_text(VIEW.replace("NAME", "daily").replace("TABLE", "orders"))
    (tmp_path / "top.SQL").write_text(VIEW.replace("NAME", "top").replace("TABLE", "daily"))
    return tmp_path


@pytest.fixture
def apply(run: Run, files: Path) -> Run:
    def apply(*more: str, stdin: str | None = None) -> Result:
        return run("apply", "-f", str(files), *ROOT, *more, stdin=stdin)

    return apply


def sets(service: FakeAdmin) -> dict[str, str]:
    return {job.name: set_of(job.spec_json) for job in service.list_jobs(JobFilter())}


def counted(result: Result) -> dict[str, int]:
    assert result.exit_code == 0, result.output
    found: dict[str, int] = json.loads(result.stdout)["counts"]
    return {action: number for action, number in found.items() if number}


def test_prune_keeps_the_views_that_files_of_sql_define(apply: Run, service: FakeAdmin, files: Path) -> None:
    assert counted(apply("--set", "sales", "-o", "json")) == {"create": 4}
    assert sets(service) == dict.fromkeys(("copy", "daily", "old", "top"), "sales")
    assert counted(apply("--set", "sales", "--prune", "-o", "json")) == {"unchanged": 4}
    (files / "old.yaml").unlink()
    (files / "top.SQL").unlink()
    shown = apply("--set", "sales", "--prune", "--dry-run")
    assert "delete old on /lake/orders (of the set sales)\n" in shown.stdout
    assert len(sets(service)) == 4
    for answer in ("", "n\n"):
        refused = apply("--set", "sales", "--prune", stdin=answer)
        assert refused.exit_code == 1
        assert "  old on /lake/orders: of the set sales\n" in refused.stderr
        assert "delete 2 jobs that no file names? [y/N]" in refused.stderr
    assert len(sets(service)) == 4
    done = apply("--set", "sales", "--prune", "--yes")
    assert done.exit_code == 0
    assert done.stderr.index("  old on /lake/orders: of the set sales\n") < done.stderr.index("deleting 2 jobs")
    assert set(sets(service)) == {"copy", "daily"}


def test_prune_deletes_nothing_of_other_sets_of_none_and_of_other_accounts(
    apply: Run, run: Run, service: FakeAdmin, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "jobs.yaml"
    other.write_text(f"set: theirs\n---\n{ORDERS.replace('NAME', 'theirs')}")
    assert run("apply", "-f", str(other)).exit_code == 0
    acme = ORDERS.replace("NAME", "acme").replace("name:", "account: acme, name:")
    assert run("apply", "-f", "-", "--set", "sales", stdin=acme).exit_code == 0
    run("job", "create", "--table", "/lake/orders", "--name", "registered", "--target", "/x/r")
    assert run("apply", "-f", "-", stdin=ORDERS.replace("NAME", "loose")).exit_code == 0
    assert apply("--set", "sales", "--prune", "--yes").exit_code == 0
    (files / "old.yaml").unlink()
    assert counted(apply("--set", "sales", "--prune", "--yes", "-o", "json")) == {"unchanged": 3, "delete": 1}
    assert set(sets(service)) == {"copy", "daily", "top", "theirs", "acme", "registered", "loose"}


@pytest.mark.parametrize("option", ["--prune", "--claim"])
def test_nothing_is_pruned_or_claimed_without_the_name_of_a_set(apply: Run, service: FakeAdmin, option: str) -> None:
    refused = apply(option, "--yes")
    assert refused.exit_code == 1
    assert f"{option} needs the name of the set" in refused.stderr.replace("field: ", "")
    assert sets(service) == {}


def test_a_set_takes_no_job_of_another_unless_it_claims_it(apply: Run, run: Run, service: FakeAdmin) -> None:
    assert apply("--set", "sales").exit_code == 0
    changed = ORDERS.replace("NAME", "copy").replace("key: [id]", "key: [id], priority: 3")
    refused = run("apply", "-f", "-", "--set", "theirs", stdin=changed)
    assert refused.exit_code == 1
    assert "is a job of the set sales" in refused.stderr
    assert "--claim" in refused.stderr
    (job,) = service.list_jobs(JobFilter(name_pattern="copy"))
    assert flatten(job.spec_json).get("priority") is None
    loose = run("apply", "-f", "-", stdin=changed)
    assert "update copy on /lake/orders (priority: - → 3)" in loose.stdout
    assert sets(service)["copy"] == "sales", "an application without a set leaves it where it is"
    claimed = run("apply", "-f", "-", "--set", "theirs", "--claim", "--yes", stdin=changed)
    assert 'update copy on /lake/orders (set: "sales" → "theirs")' in claimed.stdout
    assert sets(service)["copy"] == "theirs"


def test_a_job_that_no_set_has_made_stays_outside_until_it_is_claimed(
    apply: Run, run: Run, service: FakeAdmin, files: Path
) -> None:
    run("job", "create", "--table", "/lake/orders", "--name", "old", "--target", "/x/old", "--key", "id")
    shown = apply("--set", "sales")
    assert (shown.exit_code, "3 create, 0 update, 0 resync, 1 unchanged" in shown.stdout) == (0, True)
    assert "not of the set, which has not made them (old on /lake/orders)" in shown.stderr
    assert sets(service)["old"] == ""
    asked = apply("--set", "sales", "--claim", stdin="n\n")
    assert "take 1 job into another set? [y/N]" in asked.stderr
    assert sets(service)["old"] == ""
    assert apply("--set", "sales", "--claim", stdin="y\n").exit_code == 0
    assert set(sets(service).values()) == {"sales"}
    (files / "old.yaml").unlink()
    assert counted(apply("--set", "sales", "--prune", "--yes", "-o", "json"))["delete"] == 1


def test_a_view_that_a_job_reads_which_stays_is_not_deleted(
    apply: Run, run: Run, service: FakeAdmin, files: Path
) -> None:
    assert apply("--set", "sales").exit_code == 0
    assert run("apply", "-f", "-", stdin="{table: /x/top, name: reader, target: /x/reader}").exit_code == 0
    (files / "top.SQL").unlink()
    refused = apply("--set", "sales", "--prune", "--yes")
    assert refused.exit_code == 1
    assert "would delete top on /x/daily, and reader would go on to read /x/top" in refused.stderr
    assert "top" in sets(service)


def test_readers_are_deleted_before_what_they_read_and_keep_it_where_they_stay(
    apply: Run, service: FakeAdmin, files: Path
) -> None:
    assert apply("--set", "sales").exit_code == 0
    for name in ("views.sql", "top.SQL"):
        (files / name).unlink()
    order: list[list[str]] = []
    change = service.change

    def refuse_one(changes: Sequence[JobChange]) -> Any:
        order.append([each.job.name for each in changes])
        if len(order) == 1:
            return [InvalidRequest("is held", about="job", remedy="Release it")]
        return change(changes)

    service.change = refuse_one  # type: ignore[method-assign]
    kept = apply("--set", "sales", "--prune", "--yes")
    assert (kept.exit_code, order) == (1, [["top"]])
    assert "daily on /lake/orders: was kept, as another job was refused" in kept.stderr
    assert apply("--set", "sales", "--prune", "--yes").exit_code == 0
    assert order[1:] == [["top"], ["daily"]]
    assert set(sets(service)) == {"copy", "old"}


def test_what_was_changed_before_a_person_has_agreed_is_kept(apply: Run, service: FakeAdmin, files: Path) -> None:
    assert apply("--set", "sales").exit_code == 0
    (files / "old.yaml").unlink()
    left = iter(("the views", "the jobs"))

    def claim(verb: str) -> None:
        if verb == "list" and next(left, None) is None:  # the jobs once more, before they are deleted
            service.show("/lake/orders", "old", job_id="another")

    service.before = claim
    kept = apply("--set", "sales", "--prune", "--yes")
    assert kept.exit_code == 1
    assert "old on /lake/orders: was changed by somebody else meanwhile" in kept.stderr
    assert "old" in sets(service)


def test_nothing_is_deleted_where_something_else_was_refused(apply: Run, service: FakeAdmin, files: Path) -> None:
    assert apply("--set", "sales").exit_code == 0
    (files / "old.yaml").write_text(ORDERS.replace("NAME", "new").replace("/lake/orders", "/lake/gone"))

    def drop(verb: str) -> None:
        if verb == "register":
            service.absent.add("/lake/gone")

    service.before = drop
    kept = apply("--set", "sales", "--prune", "--yes")
    assert kept.exit_code == 1
    assert "old on /lake/orders: was kept, as another job was refused" in kept.stderr
    assert "old" in sets(service)


def test_a_job_whose_source_is_away_is_not_pruned(run: Run, service: FakeAdmin) -> None:
    """It is awaited as a new one is, so that the check says nothing of it."""
    text = "[{table: /lake/o, name: first, target: /x/first}, {table: /x/first, name: second, target: /x/second}]"
    assert run("apply", "-f", "-", "--set", "s", stdin=text).exit_code == 0
    service.absent.add("/x/first")
    checked = service.check([each.request for each in wanted_of(service)])
    steps, faults = steps_for(wanted_of(service), checked, resync=False)
    assert (faults, [bool(step.awaits) for step in steps]) == ([], [False, True])
    assert prunable(steps, service.list_jobs(JobFilter())) == ([], [])


def wanted_of(service: FakeAdmin) -> list[Wanted]:
    jobs = service.list_jobs(JobFilter())
    return [Wanted(RegisterRequest(JobName(job.table, job.name), job.spec_json), "x") for job in jobs]


def test_what_a_project_leaves_out_is_not_pruned(run: Run, service: FakeAdmin, tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        name: {"resource_type": "model", "name": name, "compiled_code": "SELECT id FROM orders", "meta": {"iscp": True}}
        for name in ("m", "n")
    }
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"nodes": models}))
    assert run("apply", "-f", str(manifest), *ROOT, "--set", "dbt").exit_code == 0
    models["n"]["compiled_code"] = None
    manifest.write_text(json.dumps({"nodes": models}))
    shown = run("apply", "-f", str(manifest), *ROOT, "--set", "dbt", "--prune", "--yes", "-o", "json")
    assert counted(shown) == {"unchanged": 1}
    assert [each["name"] for each in json.loads(shown.stdout)["left_out"]] == ["n"]
    assert set(sets(service)) == {"m", "n"}


def test_a_registration_names_no_set(run: Run, service: FakeAdmin) -> None:
    job = ORDERS.replace("NAME", "a").replace("key:", "set: sales, key:")
    for text in (job, f"set: sales\n---\n{ORDERS}"):
        refused = run("job", "register", "-f", "-", stdin=text)
        assert refused.exit_code == 1
        assert "iscp-admin apply" in refused.stderr
    assert sets(service) == {}


def test_damaged_jobs_are_of_no_set_and_hide_no_other() -> None:
    service = FakeAdmin()
    service.register([request("j0", "a", 0)])
    (job,) = service.list_jobs(JobFilter())
    steps, _ = steps_for([Wanted(request("j3", "a", 0), "x")], service.check([request("j3", "a", 0)]), resync=False)
    damaged = replace(job, job_id="other", name="x", spec_json='{"set"')
    deletions, faults = prunable(steps, [damaged, job])
    assert ([step.job.name for step in deletions], faults) == (["j0"], [])


# Random histories: several sets, and jobs of none, against a model.

READS = {"j0": "/lake", "j1": "/x/j0", "j2": "/x/j1", "j3": "/lake", "j4": "/x/j3"}
"""The jobs by their names, and the table of each: some read others' targets."""

FILES = st.dictionaries(st.sampled_from(sorted(READS)), st.integers(1, 3), min_size=1)
APPLIES = st.tuples(st.sampled_from(("a", "b", "")), FILES, st.booleans(), st.booleans())
HISTORIES = st.lists(APPLIES | st.sampled_from(sorted(READS)), max_size=12)

Model = dict[str, tuple[str, int]]
"""The set and the priority of each job that is there."""


def request(name: str, set_name: str, priority: int) -> RegisterRequest:
    fields = {"consumer": "replica", "target": f"/x/{name}", "priority": priority or None, "set": set_name or None}
    if name == "j4":  # a view reads its tables by its query too
        view = ViewFields("SELECT 1", {"a": "/lake", "b": READS[name]}, f"/x/{name}")
        fields = {**flatten(view.spec_json()), "priority": priority or None, "set": set_name or None}
    return RegisterRequest(JobName("/lake" if name == "j4" else READS[name], name), to_spec_json(fields))


class Cluster:
    """The calls of a client that `apply` makes, without a network."""

    def __init__(self) -> None:
        self.service = FakeAdmin()
        self.deleted: list[str] = []

    def check_many(self, requests: Sequence[RegisterRequest], timeout_s: float) -> Any:
        return self.service.check(requests)

    def register_many(self, requests: Sequence[RegisterRequest]) -> Any:
        return self.service.register(requests)

    def update_many(self, requests: Any) -> Any:
        return self.service.update(requests)

    def jobs(self, account: str, limit: int) -> list[JobView]:
        return self.service.list_jobs(JobFilter(account=account, limit=limit))

    def change_many(self, changes: Sequence[JobChange]) -> Any:
        self.deleted += [each.job.name for each in changes]
        return self.service.change(changes)

    @property
    def state(self) -> Model:
        return {
            job.name: (set_of(job.spec_json), flatten(job.spec_json).get("priority", 0))
            for job in self.service.list_jobs(JobFilter())
        }


def model_after(model: Model, set_name: str, files: dict[str, int], *, prune: bool, claim: bool) -> Model | None:
    """Return what has to be there, or None where all is refused."""
    stolen = {name for name in files if model.get(name, ("", 0))[0] not in ("", set_name)}
    if stolen and set_name and not claim:
        return None
    doomed = {name for name, (owner, _) in model.items() if prune and owner == set_name and name not in files}
    after = {name: state for name, state in model.items() if name not in doomed}
    for name, priority in files.items():
        owner = set_name if claim or name not in model else model[name][0]
        after[name] = (owner, priority)
    if any(READS[name] == f"/x/{gone}" for name in after for gone in doomed):
        return None
    return after


@given(HISTORIES)
def test_sets_delete_and_change_what_is_theirs_alone(history: list[Any]) -> None:
    cluster, model = Cluster(), Model()
    for event in history:
        if isinstance(event, str):
            cluster.service.register([request(event, "", 0)])
            model.setdefault(event, ("", 0))
            continue
        set_name, files, prune, claim = event
        prune, claim = prune and bool(set_name), claim and bool(set_name)
        wanted = [Wanted(request(name, set_name, priority), name) for name, priority in files.items()]
        after = model_after(model, set_name, files, prune=prune, claim=claim)
        cluster.deleted.clear()
        options = ApplyOptions(prune=prune, claim=claim, yes=True)
        try:
            apply_jobs(Invocation(output="json"), cluster, wanted, options)  # type: ignore[arg-type]
            assert after is not None
        except click.exceptions.Exit:
            assert after is None
        places = {name: place for place, name in enumerate(cluster.deleted)}
        assert all(places[name] < places[READS[name][3:]] for name in places if READS[name][3:] in places)
        model = model if after is None else after
        assert cluster.state == model


def test_the_plan_of_a_deletion_names_the_reader_that_goes_first() -> None:
    service = FakeAdmin()
    service.register([request(name, "a", 0) for name in ("j0", "j1", "j2")])
    wanted = [Wanted(request("j3", "a", 0), "x")]
    steps, _ = steps_for(wanted, service.check([wanted[0].request]), resync=False)
    deletions, faults = prunable(steps, service.list_jobs(JobFilter()))
    assert [(step.action, step.job.name, [each.name for each in step.awaits]) for step in deletions] == [
        (DELETE, "j2", []),
        (DELETE, "j1", ["j2"]),
        (DELETE, "j0", ["j1"]),
    ]
    assert faults == []


def test_a_new_job_that_reads_what_would_be_deleted_refuses_it() -> None:
    service = FakeAdmin()
    service.register([request("j0", "a", 0)])
    wanted = [Wanted(request("j1", "a", 0), "x")]
    steps, _ = steps_for(wanted, service.check([wanted[0].request]), resync=False)
    _, (fault,) = prunable(steps, service.list_jobs(JobFilter()))
    assert "j1 would go on to read /x/j0" in str(fault.error)
