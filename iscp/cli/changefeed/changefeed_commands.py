"""The command group `iscp feed`: operators read a changefeed by these commands, and clean it up.

The commands use the feed's table and etcd themselves, and call no node. pyarrow and gRPC are loaded only where a
command needs them. The lines of changes and cursors are shared with the reader that reads a feed by a node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from iscp.changefeed.model.ulid import Cursor, parse_ulid, ulid_time_ms
from iscp.cli.shell import render
from iscp.cli.shell.arguments import DURATION, TABLE, WholeNumber, anywhere_output
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import say, table
from iscp.model.values.errors import InvalidRequest, Unavailable
from iscp.model.values.untrusted_values import json_value, one_line

if TYPE_CHECKING:
    from iscp.changefeed import Changefeed, Page


# --- changes and cursors as lines -------------------------------------------------------------------------------------
# The functions print the same lines whoever has read the feed: this process, or a node.


def show_change(shown: Mapping[str, Any], output: str) -> None:
    """Show the line of a change: `ulid`, `shard`, `operation`, `row` and so on, as JSON has their values."""
    if render.show_line(dict(shown), output):
        return
    moment = render.moment(ulid_time_ms(parse_ulid(shown["ulid"])) / 1000)
    what = json.dumps(shown["row"], ensure_ascii=False)
    say(f"{moment}  {shown['shard']:>4}  {shown['ulid']}  {one_line(shown['operation']):16} {what}")


def show_cursor(text: str, output: str) -> None:
    """Show the cursor to go on from, as what `--from` takes."""
    if not render.show_line({"cursor": json.loads(text)}, output):
        say(text)


# --- commands ---------------------------------------------------------------------------------------------------------

PAGE_ROWS = 1_000
"""Rows that `feed tail` reads at a time; it reads on until the limit."""

POLL_S = 0.1
"""Pause before `feed tail --follow` looks for new rows again."""

ETCD_ANSWER_S = 3.0
"""Seconds that etcd may take to say that it is there; then a `feed` command that needs it fails with Unavailable."""

ETCD_PREFIX = "/iscp"

_uri = click.argument("uri", type=TABLE, metavar="URI")
_prefix = click.option(
    "--prefix", default=ETCD_PREFIX, show_default=True, help="What all of the feed's keys in etcd begin with."
)
_etcd_needed = click.option("--etcd", metavar="HOST:PORT", required=True, help="etcd's members, with commas.")
_etcd = click.option("--etcd", metavar="HOST:PORT", help="etcd's members, with commas.")


@click.group()
def feed() -> None:
    """See the changes that a changefeed holds, and clean it up."""


@feed.command()
@_uri
@click.option("--from", "start", metavar="CURSOR", help="Begin behind this: a cursor's JSON, or @NAME of a stored one.")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="Stop after N rows; not given: none.")
@click.option("-f", "--follow", is_flag=True, help="Go on as they come, until Ctrl-C.")
@_etcd
@_prefix
@anywhere_output
def tail(
    invocation: Invocation,
    /,
    uri: str,
    start: str | None,
    limit: int | None,
    follow: bool,
    etcd: str | None,
    prefix: str,
) -> None:
    """Show the changes of the feed at URI, in order; after each page, the cursor to go on from.

    With `-o json` one object a line: a change, or {"cursor": ...}.
    """
    with _open_feed(uri, etcd, prefix) as changefeed, suppress(BrokenPipeError):
        cursor = _start(changefeed, start, etcd)
        for page in _pages(changefeed, cursor, limit, follow):
            for row in page.rows.to_pylist():
                # Without what all changes of a feed have in common.
                shown = {name: value for name, value in row.items() if name not in ("ulid", "ulid_text", "feed")}
                show_change({"ulid": row["ulid_text"], **json_value(shown)}, invocation.output)
            show_cursor(page.cursor.text, invocation.output)


@feed.command()
@_uri
@_etcd_needed
@_prefix
@anywhere_output
def incidents(invocation: Invocation, /, uri: str, etcd: str, prefix: str) -> None:
    """Show how many writers of each shard were found to be gone while they held the lock, and who found the last."""
    with _open_feed(uri, etcd, prefix) as changefeed:
        found = sorted(changefeed.incidents(), key=lambda each: int(each.shard))
    lines = [
        {"shard": int(each.shard), "count": each.count, "raised_at_s": each.raised_at_s, "raised_by": each.raised_by}
        for each in found
    ]
    if not _show_lines(lines, invocation):
        rows = [(each.shard, str(each.count), render.moment(each.raised_at_s), each.raised_by) for each in found]
        table(("SHARD", "INCIDENTS", "LAST", "FOUND BY"), rows)


@feed.command()
@_uri
@_etcd_needed
@_prefix
@anywhere_output
def cursors(invocation: Invocation, /, uri: str, etcd: str, prefix: str) -> None:
    """Show the cursors that readers have stored."""
    with _open_feed(uri, etcd, prefix) as changefeed:
        found = changefeed.cursors.list()
    lines = [
        {"name": each.name, "stored_at_s": each.stored_at_s, "cursor": json.loads(each.cursor.text)} for each in found
    ]
    if not _show_lines(lines, invocation):
        rows = [(each.name, render.moment(each.stored_at_s), each.cursor.text) for each in found]
        table(("NAME", "STORED", "CURSOR"), rows)


@feed.command()
@_uri
@click.option("--older-than", "older_than_s", type=DURATION, help="Rows may go that are older, as in 7d or 12h.")
@click.option("--behind-cursors", is_flag=True, help="Rows may go that are behind all stored cursors; needs --etcd.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@_etcd
@_prefix
@anywhere_output
def purge(
    invocation: Invocation,
    /,
    uri: str,
    older_than_s: float | None,
    behind_cursors: bool,
    dry_run: bool,
    etcd: str | None,
    prefix: str,
) -> None:
    """Take old changes out of the feed at URI, whole files at a time; a vacuum frees them.

    With both --older-than and --behind-cursors what goes has to be both.
    """
    if older_than_s is None and not behind_cursors:
        raise click.UsageError("Give --older-than, --behind-cursors or both")
    if behind_cursors and not etcd:
        raise click.UsageError("--behind-cursors needs --etcd")
    with _open_feed(uri, etcd, prefix) as changefeed:
        gone = changefeed.purge(older_than_s, behind_cursors, dry_run=dry_run)
    first = json.loads(gone.first_cursor.text)
    row = {"files": gone.files, "rows": gone.rows, "dry_run": dry_run, "first_cursor": first}
    if not render.show_line(row, invocation.output):
        say(f"{gone.rows} rows in {gone.files} files {'would go' if dry_run else 'are gone'}")
        say(gone.first_cursor.text)


def _open_feed(uri: str, etcd: str | None, prefix: str) -> Changefeed:
    from iscp import changefeed

    if etcd:
        _require_etcd(etcd)
    return changefeed.open(uri, etcd, etcd_prefix=prefix)


def _require_etcd(etcd: str) -> None:
    """Raises Unavailable: each of a feed's own calls would wait for its time and say it in gRPC's words."""
    from iscp.changefeed.client.changefeed import settings_of
    from iscp.etcd.client import EtcdClient
    from iscp.system.threads import SystemClock

    client = EtcdClient(settings_of(etcd), SystemClock())
    try:
        client.status(timeout_s=ETCD_ANSWER_S)
    except Unavailable as error:
        raise Unavailable(
            f"etcd at {etcd} does not answer within {ETCD_ANSWER_S:g} s",
            about="--etcd",
            remedy="See whether it runs there, or name another member",
        ) from error
    finally:
        client.close()


def _start(changefeed: Changefeed, start: str | None, etcd: str | None) -> Cursor | None:
    if start is None or not start.startswith("@"):
        return None if start is None else Cursor.parse(start)
    if not etcd:
        raise click.UsageError(f"--from {start} needs --etcd")
    stored = changefeed.cursors.get(start[1:])
    if stored is None:
        raise InvalidRequest(f"there is no cursor {start[1:]}", about="from", remedy="See `iscp feed cursors`")
    return stored.cursor


def _pages(changefeed: Changefeed, cursor: Cursor | None, limit: int | None, follow: bool) -> Iterator[Page]:
    """Yield as many pages as there are, or without end; one without rows if there is none at all, for its cursor."""
    left, first = math.inf if limit is None else limit, True
    while left > 0:
        page = changefeed.read(cursor, int(min(left, PAGE_ROWS)))
        if len(page.rows) or first:
            yield page
        elif follow:
            sleep(POLL_S)
        else:
            return
        left -= len(page.rows)
        cursor, first = page.cursor, False


def _show_lines(rows: Sequence[render.Row], invocation: Invocation) -> bool:
    """Show the rows line by line; False where a table is wanted."""
    return not invocation.for_people and all(render.show_line(row, invocation.output) for row in rows)
