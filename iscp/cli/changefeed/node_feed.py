"""`iscp-admin feed tail`: the changes of a job's feed, read by a node."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from iscp.changefeed.model.ulid import Cursor
from iscp.cli.changefeed.changefeed_commands import show_change, show_cursor
from iscp.cli.shell.arguments import WholeNumber, account_option, invocation, job_arguments
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import options_named
from iscp.cli.shell.terminal import say
from iscp.model.api.api_requests import CHANGES, ChangePage, JobName
from iscp.model.values.errors import TemporaryError

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

FOLLOW_WAIT_S = 20.0
"""Seconds that a call of `feed tail --follow` waits at the node for changes; then another one follows it."""

AGAIN_S = 1.0
"""Pause of `feed tail --follow` after a fault that passes; then the node is called again."""


@click.group(name="feed")
def node_feed() -> None:
    """See the changes that a job's changefeed holds."""


@node_feed.command()
@job_arguments
@click.option("--from", "start", metavar="CURSOR", default="", help="Begin behind this: a cursor's JSON.")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="Stop after N changes; not given: none.")
@click.option("-f", "--follow", is_flag=True, help="Go on as they come, until Ctrl-C.")
@account_option
@invocation
def tail(
    invocation: Invocation,
    /,
    table: str,
    name: str,
    account: str,
    start: str,
    limit: int | None,
    follow: bool,
) -> None:
    """Show the changes of the feed that job N of table T writes, in order; after each page, the cursor to go on from.

    A node reads the feed. Where it can be read from this machine, `iscp feed tail URI` needs no node. With `-o json`
    one object a line: a change, or {"cursor": ...}.
    """
    shown = ShownFeed(invocation.output, start)
    with options_named(own={"cursor": "--from"}), invocation.client() as client, suppress(BrokenPipeError):
        try:
            for page in _pages(invocation, client, JobName(table, name, account), start, limit, follow):
                shown.show(page)
        except KeyboardInterrupt:
            shown.end()
            raise


def _pages(
    invocation: Invocation, client: Client, job: JobName, cursor: str, limit: int | None, follow: bool
) -> Iterator[ChangePage]:
    """Yield as many pages as there are, or without end; the first one also without changes, for its cursor.

    Once there was one, whoever follows is not let go by a fault that passes, as of a node that restarts.
    """
    left, first, said = math.inf if limit is None else limit, True, ""
    while left > 0:
        wait_s, most = FOLLOW_WAIT_S if follow and not first else 0.0, int(min(left, CHANGES))
        try:
            page = client.feeds.read(job.table, job.name, cursor, limit=most, wait_s=wait_s, account=job.account)
        except TemporaryError as error:
            if first or not follow:
                raise
            if error.sentence != said:
                said = error.sentence
                say(f"{said}; trying again", err=True)
            invocation.pause(AGAIN_S)
            continue
        said = ""
        if page.changes or first:
            yield page
        elif not follow:
            return
        left -= len(page.changes)
        cursor, first = page.cursor, False


class ShownFeed:
    """Shows pages, and knows behind which change it was interrupted."""

    def __init__(self, output: str, start: str) -> None:
        self._output = output
        self._cursor = start
        self._since: dict[int, str] = {}
        self._feed = ""

    def show(self, page: ChangePage) -> None:
        self._feed = Cursor.parse(page.cursor).feed if page.cursor else ""
        for change in page.changes:
            row: dict[str, Any] = dataclasses.asdict(change)
            if not row["key"]:
                del row["key"]  # the feed has none
            show_change(row, self._output)
            self._since[change.shard] = change.ulid
        self._cursor, self._since = page.cursor, {}
        if page.cursor:  # else the job has not begun its feed
            show_cursor(page.cursor, self._output)

    def end(self) -> None:
        """Show the cursor behind what was shown, unless it is the last line already."""
        if self._since:
            before = json.loads(self._cursor)["shards"] if self._cursor else {}
            reached = {**{int(shard): ulid for shard, ulid in before.items()}, **self._since}
            show_cursor(Cursor(self._feed, reached).text, self._output)
