"""`node logs` and `job logs` against a real server whose services are faked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner, Result

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.grpc.admin.operator_server import LOG_CALLS_MAX, OperatorServer
from iscp.cli.iscp_admin import cli
from iscp.cli.job.show_logs import FOLLOW_EVERY_S, TAIL
from iscp.cli.shell.invocation import Invocation
from iscp.client.admin_client import Client
from iscp.core.api.api_requests import JobName
from iscp.core.api.log_lines import LINES_MAX, LogLine, LogPage, LogPlace, LogQuery
from iscp.core.settings.config import LogLevel
from iscp.core.values.errors import InvalidRequest, JobNotFound, QueueFull, TableNotFound
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
