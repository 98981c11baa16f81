"""`iscp-admin job pause 'sales.*'` and the like: what is chosen, confirmed before, and printed after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.job.change_commands import BATCH_MAX
from iscp.client.admin_client import Client
from iscp.model.api.api_requests import ChangeOutcome, JobChange, JobFilter, JobName, RegisterRequest
from iscp.model.values.errors import JobFailed, StorageError
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]
SPEC = '{"iteration": {"consumer": {"kind": "replica", "target": "/x"}}}'
NAMES = [("sales.orders", "copy"), ("sales.orders", "open"), ("sales.items", "copy"), ("/lake/sales", "copy")]


class Picky(FakeAdmin):
    """Refuses changes of the jobs named `open`, and all that come after `calls_max` calls."""

    calls_max = 1_000

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        if self.asked.get("batch", 0) >= self.calls_max:
            raise StorageError("the disk is full")
        self.asked["batch"] = self.asked.get("batch", 0) + 1
        outcomes = super().change(changes)
        refusal = JobFailed("is kept as it is", remedy="Ask its owner")
        return [refusal if each.job.name == "open" else done for each, done in zip(changes, outcomes, strict=True)]


class Chained(Picky):
    """Refuses changes of `copy` on `sales.items` before the other one is gone."""

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        there = {(job.table, job.name): job.table_id for job in self.list_jobs(JobFilter(account="default"))}
        if ("sales.orders", "copy") not in there:
            return super().change(changes)
        late = [each for each in changes if each.job.table == there["sales.items", "copy"]]
        made = iter(super().change([each for each in changes if each not in late]))
        return [JobFailed("is read by another") if each in late else next(made) for each in changes]


@pytest.fixture
def service() -> Picky:
    return Picky()


@pytest.fixture
def run(service: Picky) -> Iterator[Run]:
    server = AdminServer(service, "127.0.0.1:0")
    server.start()
    with Client(server.address) as client:
        client.register_many([RegisterRequest(JobName(table, name), SPEC) for table, name in NAMES])
        client.register_many([RegisterRequest(JobName("sales.orders", "copy", "acme"), SPEC)])

    def run(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(cli, ["--endpoint", server.address, *arguments], input=stdin)

    yield run
    server.stop(grace_s=0)


def paused(run: Run) -> list[tuple[str, str]]:
    return [
        (job["table"], job["name"]) for job in json.loads(run("job", "list", "--reason", "paused", "-o", "json").stdout)
    ]


def test_all_that_match_are_changed_and_counted_and_one_that_is_refused_is_reported(run: Run, service: Picky) -> None:
    first = run("job", "pause", "sales.*", "--yes")
    assert first.exit_code == 1
    assert first.stdout == "pause: 2 jobs changed, 0 were so already, 1 refused\n"
    assert first.stderr == "open on sales.orders: is kept as it is. Ask its owner\n"
    again = run("job", "pause", "sales.*", "c*", "--yes", "-o", "json")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == {"matched": 2, "changed": 0, "unchanged": 2, "refused": []}
    assert ("/lake/sales", "copy") not in paused(run)
    assert run("job", "resume", "*", "copy", "--yes").stdout.startswith("resume: 2 jobs changed, 1 were so already")
    assert run("job", "pause", "*", "--account", "acme", "--yes").stdout.startswith("pause: 1 job changed")


def test_nothing_is_changed_before_the_question_is_answered(run: Run, service: Picky) -> None:
    for answer in ("", "n\n"):
        refused = run("job", "delete", "sales.*", "copy", stdin=answer)
        assert refused.exit_code == 1
        assert "unregister 2 jobs? [y/N]" in refused.stderr
        assert "  copy on sales.items\n" in refused.stderr
        assert "  copy on sales.orders\n" in refused.stderr
        assert "\ntheir targets stay as they are\n" in refused.stderr
    dry = run("job", "delete", "sales.*", "--dry-run")
    assert (dry.exit_code, len(dry.stdout.splitlines()), dry.stderr) == (0, 3, "3 jobs match\n")
    assert json.loads(run("job", "delete", "/lake/sales", "copy", "--dry-run", "-o", "json").stdout) == [
        {"account": "default", "table": "/lake/sales", "name": "copy"}
    ]
    assert "batch" not in service.asked
    assert run("job", "delete", "sales.*", "copy", stdin="y\n").exit_code == 0
    assert run("job", "count", "sales.*").stdout == "2\n"


def test_without_a_name_it_is_all_jobs_of_the_table(run: Run) -> None:
    assert run("job", "resync", "sales.items", "--yes").stdout.startswith("resync: 1 job changed")
    assert run("job", "resync", "sales.orders", stdin="y\n").stdout.startswith("resync: 1 job changed")
    assert run("job", "resync", "sales.*", "--spec", SPEC, "--yes").exit_code == 2
    nothing = run("job", "pause", "nowhere.*")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "0 jobs match\n")


def test_what_was_done_before_a_failure_is_reported(run: Run, service: Picky) -> None:
    requests = [RegisterRequest(JobName("/many", str(number)), SPEC) for number in range(BATCH_MAX + 1)]
    service.register(requests)
    service.calls_max = 1
    failed = run("job", "pause", "/many", "--yes")
    assert failed.exit_code == 1
    assert failed.stdout == "pause: 2000 jobs changed, 0 were so already, 0 refused, 1 not attempted\n"
    assert "the disk is full" in failed.stderr


def test_jobs_are_listed_and_counted_by_pattern(run: Run) -> None:
    listed = json.loads(run("job", "list", "sales.*", "o*", "-o", "json").stdout)
    assert [(job["table"], job["name"]) for job in listed] == [("sales.orders", "open")]
    assert run("job", "count", "*", "copy").stdout == "4\n"
    assert run("job", "count", "sales.orders").stdout == "3\n"
    assert run("job", "list", "sales.orders", "--table", "sales.items").exit_code == 2


def test_before_views_are_deleted_what_is_kept_beside_them_is_said_to_stay(run: Run) -> None:
    views = ("--sql", "SELECT 1 FROM t", "--table", "t=sales.orders")
    assert run("view", "create", "totals", "--target", "/x/totals", *views).exit_code == 0
    one = run("job", "delete", "sales.orders", "total*", stdin="n\n").stderr
    assert "its target stays as it is, and so does what is kept beside views, as /x/totals_view_state_2\n" in one
    assert "their targets stay" in run("job", "delete", "*", stdin="n\n").stderr
    assert "stay" not in run("job", "pause", "*", stdin="n\n").stderr


def test_before_a_target_is_deleted_it_is_spelled_out(run: Run) -> None:
    views = ("--sql", "SELECT 1 FROM t", "--table", "t=sales.orders")
    assert run("view", "create", "totals", "--target", "/x/totals", *views).exit_code == 0
    refused = run("job", "delete", "sales.orders", "totals", "--delete-target", stdin="n\n")
    assert (refused.exit_code, run("job", "count", "sales.orders").stdout) == (1, "4\n")
    assert "totals on " in refused.stderr
    assert "with its target /x/totals, and what is kept beside it? [y/N]" in refused.stderr
    done = run("job", "delete", "sales.orders", "totals", "--delete-target", "--yes")
    assert "is being deleted; it is there, paused, until its target is gone" in done.stdout
    assert run("job", "count", "sales.orders").stdout == "3\n"
    assert run("job", "delete", "sales.orders", "totals", "--delete-target", "--yes").exit_code == 1


def test_before_an_index_is_deleted_its_size_is_said(run: Run, service: Picky) -> None:
    service.show("sales.orders", "copy", figures={"rows": 12_345.0, "bytes": 4_500_000.0, "faults": 1.0})
    refused = run("job", "delete", "sales.orders", "copy", "--delete-target", stdin="n\n")
    assert " (12,345 rows, 4.5 MB)? [y/N]" in refused.stderr
    done = run("job", "delete", "sales.orders", "copy", "--delete-target", "--yes", "-o", "json")
    assert json.loads(done.stdout) == {"deleting": True, "rows": 12_345, "bytes": 4_500_000}


def test_many_are_deleted_with_their_targets_after_one_question(run: Run) -> None:
    refused = run("job", "delete", "sales.*", "copy", "--delete-target", stdin="n\n")
    assert (refused.exit_code, "stay" in refused.stderr) == (1, False)
    assert "  copy on sales.items, with its target " in refused.stderr
    assert "delete 2 jobs with all targets? [y/N]" in refused.stderr
    done = run("job", "delete", "sales.*", "copy", "--delete-target", "--yes")
    assert done.stdout == "delete target: 2 jobs changed, 0 were so already, 0 refused\n"


def test_targets_that_others_read_are_deleted_after_these(run: Run, service: Picky) -> None:
    service.__class__ = Chained
    done = run("job", "delete", "sales.*", "copy", "--delete-target", "--yes")
    assert (done.exit_code, done.stdout) == (0, "delete target: 2 jobs changed, 0 were so already, 0 refused\n")
    refused = run("job", "delete", "sales.*", "--delete-target", "--yes")
    assert (refused.exit_code, refused.stderr) == (1, "open on sales.orders: is kept as it is. Ask its owner\n")
