"""`node logs` and `job logs` against a real server whose services are faked.

A job's next start, as it is shown, equals what the schedule does in that state.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.job.status_commands import FOLLOW_EVERY_S, TAIL, next_start, warnings_of
from iscp.cli.shell.context_file import Invocation
from iscp.client.admin_client import Client
from iscp.model.api.api_requests import LINES_MAX, JobName, JobView, LogLine, LogPage, LogPlace, LogQuery
from iscp.model.job.job_row import Deletion, JobState, JobStatus, Reason
from iscp.model.values.errors import InvalidRequest, JobNotFound, QueueFull, TableNotFound
from iscp.model.values.untrusted_values import LogLevel
from iscp.server.admin.admin_server import LOG_CALLS_MAX, AdminServer, OperatorServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.operators import FakeOperator

JOBS = ("/t", "a"), ("/t", "b"), ("/u", "c")

Run = Callable[..., Result]
WAIT_S = 20.0


def a_page(
    *events: str, node_id: str = "n-1", number: int = 1, life: int = 5, at_s: float = 1.0, **said: object
) -> LogPage:
    lines = []
    for index, event in enumerate(events):
        fields = {"time": "12:00", "level": "info", "event": event, "logger": "iscp.x", "node": node_id, "table": "/t"}
        lines.append(LogLine(number + index, at_s + index, json.dumps(fields)))
    return LogPage(node_id, LogPlace(life, number + len(events) - 1), lines=tuple(lines), **said)  # type: ignore[arg-type]


@pytest.fixture
def follow(endpoint: str) -> Run:
    """Runs a command with -f, and presses Ctrl-C after so many further requests."""

    def follow(*arguments: str, polls: int) -> Result:
        left = [polls]

        def pause(seconds: float) -> None:
            assert seconds == FOLLOW_EVERY_S
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        return CliRunner().invoke(
            cli, ["--endpoint", endpoint, *arguments, "-f"], obj=Invocation(endpoint, pause=pause)
        )

    return follow


def test_the_lines_of_a_node_are_shown_as_in_its_log(run: Run, operator: FakeOperator) -> None:
    operator.logs = [[a_page("a", "b")]]
    shown = run("node", "logs", "n-1", "--tail", "7", "--since", "10m", "--level", "warning")
    assert shown.stdout.splitlines() == ["12:00 info    a table=/t", "12:00 info    b table=/t"]
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert operator.queries == [(LogQuery(None, 600.0, 7, LogLevel.WARNING), {})]


def test_lines_of_a_job_come_from_all_nodes_in_the_order_of_time(run: Run, operator: FakeOperator) -> None:
    operator.logs = [[a_page("a", "c", at_s=1.0), a_page("b", "d", node_id="n-2", at_s=1.5)]]
    lines = run("job", "logs", "/t", "a", "--account", "acme", "--tail", "3").stdout.splitlines()
    assert lines == ["12:00 info    n-2 b table=/t", "12:00 info    n-1 c table=/t", "12:00 info    n-2 d table=/t"]
    assert operator.jobs == [JobName("/t", "a", "acme")]


def test_as_json_each_line_is_an_object(run: Run, operator: FakeOperator) -> None:
    operator.logs = [[a_page("a", "b")], [a_page("c")], [a_page("d")]]
    lines = run("node", "logs", "n-1", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["a", "b"]
    assert "event: c" in run("node", "logs", "n-1", "-o", "yaml").stdout
    assert run("node", "logs", "n-1", "-o", "jsonpath={.event}").stdout == "d\n"


EVIL = "\x1b]0;owned\x07\x9b31m\u202egnp\nforged line\tx"


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml", "jsonpath={.event}"])
def test_nothing_in_a_line_steers_the_terminal(run: Run, operator: FakeOperator, output: str) -> None:
    fields = {"event": EVIL, EVIL: [{EVIL: EVIL}], "exception": f"a\n{EVIL}"}
    lines = (LogLine(1, 1.0, json.dumps(fields, ensure_ascii=False)), LogLine(2, 2.0, EVIL), LogLine(3, 3.0, "[]"))
    operator.logs = [[LogPage("n-1", LogPlace(1, 3), fault="", lines=lines)]]
    shown = run("node", "logs", "n-1", "-o", output)
    assert shown.exit_code == 0
    assert not set(shown.stdout) & set("\x1b\x07\x9b\u202e")
    if output == "table":
        assert len(shown.stdout.splitlines()) == 6, "only an exception has lines of its own"


def test_following_goes_on_from_the_last_place_until_ctrl_c(follow: Run, operator: FakeOperator) -> None:
    operator.logs = [[a_page("a")], [a_page("b", number=2)], [a_page(number=3)]]
    followed = follow("node", "logs", "n-1", polls=2)
    assert [line.split()[2] for line in followed.stdout.splitlines()] == ["a", "b"]
    assert followed.exit_code == 0
    assert [after for _, after in operator.queries] == [{}, {"n-1": LogPlace(5, 1)}, {"n-1": LogPlace(5, 2)}]
    assert operator.queries[0][0].tail == TAIL


def test_what_is_missing_is_said_once_and_following_goes_on(follow: Run, operator: FakeOperator) -> None:
    away = LogPage("n-2", fault="it is frozen\x1b[2J")
    operator.logs = [
        [a_page("a"), away],
        [a_page(), away],
        InvalidRequest("there is no node 'n-1'", about="node"),
        QueueFull("many requests for logs are answered already"),
        [a_page("b", life=6, restarted=True), a_page("c", node_id="n-2", lost=3)],
    ]
    followed = follow("job", "logs", "/t", "a", polls=4)
    assert followed.exit_code == 0
    assert [line.split()[3] for line in followed.stdout.splitlines()] == ["a", "b", "c"]
    said = followed.stderr.splitlines()
    assert said[0].startswith("n-2 does not answer: it is frozen")
    assert said[1:] == [
        "there is no node 'n-1'; trying again",
        "many requests for logs are answered already; trying again",
        "n-1 was restarted: its log starts over",
        "n-2 no longer keeps 3 lines of its log",
    ]
    assert "\x1b" not in followed.stderr


def test_following_a_job_ends_when_it_was_dropped(follow: Run, operator: FakeOperator) -> None:
    for gone in (JobNotFound("there is no job 'a'"), TableNotFound("there is no table '/t'")):
        operator.logs = [[a_page("a")], gone]
        followed = follow("job", "logs", "/t", "a", polls=4)
        assert (followed.exit_code, followed.stderr) == (0, "the job was dropped: no more lines are about it\n")
        assert operator.logs == []


def test_what_cannot_be_is_refused(run: Run, operator: FakeOperator) -> None:
    operator.logs = []
    unknown = run("node", "logs", "n-9")
    assert unknown.exit_code == 1
    assert "there is no node 'n-9'" in unknown.stderr
    assert run("node", "logs", "n-1", "--tail", str(LINES_MAX + 1)).exit_code == 2
    assert run("node", "logs", "n-1", "--level", "loud").exit_code == 2
    assert operator.queries == []


class Slow(FakeOperator):
    """Answers no request for logs until it is `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.asking, self.released = threading.Semaphore(0), threading.Event()

    def node_logs(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        self.asking.release()
        assert self.released.wait(WAIT_S)
        return [LogPage(node_id)]


def test_those_who_read_logs_at_a_time_are_bounded_and_others_are_answered() -> None:
    slow = Slow()
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[OperatorServer(slow)])
    server.start()
    with Client(server.address) as client, ThreadPoolExecutor(LOG_CALLS_MAX) as pool:
        reading = [pool.submit(client.operator.node_logs, "n-1") for _ in range(LOG_CALLS_MAX)]
        for _ in reading:
            assert slow.asking.acquire(timeout=WAIT_S)
        with pytest.raises(QueueFull, match=f"{LOG_CALLS_MAX} requests for logs"):
            client.operator.node_logs("n-1")
        assert client.operator.placement()
        slow.released.set()
        assert [each.result(WAIT_S) for each in reading] == [[LogPage("n-1")]] * LOG_CALLS_MAX
        assert client.operator.node_logs("n-1") == [LogPage("n-1")]
    server.stop(grace_s=0)


NOW_S = 1_000_000.0
ENDED_S = 999_900.0


ENDING = JobStatus(deletion=Deletion.WANTED)


def a_job(trigger: dict[str, Any] | None = None, **fields: Any) -> JobView:
    spec = {"iteration": {"consumer": {"kind": "replica", "target": "/copy"}}}
    given: dict[str, Any] = {
        "account": "default",
        "table_id": "t-1",
        "table": "/t",
        "name": "a",
        "job_id": "j",
        "spec_json": json.dumps(spec | ({"trigger": trigger} if trigger else {})),
        "state": JobState.COMPLETED,
        "reason": Reason.NONE,
        "applied_version": 7,
        "applied_at_s": ENDED_S,
        "source_version": 7,
        "checked_at_s": NOW_S,
        "lag_s": 0.0,
        "seq": 1,
        "status": JobStatus(end_at_s=ENDED_S),
        "create_at_s": 0.0,
        "node_id": "n-1",
    }
    return JobView(**given | fields)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (a_job(reason=Reason.PAUSED, state=JobState.ERROR), "not before `iscp-admin job resume`: the job is paused"),
        (a_job(reason=Reason.PAUSED, status=ENDING), "its target is being deleted"),
        (a_job(reason=Reason.PAUSED, status=ENDING, state=JobState.ERROR), "its target was not deleted"),
        (a_job(state=JobState.RUNNING), "an iteration is running"),
        (a_job(state=JobState.PENDING), "an iteration is queued"),
        (a_job(state=JobState.PENDING, reason=Reason.BUILDING), "when the ranges of its first snapshot are built"),
        (a_job(state=JobState.ERROR, status=JobStatus(error_code=10_001)), "the error is permanent"),
        (a_job(state=JobState.ERROR, reason=Reason.QUARANTINED), "backoff.quarantine_s"),
        (a_job(state=JobState.ERROR, reason=Reason.RETRYING), "a retry with growing pauses"),
        (
            a_job(reason=Reason.RETRYING, status=JobStatus(failures=3, retry_at_s=NOW_S + 12)),
            "(in 12.0 s), after 3 failures in a row; `iscp-admin job resume` retries now",
        ),
        (
            a_job(reason=Reason.QUARANTINED, status=JobStatus(failures=1, retry_at_s=NOW_S - 1)),
            "due now, after 1 failure; ",
        ),
        (a_job(node_id=""), "when a node has been given the table"),
        (a_job(applied_version=-1), "at once: the first iteration"),
        (a_job(), "at the source's next commit after 7, together with"),
        (a_job(source_version=8), "now, as the source is ahead, together with"),
        (a_job({"job_type": "greedy"}), "of its own (trigger greedy)"),
        (a_job({"job_type": "custom", "name": "nightly"}), "when the trigger 'nightly' says so"),
        (
            a_job(status=JobStatus(waits_for="b (of t)", waits_until_s=NOW_S + 5), source_version=8),
            "at 1970-01-12 13:46:45Z at the latest; it waits for b (of t)",
        ),
        (a_job(status=JobStatus(due_at_s=NOW_S + 60)), "; and at 1970-01-12 13:47:40Z as time passes"),
        (a_job(status=JobStatus(due_at_s=NOW_S - 60)), "; and as time passes, on which its rows depend"),
    ],
)
def test_each_state_and_trigger_has_its_sentence(job: JobView, words: str) -> None:
    assert words in next_start(job, NOW_S)


@pytest.mark.parametrize(
    ("schedule", "source_version", "words"),
    [
        ({"interval": 600}, 8, "at 1970-01-12 13:55:00Z (trigger periodic, every 600.0 s)"),
        ({"interval": 600}, 7, "not before 1970-01-12 13:55:00Z"),
        ({"interval": 60}, 8, "now (trigger periodic"),
        ({"cron": "0 0 18 * * ?", "time_zone": "Asia/Tokyo"}, 8, "at 1970-01-13 09:00:00Z (trigger periodic, by cron"),
        ({"cron": "0 0 18 * * ?"}, 7, "at 1970-01-12 18:00:00Z, if the source is ahead by then"),
        ({"interval": 60}, 7, "at the source's next commit"),
        ({"interval": 600, "share": True}, 8, "at 1970-01-12 13:50:00Z (trigger periodic, every 600.0 s, together"),
    ],
)
def test_a_period_counts_from_the_last_iteration_or_goes_by_the_clock(
    schedule: dict[str, Any], source_version: int, words: str
) -> None:
    job = a_job({"job_type": "periodic", "schedule": schedule}, source_version=source_version)
    assert words in next_start(job, NOW_S)


def test_a_doubtful_target_is_warned_of() -> None:
    assert warnings_of(a_job(), []) == []
    (warning,) = warnings_of(a_job(status=JobStatus(doubted_at_s=ENDED_S)), [])
    assert warning.startswith("whether the target holds what was applied to it is not known since 1970-01-12")
