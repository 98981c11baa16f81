"""`iscp-admin feed tail`: the changes of a job's feed, of a real table, by a node without Spark."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iscp.changefeed import Changefeed
from iscp.cli.changefeed.node_feed import ShownFeed
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.cli.shell.program_end import restore_answers
from iscp.cli.shell.root_group import ExitStatus
from iscp.model.api.api_requests import ChangePage, FeedChange
from iscp.model.values.errors import StorageError
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.job_feeds import NAME, TABLE, append, create, feed_server, register


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Changefeed]:
    with create(tmp_path / "feed") as feed:
        append(feed, *range(4))
        yield feed


@pytest.fixture
def admin(tmp_path: Path) -> FakeAdmin:
    admin = FakeAdmin()
    register(admin, tmp_path / "feed")
    register(admin, tmp_path / "not-begun", name="fresh")
    register(admin, tmp_path / "copy", kind="replica", name="copy")
    return admin


@pytest.fixture
def endpoint(admin: FakeAdmin) -> Iterator[str]:
    server = AdminServer(admin, "127.0.0.1:0", services=[feed_server(admin)])
    server.start()
    yield server.address
    server.stop(grace_s=0)


def ran(endpoint: str, *arguments: str, name: str = NAME) -> Result:
    line = ["feed", "tail", TABLE, name, "--account", "acme", "--endpoint", endpoint, *arguments]
    return CliRunner().invoke(cli, line)


def lines(endpoint: str, *arguments: str) -> list[dict[str, Any]]:
    result = ran(endpoint, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_node_gives_what_the_feed_itself_gives(feed: Changefeed, endpoint: str) -> None:
    direct = CliRunner().invoke(iscp, ["feed", "tail", feed.uri, "-o", "json"])
    assert lines(endpoint) == [json.loads(line) for line in direct.stdout.splitlines()]
    as_text = CliRunner().invoke(iscp, ["feed", "tail", feed.uri])
    assert ran(endpoint).stdout == as_text.stdout


def test_it_goes_on_from_the_cursor_that_it_has_shown(feed: Changefeed, endpoint: str) -> None:
    *changes, end = lines(endpoint, "--limit", "3")
    assert [change["row"]["id"] for change in changes] == [0, 1, 2]
    *changes, end = lines(endpoint, "--from", json.dumps(end["cursor"]))
    assert [change["row"]["id"] for change in changes] == [3]
    assert lines(endpoint, "--from", json.dumps(end["cursor"])) == [end]


def test_it_follows_what_comes_until_it_has_as_many_as_were_requested(feed: Changefeed, endpoint: str) -> None:
    later = threading.Timer(0.3, append, (feed, 4))
    later.start()
    shown = lines(endpoint, "-f", "--limit", "5")
    later.join()
    assert [line["row"]["id"] for line in shown if "row" in line] == [0, 1, 2, 3, 4]


def test_whoever_follows_outlasts_faults_that_pass(feed: Changefeed, admin: FakeAdmin, endpoint: str) -> None:
    def fail(verb: str) -> None:
        if admin.asked[verb] in (2, 3):
            raise StorageError("the disk is away")
        if admin.asked[verb] == 4:
            append(feed, 4)

    admin.before = fail
    result = ran(endpoint, "-f", "--limit", "5")
    assert result.exit_code == 0
    assert result.stderr == "the disk is away; trying again\n"
    assert result.stdout.splitlines()[-2].endswith('{"id": 4, "name": "n4"}')


def test_a_fault_that_passes_ends_what_does_not_follow(feed: Changefeed, admin: FakeAdmin, endpoint: str) -> None:
    admin.failures = [StorageError("the disk is away")]
    result = ran(endpoint)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the disk is away" in result.stderr


def test_ctrl_c_ends_it_with_the_cursor_behind_what_was_shown(
    feed: Changefeed, admin: FakeAdmin, endpoint: str
) -> None:
    def interrupt(verb: str) -> None:
        if admin.asked[verb] == 2:  # the first call has its answer
            signal.raise_signal(signal.SIGINT)

    admin.before = interrupt
    with restore_answers():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in what runs in the background
        result = ran(endpoint, "-f", "-o", "json")
    assert result.exit_code == ExitStatus.INTERRUPTED
    assert json.loads(result.stdout.splitlines()[-1]) == {"cursor": json.loads(feed.last_cursor().text)}


def test_ctrl_c_within_a_page_shows_the_cursor_behind_the_last_change(
    feed: Changefeed, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(tuple[FeedChange, ...]):
        """Changes of which the last one does not come to be shown."""

        def __iter__(self) -> Iterator[FeedChange]:
            yield from tuple(super().__iter__())[:2]
            raise KeyboardInterrupt

    before, rest = feed.read(limit=1), feed.read(limit=4).rows.to_pylist()[1:]
    changes = Interrupted(FeedChange(each["ulid_text"], each["shard"], "insert", each["row"]) for each in rest)
    shown = ShownFeed("json", before.cursor.text)
    with pytest.raises(KeyboardInterrupt):
        shown.show(ChangePage(changes, feed.last_cursor().text))
    shown.end()
    *_, end = capsys.readouterr().out.splitlines()
    assert json.loads(end) == {"cursor": json.loads(feed.read(limit=3).cursor.text)}


def test_a_job_that_has_not_begun_its_feed_shows_nothing(endpoint: str) -> None:
    result = ran(endpoint, name="fresh")
    assert (result.exit_code, result.output) == (0, "")


def test_refusals_name_what_was_typed_and_have_a_remedy(feed: Changefeed, endpoint: str) -> None:
    wrong = ran(endpoint, "--from", "nonsense")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "\n  field: --from\n  remedy: Give a cursor" in wrong.stderr
    copy = ran(endpoint, name="copy")
    assert copy.exit_code == 1
    assert "is of the kind replica, and writes no feed" in copy.stderr
    cursor = feed.read(limit=1).cursor.text
    feed.purge(older_than_s=0)
    behind = ran(endpoint, "--from", cursor)
    assert behind.exit_code == 1
    assert "were purged" in behind.stderr
    assert "remedy: Begin again from what is left" in behind.stderr
