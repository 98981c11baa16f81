"""`iscp-admin node logs` and `job logs`: lines of the nodes' logs, of one node or of one job, and those that follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import DURATION, WholeNumber, account_option, invocation, job_arguments, node_argument
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.core.api.api_requests import JobName
from iscp.core.api.log_lines import LINES_MAX, LogLine, LogPage, LogPlace
from iscp.core.settings.config import LogLevel
from iscp.core.values.errors import InvalidRequest, JobNotFound, TableNotFound, TemporaryError
from iscp.core.values.untrusted_values import escaped

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

F = TypeVar("F", bound=Callable[..., Any])
Places = Mapping[str, LogPlace]
Read = Callable[["Client", Places], Sequence[LogPage]]

FOLLOW_EVERY_S = 1.0
"""Pause between two requests of `logs --follow` for further lines; between them it holds nothing at any node."""

TAIL = 1_000
"""Lines of each node that `logs` shows where --tail does not say how many."""

_LEADING = frozenset({"time", "level", "event", "logger", "node", "exception"})
"""Fields that a line of text has in front, behind, or not at all, as a node's own log has it as text."""


def selecting_lines(command: F) -> F:
    """Give a command the options that say which lines of a log are shown."""
    for option in (
        click.option(
            "--level",
            type=click.Choice([level.value for level in LogLevel]),
            default=LogLevel.DEBUG.value,
            show_default=True,
            help="Only lines of this level or a worse one.",
        ),
        click.option(
            "--tail",
            type=WholeNumber(1, LINES_MAX),
            default=TAIL,
            show_default=True,
            help="How many lines.",
        ),
        click.option(
            "--since", "since_s", type=DURATION, default="0", help="Only lines of so long ago at most, as in 10m."
        ),
        click.option("-f", "--follow", is_flag=True, help="Go on with new lines as they come, until Ctrl-C."),
    ):
        command = option(command)
    return command


@click.command("logs")
@node_argument
@selecting_lines
@invocation
def node_logs(invocation: Invocation, /, node_id: str, follow: bool, tail: int, **wanted: Any) -> None:
    """Show the newest lines of node N's log; with `-o json` one object a line."""
    _Printer(invocation).run(
        lambda client, after: client.operator.node_logs(node_id, after=after, tail=tail, **wanted), tail, follow
    )


@click.command("logs")
@job_arguments
@selecting_lines
@account_option
@invocation
def job_logs(
    invocation: Invocation, /, table: str, name: str, account: str, follow: bool, tail: int, **wanted: Any
) -> None:
    """Show the newest lines of all nodes' logs that are about a job, or about its table and no other job."""
    show_lines_of_job(invocation, JobName(table, name, account), follow, tail, **wanted)


def show_lines_of_job(invocation: Invocation, job: JobName, follow: bool, tail: int, **wanted: Any) -> None:
    """Show what all nodes have logged of one job; `wanted` is what `selecting_lines` hands on besides."""
    _Printer(invocation, of_nodes=True).run(
        lambda client, after: client.operator.job_logs(
            job.table, job.name, account=job.account, after=after, tail=tail, **wanted
        ),
        tail,
        follow,
    )


class _Printer:
    """Lines go to stdout; what is missing, and why, to stderr, once."""

    def __init__(self, invocation: Invocation, *, of_nodes: bool = False) -> None:
        self._invocation = invocation
        self._of_nodes = of_nodes
        self._places: dict[str, LogPlace] = {}
        self._notices: dict[str, str] = {}

    def run(self, read: Read, tail: int, follow: bool) -> None:
        with self._invocation.client() as client:
            self._show(read(client, self._places), tail)
            try:
                while follow:
                    self._invocation.pause(FOLLOW_EVERY_S)
                    follow = self._go_on(client, read)
            except KeyboardInterrupt:
                return

    def _go_on(self, client: Client, read: Read) -> bool:
        """Show what is new, and return whether more lines may come."""
        try:
            pages = read(client, self._places)
        except (JobNotFound, TableNotFound):
            self._say("", "the job was dropped: no more lines are about it")
            return False
        except (TemporaryError, InvalidRequest) as error:  # the owner is changing, or the node is not back yet
            self._say("", f"{error.sentence}; trying again")
            return True
        self._notices.pop("", None)
        self._show(pages)
        return True

    def _show(self, pages: Sequence[LogPage], tail: int = 0) -> None:
        for page in pages:
            self._note(page)
        lines = sorted((line for page in pages for line in page.lines), key=lambda line: line.at_s)
        for line in lines[-tail:]:
            self._print(line)

    def _note(self, page: LogPage) -> None:
        if page.fault:
            self._say(page.node_id, f"{page.node_id} does not answer: {page.fault}")
            return
        self._notices.pop(page.node_id, None)
        self._places[page.node_id] = page.place
        if page.restarted:
            say(f"{page.node_id} was restarted: its log starts over", err=True)
        if page.lost:
            say(f"{page.node_id} no longer keeps {page.lost} lines of its log", err=True)

    def _say(self, subject: str, sentence: str) -> None:
        if self._notices.get(subject) != sentence:
            self._notices[subject] = sentence
            say(sentence, err=True)

    def _print(self, line: LogLine) -> None:
        fields = _fields(line.text)
        if not render.show_line(fields, self._invocation.output):
            for each in _text(fields, self._of_nodes):
                say(each)


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of a line, with nothing in them that a terminal obeys."""
    try:
        found = _clean(json.loads(text))
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"event": escaped(text)}


def _clean(value: Any) -> Any:
    match value:
        case str():
            return escaped(value)
        case list():
            return [_clean(each) for each in value]
        case dict():
            return {escaped(name): _clean(each) for name, each in value.items()}
        case _:
            return value


def _text(fields: Mapping[str, Any], of_nodes: bool) -> Iterable[str]:
    """Yield the line as a node writes its log as text, except that no field begins another line."""
    time, level = _one_line(fields.get("time", "")), _one_line(fields.get("level", ""))
    yield " ".join((time, f"{level:7}", *_event(fields, of_nodes)))
    for each in str(fields.get("exception", "")).splitlines():
        yield f"    {_one_line(each)}"


def _event(fields: Mapping[str, Any], of_nodes: bool) -> Iterable[str]:
    if of_nodes:
        yield _one_line(fields.get("node", ""))
    yield _one_line(fields.get("event", ""))
    for name, value in fields.items():
        if name not in _LEADING:
            yield f"{_one_line(name)}={_one_line(value)}"


def _one_line(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\n", "\\n").replace("\t", "\\t")
