"""`iscp feed` on a real table, and on a real etcd where it needs one."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from iscp import changefeed
from iscp.changefeed import Changefeed
from iscp.changefeed.etcd.locks import EtcdFeedLocks
from iscp.changefeed.model.lock_queue import Incidents
from iscp.cli.iscp import iscp
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.server import EtcdServer
from iscp.system.threads import SystemClock

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EtcdServer.start(tmp_path_factory.mktemp("etcd"), clock=SystemClock())
    yield server.endpoint
    server.stop()


@pytest.fixture
def feed(tmp_path: Path, etcd: str) -> Iterator[Changefeed]:
    changefeed.create(tmp_path / "feed", SCHEMA, shards=2, key=["id"])
    with changefeed.open(tmp_path / "feed", etcd) as feed:
        for number in range(4):
            feed.append(number % 2, [{"id": number, "name": f"n{number}"}])
        yield feed


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(iscp, ["feed", *arguments])


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = ran(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_tail_gives_changes_and_the_cursor_to_go_on_from(feed: Changefeed) -> None:
    *changes, end = lines("tail", feed.uri, "--limit", "3")
    assert [change["row"]["id"] for change in changes] == [0, 1, 2]
    assert changes[1] == {
        "ulid": changes[1]["ulid"],
        "shard": 1,
        "key": {"id": 1},
        "operation": "insert",
        "version": None,
        "net": False,
        "row": {"id": 1, "name": "n1"},
    }
    *changes, end = lines("tail", feed.uri, "--from", json.dumps(end["cursor"]))
    assert [change["row"]["id"] for change in changes] == [3]
    assert end["cursor"] == json.loads(feed.last_cursor().text)
    assert lines("tail", feed.uri, "--from", json.dumps(end["cursor"])) == [end]


def test_tail_begins_behind_a_stored_cursor(feed: Changefeed, etcd: str) -> None:
    feed.cursors.store("billing", feed.read(limit=2).cursor, None)
    *changes, _ = lines("tail", feed.uri, "--from", "@billing", "--etcd", etcd)
    assert [change["row"]["id"] for change in changes] == [2, 3]


def test_tail_as_text_has_a_line_for_each_change(feed: Changefeed) -> None:
    *changes, cursor = ran("tail", feed.uri).output.splitlines()
    assert len(changes) == 4
    assert changes[2].endswith('insert           {"id": 2, "name": "n2"}')
    assert changes[2].split()[2:4] == ["0", feed.read(limit=3).rows["ulid_text"][2].as_py()]
    assert cursor == feed.last_cursor().text


def test_tail_follows_until_it_has_as_many_as_were_requested(feed: Changefeed) -> None:
    *changes, _ = lines("tail", feed.uri, "--follow", "--limit", "4")
    assert len(changes) == 4


def test_values_that_json_does_not_have_are_reported_as_text(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("sum", pa.decimal128(10, 2)),
            ("raw", pa.binary()),
            ("part", pa.float64()),
            ("list", pa.list_(pa.struct([("a", pa.int64())]))),
        ]
    )
    changefeed.create(tmp_path / "feed", schema)
    with changefeed.open(tmp_path / "feed") as feed:
        row = {
            "at": at,
            "day": at.date(),
            "sum": Decimal("1.50"),
            "raw": b"\xff",
            "part": float("nan"),
            "list": [{"a": 1}],
        }
        feed.append(0, [row])
    change, _ = lines("tail", str(tmp_path / "feed"))
    assert change["row"] == {
        "at": "2026-01-02T03:04:05+00:00",
        "day": "2026-01-02",
        "sum": "1.50",
        "raw": "/w==",
        "part": "nan",
        "list": [{"a": 1}],
    }


def test_cursors_are_listed(feed: Changefeed, etcd: str) -> None:
    for name in ("search", "billing"):
        feed.cursors.store(name, feed.last_cursor(), None)
    found = lines("cursors", feed.uri, "--etcd", etcd)
    assert [each["name"] for each in found] == ["billing", "search"]
    assert found[0]["cursor"] == json.loads(feed.last_cursor().text)
    heading, first, _ = ran("cursors", feed.uri, "--etcd", etcd).output.splitlines()
    assert heading.split() == ["NAME", "STORED", "CURSOR"]
    assert first.startswith("billing")


def test_incidents_are_listed_by_shard(feed: Changefeed, etcd: str) -> None:
    clock = SystemClock()
    with (
        EtcdClient(EtcdSettings((etcd,)), clock) as client,
        EtcdFeedLocks(client, Keys("/p"), clock, name="finder") as locks,
    ):
        for shard in ("1", "0"):
            locks.raise_incidents(feed.feed_id, shard, Incidents())
    found = lines("incidents", feed.uri, "--etcd", etcd, "--prefix", "/p")
    assert [(each["shard"], each["count"], each["raised_by"]) for each in found] == [(0, 1, "finder"), (1, 1, "finder")]
    assert "finder" in ran("incidents", feed.uri, "--etcd", etcd, "--prefix", "/p").output
    assert lines("incidents", feed.uri, "--etcd", etcd) == []


def test_purge_shows_first_and_takes_away_then(feed: Changefeed, etcd: str) -> None:
    (would,) = lines("purge", feed.uri, "--older-than", "0s", "--dry-run")
    assert (would["files"], would["rows"], would["dry_run"]) == (4, 4, True)
    assert len(lines("tail", feed.uri)) == 5
    assert lines("purge", feed.uri, "--older-than", "7d")[0]["files"] == 0
    assert lines("purge", feed.uri, "--older-than", "0s", "--behind-cursors", "--etcd", etcd)[0]["files"] == 0
    assert ran("purge", feed.uri, "--older-than", "0s").output.startswith("4 rows in 4 files are gone\n")
    (end,) = lines("tail", feed.uri)
    assert end["cursor"] == would["first_cursor"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("tail",), "Missing argument"),
        (("tail", "F", "--limit", "0"), "x>=1"),
        (("tail", "F", "--from", "@billing"), "needs --etcd"),
        (("purge", "F"), "--older-than"),
        (("purge", "F", "--older-than", "soon"), "is not a duration"),
        (("purge", "F", "--behind-cursors"), "needs --etcd"),
        (("incidents", "F"), "--etcd"),
        (("cursors", "F"), "--etcd"),
    ],
)
def test_wrong_usage_is_reported(feed: Changefeed, arguments: tuple[str, ...], complaint: str) -> None:
    result = ran(*(feed.uri if argument == "F" else argument for argument in arguments))
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize("start", ["nonsense", "{}", "@unknown"])
def test_a_beginning_that_is_none_is_refused_with_the_remedy(feed: Changefeed, etcd: str, start: str) -> None:
    result = ran("tail", feed.uri, "--from", start, "--etcd", etcd)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "\n  remedy: " in result.stderr


def test_an_etcd_that_is_away_is_named_before_anything_waits_for_it(feed: Changefeed) -> None:
    away = ran("cursors", feed.uri, "--etcd", "127.0.0.1:1")
    assert away.exit_code == 1
    assert away.stderr.startswith("error: etcd at 127.0.0.1:1 does not answer within 3 s\n  field: --etcd\n  remedy: ")
