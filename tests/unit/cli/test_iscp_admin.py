"""`iscp-admin` against a real server with a faked service: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from iscp import __version__
from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import JobName, LeftOutRow, LeftOutRows
from iscp.model.job.start_rule import Comparison, Sample
from iscp.model.values.errors import JobFailed, QueueFull
from tests.fakes.admin import CHECKPOINT_AT_S, MISSING, FakeAdmin

PROGRAM = Path(sys.executable).with_name("iscp-admin")
HELP_AIM_S = 0.5
HEAVY = ("pyspark", "py4j", "deltalake", "pyarrow", "grpc", "google.protobuf", "rich", "yaml", "pydantic")

Run = Callable[..., Result]


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def answer(result: Result) -> Any:
    return json.loads(ok(result))


def register(run: Run, name: str = "a", *more: str) -> Result:
    return run("job", "register", "--table", "/t", "--name", name, "--target", f"/copy/{name}", *more)


@pytest.mark.parametrize("verb", ["register", "create"])
def test_a_job_is_created_from_options(run: Run, verb: str) -> None:
    options = ["--consumer", "replica", "--target", "/copy", "--key", "a,b", "--columns", "a, b,c", "--where", "c > 1"]
    options += ["--trigger", "default", "--priority", "-5", "--account", "acme"]
    first = answer(run("-o", "json", "job", verb, "--table", "/t", "--name", "a", *options))
    assert first == {
        "account": "acme",
        "table": "/t",
        "name": "a",
        "created": True,
        "job_id": "job-1",
        "table_id": "id-of-/t",
        "warning": "",
    }
    assert not answer(run("job", verb, "--table", "/t", "--name", "a", *options, "-o", "json"))["created"]
    job = answer(run("-o", "json", "job", "status", "/t", "a", "--account", "acme"))
    consumer = {"kind": "replica", "target": "/copy", "key": ["a", "b"], "columns": ["a", "b", "c"], "where": "c > 1"}
    assert job["spec"] == {"trigger": {"job_type": "default"}, "iteration": {"consumer": consumer, "priority": -5}}


def test_shards_are_an_option_of_the_consumer(run: Run) -> None:
    register(run, "a", "--consumer", "changefeed", "--key", "id", "--shards", "8")
    spec = answer(run("-o", "json", "job", "status", "/t", "a"))["spec"]
    assert spec["iteration"]["consumer"]["options"] == {"shards": 8}


def test_how_a_job_runs_is_given_by_options(run: Run) -> None:
    options = ["--trigger", "custom", "--trigger-name", "nightly", "--trigger-options", '{"at": 3}']
    options += ["--target-lag", "1h30m", "--change-source", "diff", "--on-duplicate", "stop", "--options", '{"x": [1]}']
    register(run, "a", *options)
    spec = answer(run("-o", "json", "job", "status", "/t", "a"))["spec"]
    assert spec == {
        "trigger": {"job_type": "custom", "name": "nightly", "options": {"at": 3}},
        "target_lag": 5400.0,
        "iteration": {
            "change_source": "diff",
            "on_duplicate": "stop",
            "consumer": {"kind": "replica", "target": "/copy/a", "options": {"x": [1]}},
        },
    }


@pytest.mark.parametrize("value", ["[1]", "{", "5"])
def test_options_that_are_no_object_are_wrong_usage(run: Run, value: str) -> None:
    result = register(run, "a", "--options", value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--options" in result.stderr


def test_a_table_is_taken_over_and_the_command_waits_for_the_comparison(run: Run, service: FakeAdmin) -> None:
    service.before = lambda verb: service.apply("/t", "a", 3) if verb == "wait" else None
    assert "created" in ok(register(run, "a", "--adopt", "--from-version", "3"))
    job = answer(run("-o", "json", "job", "status", "/t", "a"))
    assert job["spec"]["iteration"]["adopt_from"] == 3

    def differs(verb: str) -> None:
        if verb == "wait":
            raise JobFailed("the job 'b' has failed: 2 rows are missing", remedy="Mend it, then resume")

    service.before = differs
    failed = register(run, "b", "--adopt", "--from-version", "3")
    assert failed.exit_code == 1
    assert "2 rows are missing" in failed.stderr


def test_relative_tables_and_targets_are_made_absolute(run: Run) -> None:
    ok(run("job", "register", "--table", "data/orders", "--name", "a", "--target", "copies/orders"))
    table, target = os.path.abspath("data/orders"), os.path.abspath("copies/orders")
    job = answer(run("-o", "json", "job", "status", "data/orders", "a"))
    assert (job["table"], job["spec"]["iteration"]["consumer"]["target"]) == (table, target)


def test_jobs_are_created_from_a_file_or_from_stdin(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("- {table: /t, name: a, target: /x}\n- {table: /t, name: b, target: /y}\n")
    assert [row["created"] for row in answer(run("-o", "json", "job", "register", "-f", str(file)))] == [True, True]
    more = answer(run("-o", "json", "job", "create", "-f", "-", stdin="{table: /t, name: c, target: /z}"))
    assert [row["name"] for row in more] == ["c"]
    assert answer(run("-o", "json", "job", "count")) == {"count": 3}


def test_a_faulty_file_is_refused_by_its_path_and_nothing_is_created(
    run: Run, service: FakeAdmin, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("- {table: /t, name: a, target: /x}\n- {table: /t, name: b, target: /y, prio: 5}\n")
    result = run("job", "register", "-f", str(file))
    assert result.exit_code == 1
    assert f"field: {file}[1].prio" in result.stderr
    assert "remedy: Did you mean priority? Known are account" in result.stderr
    assert service.asked == {}


def test_what_the_node_refuses_is_reported_with_field_and_remedy(run: Run) -> None:
    result = run("job", "register", "--table", f"{MISSING}/x", "--name", "a", "--target", "/copy")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"error: there is no Delta table at {MISSING}/x",
        "  field: --table",
        "  remedy: Give the path of a directory that has a _delta_log",
    ]


def test_jobs_are_listed_and_counted_by_the_filter(run: Run) -> None:
    for name in ("a", "b"):
        register(run, name)
    ok(run("job", "pause", "/t", "b"))
    assert [job["name"] for job in answer(run("-o", "json", "job", "list"))] == ["a", "b"]
    assert [job["name"] for job in answer(run("-o", "json", "job", "list", "--reason", "paused"))] == ["b"]
    assert answer(run("-o", "json", "job", "list", "--table", "/u")) == []
    assert ok(run("job", "count", "--state", "completed")) == "2\n"
    limited = run("job", "list", "--limit", "1")
    assert "--limit raises it" in limited.stderr
    assert "b" not in limited.stdout.splitlines()[1].split()


def test_rows_that_are_left_out_and_a_warning_are_shown(run: Run, service: FakeAdmin) -> None:
    register(run)
    assert "share a key" not in ok(run("job", "status", "/t", "a"))
    service.apply("/t", "a", 4, dead_letters=12, warning="all rows were compared: vacuumed")
    shown = ok(run("job", "status", "/t", "a"))
    assert "12 rows share a key" in shown
    assert "all rows were compared: vacuumed" in shown
    assert "12" in ok(run("job", "list")).splitlines()[1].split()


def test_a_late_job_says_so(run: Run, service: FakeAdmin) -> None:
    register(run)
    service.delay("/t", "a")
    assert answer(run("-o", "json", "job", "status", "/t", "a"))["late"] is True
    assert " late" in ok(run("job", "list"))
    assert " late" in ok(run("job", "status", "/t", "a"))


def test_a_job_has_stable_names_in_json_and_yaml(run: Run, service: FakeAdmin) -> None:
    register(run)
    service.apply("/t", "a", 4)
    job = answer(run("-o", "json", "job", "status", "/t", "a"))
    assert {name: job[name] for name in ("state", "reason", "applied_version", "source_version", "seq")} == {
        "state": "completed",
        "reason": "none",
        "applied_version": 4,
        "source_version": 7,
        "seq": 1,
    }
    assert job["status"]["to_version"] == 4
    assert yaml.safe_load(ok(run("-o", "yaml", "job", "status", "/t", "a"))) == job
    table = ok(run("job", "status", "/t", "a"))
    assert "applied version" in table


def test_pause_resume_and_delete_say_whether_they_changed_anything(run: Run) -> None:
    register(run)
    for verb in ("pause", "resume"):
        assert [answer(run("-o", "json", "job", verb, "/t", "a"))["changed"] for _ in range(2)] == [True, False]
    assert [answer(run("-o", "json", "job", verb, "/t", "a")) for verb in ("delete", "unregister")] == [
        {"deleted": True},
        {"deleted": False},
    ]
    assert ok(run("job", "delete", "/t", "a")) == "there is no job a on /t\n"


def test_a_change_is_said_with_its_job(run: Run) -> None:
    register(run)
    said = [ok(run("job", verb, "/t", "a")) for verb in ("pause", "pause", "resume", "resume", "resync", "delete")]
    assert said == [
        "a on /t is paused\n",
        "a on /t was paused already\n",
        "a on /t is resumed\n",
        "a on /t is neither paused nor failing\n",
        "a on /t is being rebuilt as job-2; `iscp-admin job wait` returns when it is done\n",
        "a on /t is deleted\n",
    ]


def test_a_warning_of_a_registration_is_shown(run: Run, service: FakeAdmin) -> None:
    service.warning = "not kept: none"
    assert ok(register(run)).splitlines() == ["a on /t: created", "warning: not kept: none"]
    assert ok(run("job", "resync", "/t", "a")).splitlines()[-1] == "warning: not kept: none"
    told = answer(run("-o", "json", "job", "register", "--table", "/t", "--name", "b", "--target", "/copy/b"))
    assert told["warning"] == "not kept: none"


def test_a_resync_returns_the_new_registration_and_takes_a_table_and_a_spec(run: Run, tmp_path: Path) -> None:
    register(run)
    assert answer(run("-o", "json", "job", "resync", "/t", "a")) == {
        "job_id": "job-2",
        "table_id": "id-of-/t",
        "warning": "",
    }
    spec = tmp_path / "spec.json"
    spec.write_text('{"iteration": {"consumer": {"kind": "replica", "target": "/copy/b"}}}')
    assert "job-3" in ok(run("job", "resync", "/t", "a", "--table", "/u", "--spec", f"@{spec}"))
    job = answer(run("-o", "json", "job", "status", "/u", "a"))
    assert (job["job_id"], job["spec"]["iteration"]["consumer"]["target"]) == ("job-3", "/copy/b")
    assert run("job", "resync", "/t", "a").exit_code == 1
    for file, words in (("/no/such/file", "cannot read /no/such/file"), ("/dev/zero", "has more than 1000000 char")):
        refused = run("job", "resync", "/u", "a", "--spec", f"@{file}")
        assert refused.exit_code == 2
        assert words in refused.stderr


def test_a_job_is_updated_by_the_options_of_register(run: Run, service: FakeAdmin) -> None:
    register(run, "a", "--trigger", "periodic", "--every", "10m", "--share", "--priority", "3")
    update = ("job", "update", "/t", "a")
    changes = ("--every", "1m", "--no-share", "--target-lag", "2m", "--default", "priority", "--interrupt")
    assert ok(run(*update, *changes)) == "a on /t is updated\n"
    assert ok(run(*update, "--every", "1m")) == "a on /t is so already\n"
    assert answer(run("-o", "json", *update, "--every", "60s")) == {"changed": False}
    assert service.interrupted == [JobName("/t", "a")]
    assert answer(run("-o", "json", "job", "status", "/t", "a"))["spec"] == {
        "trigger": {"job_type": "periodic", "schedule": {"interval": 60.0}},
        "target_lag": 120.0,
        "iteration": {"consumer": {"kind": "replica", "target": "/copy/a"}},
    }
    refused = run(*update, "--trigger", "custom")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "field: --trigger-name" in refused.stderr
    assert "error: --trigger-name is missing" in refused.stderr
    for wrong in ((), ("--interrupt",), ("--default", "every", "--every", "1m"), ("--default", "key")):
        assert run(*update, *wrong).exit_code == 2


def test_wait_ends_with_0_or_3(run: Run, service: FakeAdmin) -> None:
    register(run)
    late = run("job", "wait", "/t", "a", "--version", "5", "--timeout", "50ms")
    assert late.exit_code == 3
    assert "version 5 is not applied yet" in late.stderr
    service.apply("/t", "a", service.source_version)
    assert ok(run("job", "wait", "/t", "a")) == "version 7 is applied\n"
    assert answer(run("job", "wait", "/t", "a", "--timeout", "2m", "-o", "json"))["applied_version"] == 7


def test_verify_ends_with_4_only_where_the_target_is_left_different(run: Run, service: FakeAdmin) -> None:
    register(run)
    service.apply("/t", "a", 7)
    assert ok(run("job", "verify", "/t", "a")).splitlines()[0].split(maxsplit=1) == ["verdict", "equal, at version 7"]
    sample = Sample("different", '{"id":8}', ("v",))
    service.comparisons["a"] = Comparison(10, 9, 4, 1, missing=1, different=1, samples=(sample,))
    differs = run("job", "verify", "/t", "a")
    assert differs.exit_code == 4
    assert '{"id":8}' in differs.stdout
    told = run("job", "verify", "/t", "a", "--timeout", "2m", "-o", "json")
    assert told.exit_code == 4
    assert json.loads(told.stdout) == {
        "version": 7,
        "seq": 1,
        "equal": False,
        "repaired": False,
        "void": "",
        "rows_source": 10,
        "rows_target": 9,
        "ranges": 4,
        "ranges_differing": 1,
        "missing": 1,
        "extra": 0,
        "different": 1,
        "shared": 0,
        "samples": [{"fault": "different", "key": '{"id":8}', "columns": ["v"]}],
    }
    mended = answer(run("job", "verify", "/t", "a", "--repair", "-o", "json"))
    assert (mended["repaired"], mended["seq"]) == (True, 2)
    assert run("job", "verify", "/t", "other").exit_code == 1
    assert run("job", "verify", "/t", "a", "--timeout", "soon").exit_code == 2


def test_history_is_shown_newest_first(run: Run, service: FakeAdmin) -> None:
    register(run)
    for version in (1, 2, 3):
        service.apply("/t", "a", version)
    entries = answer(run("-o", "json", "job", "history", "/t", "a", "--limit", "2"))
    assert [(entry["from_version"], entry["to_version"]) for entry in entries] == [(2, 3), (1, 2)]
    assert ok(run("job", "history", "/t", "a")).splitlines()[0].split()[:4] == ["SEQ", "KIND", "FROM", "TO"]


def test_rows_that_a_job_leaves_out_are_shown(run: Run, service: FakeAdmin) -> None:
    register(run)
    rows = tuple(LeftOutRow({"id": number}, "shared") for number in range(3))
    service.left_out = LeftOutRows(rows, "/copy_dead_letter")
    shown = answer(run("-o", "json", "job", "dead-letters", "/t", "a", "--limit", "2"))
    assert shown == {
        "rows": [{"columns": {"id": number}, "reason": "shared"} for number in range(2)],
        "place": "/copy_dead_letter",
    }
    assert run("job", "dead-letters", "/t", "a").stdout.splitlines()[0].split() == ["id", "WHY"]
    assert run("job", "dead-letters", "/t", "a", "--limit", "101").exit_code == 2


def test_notify_says_how_many_jobs_it_concerns(run: Run) -> None:
    register(run)
    assert answer(run("-o", "json", "notify", "/t")) == {"jobs": 1}


def test_the_status_of_the_cluster_has_stable_names(run: Run) -> None:
    register(run)
    status = answer(run("status", "-o", "json"))
    assert abs(status["checkpoint_lag_s"] - (time.time() - CHECKPOINT_AT_S)) < 60
    assert status == {
        "owner": "n1",
        "owner_rev": 3,
        "nodes": [
            {
                "id": "n1",
                "pid": 4711,
                "address": "127.0.0.1:7430",
                "epoch": 5,
                "version": "0.1.0",
                "state": "running",
                "shards": 1,
                "queue_waiting": 2,
                "queue_running": 1,
                "lease_age_s": 0.5,
                "in_flight": 3,
            }
        ],
        "shards": [
            {"table_id": "id-of-/t", "table": "/t", "node_id": "n1", "state": "running", "jobs": 1, "range_id": 1}
        ],
        "jobs": 1,
        "lag_max_s": 1.5,
        "lag_max_least_s": 0.5,
        "moving": 4,
        "checkpoint_at_s": CHECKPOINT_AT_S,
        "checkpoint_lag_s": status["checkpoint_lag_s"],
        "left_out": [{"table": "/t", "name": "a", "why": "paused"}],
        "left_out_count": 12,
        "queue": {"waiting": 2, "running": 1, "submitted": 9, "completed": 8, "failed": 1},
    }
    shown = ok(run("status"))
    assert "owner_rev 3" in shown
    assert "/t a (paused) and 11 more" in shown
    assert "1 running, 4 of them moving" in shown
    assert "127.0.0.1:7430" in shown


def test_long_values_are_whole_in_a_pipe(run: Run) -> None:
    table = "/data/" + "very_long_directory/" * 10
    ok(run("job", "register", "--table", table, "--name", "a", "--target", "/copy"))
    assert os.path.abspath(table) in ok(run("job", "list"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "register", "--table", "/t", "--name", "a"],
        ["job", "register", "-f", "-", "--name", "a"],
        ["job", "register", "-f", "/no/such/file"],
        ["job", "register", "--priority", "high"],
        ["job", "register", "--table", "/t", "--name", "a", "--target", "/x", "--adopt"],
        ["job", "register", "--table", "/t", "--name", "a", "--target", "/x", "--from-version", "3"],
        ["job", "list", "--state", "fine"],
        ["job", "wait", "/t", "a", "--timeout", "soon"],
        ["job", "wait", "/t"],
        ["job", "wait", "", "a"],
        ["job", "forget", "/t", "a"],
        ["-o", "xml", "status"],
        ["--endpoint", "nowhere", "status"],
        ["--endpoint", "http://127.0.0.1:7430", "status"],
        ["completion", "tcsh"],
    ],
)
def test_wrong_usage_is_reported_before_anything_is_called(run: Run, service: FakeAdmin, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")
    assert "\nerror: " in result.stderr
    assert service.asked == {}


def test_any_failure_of_the_node_is_exit_status_1(run: Run, service: FakeAdmin) -> None:
    service.failures = [QueueFull("too much to do", remedy="Retry later")]
    result = run("status")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "remedy: Retry later" in result.stderr


def test_as_a_program_it_has_its_exit_statuses(endpoint: str) -> None:
    def status_of(*arguments: str) -> int:
        environment = {**os.environ, "ISCP_ENDPOINT": endpoint}
        return subprocess.run([PROGRAM, *arguments], env=environment, capture_output=True, timeout=60).returncode

    assert status_of("job", "create", "--table", "/t", "--name", "a", "--target", "/copy") == 0
    assert status_of("job", "status", "/t", "unknown") == 1
    assert status_of("job", "status", "/t") == 2
    assert status_of("job", "wait", "/t", "a", "--timeout", "10ms") == 3
    assert status_of("--endpoint", "127.0.0.1:1", "job", "wait", "/t", "a", "--timeout", "10ms") == 1


def test_version_and_completion_are_printed() -> None:
    assert ok(CliRunner().invoke(cli, ["--version"])) == f"iscp-admin, version {__version__}\n"
    for shell in ("bash", "zsh", "fish"):
        assert "_ISCP_ADMIN_COMPLETE" in ok(CliRunner().invoke(cli, ["completion", shell], prog_name="iscp-admin"))


def test_completion_completes() -> None:
    environment = {**os.environ, "COMP_WORDS": "iscp-admin job p", "COMP_CWORD": "2"}
    environment["_ISCP_ADMIN_COMPLETE"] = "bash_complete"
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "plain,pause\n"


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom iscp.cli.iscp_admin import cli\n"
        "assert CliRunner().invoke(cli, ['job', 'register', '--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_a_call_loads_no_spark(endpoint: str) -> None:
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom iscp.cli.iscp_admin import cli\n"
        f"assert CliRunner().invoke(cli, ['--endpoint', {endpoint!r}, 'status']).exit_code == 0\n"
        "print([name for name in ('pyspark', 'py4j', 'deltalake', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_help_is_there_at_once() -> None:
    """The best of several runs, in processor time: it measures our imports, not the load of the machine."""
    took_s = []
    for _ in range(5):
        before = os.times()
        subprocess.run([PROGRAM, "--help"], check=True, capture_output=True, timeout=60)
        after = os.times()
        took_s.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(took_s) < HELP_AIM_S
