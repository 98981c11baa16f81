"""Everything that leaves a changefeed is one of `iscp.errors`, and a refused request leaves nothing on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from iscp import changefeed, errors

NOWHERE = "127.0.0.1:1"
SCHEMA = pa.schema([("id", pa.int64()), ("state", pa.string())])
ROWS = [{"id": 1, "state": "new"}]

ODD: tuple[Any, ...] = (
    *("", "\0", "\ud800", "nowhere", b"x", 5, -1, 1 << 70, 1.5, math.nan, math.inf, True, None),
    *(["a"], [5], {}, (), ("id", "down"), object()),
)


def leaks(call: Callable[[Any], object]) -> list[str]:
    """What a call raises that is none of iscp's errors, by the value that made it do so."""
    found = []
    for value in ODD:
        try:
            call(value)
        except errors.IscpError:
            pass
        except Exception as error:  # noqa: BLE001  (that is what is searched for)
            found.append(f"{value!r}: {type(error).__name__}: {error}")
    return found


def or_zero(value: Any) -> Any:
    """None would be no wrong value, and go to etcd."""
    return 0 if value is None else value


@pytest.fixture
def uri(tmp_path: Path) -> str:
    changefeed.create(tmp_path / "feed", SCHEMA, key=["id"], shards=2)
    return str(tmp_path / "feed")


@pytest.fixture
def feed(uri: str) -> Iterator[changefeed.Changefeed]:
    with changefeed.open(uri) as feed:
        yield feed


def test_no_odd_argument_of_create_raises_another_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = (str(tmp_path / f"feed{number}") for number in range(1_000))
    calls: dict[str, Callable[[Any], object]] = {
        "uri": lambda value: changefeed.create(value, SCHEMA),
        "schema": lambda value: changefeed.create(next(places), value),
        "shards": lambda value: changefeed.create(next(places), SCHEMA, shards=value),
        "key": lambda value: changefeed.create(next(places), SCHEMA, key=value),
    }
    assert {name: found for name, call in calls.items() if (found := leaks(call))} == {}
    assert not (tmp_path / "_delta_log").exists()


def test_no_odd_argument_of_open_raises_another_error(uri: str) -> None:
    def opening(name: str) -> Callable[[Any], None]:
        def open_with(value: Any) -> None:
            changefeed.open(**{"uri": uri, "etcd": NOWHERE, name: value}).close()

        return open_with

    for name in ("uri", "etcd", "etcd_prefix", "timeout_s", "wait_max_s", "name"):
        assert leaks(opening(name)) == [], name


def test_no_odd_argument_of_a_feed_raises_another_error(feed: changefeed.Changefeed) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "transaction(shard)": lambda value: feed.transaction(value),
        "append(shard)": lambda value: feed.append(value, ROWS),
        "append(rows)": lambda value: feed.append(0, value),
        "append([row])": lambda value: feed.append(0, [value]),
        "append(id)": lambda value: feed.append(0, [{"id": value, "state": "new"}]),
        "append(state)": lambda value: feed.append(0, [{"id": 1, "state": value}]),
        "append(order_by)": lambda value: feed.append(0, ROWS, value),
        "append(operation)": lambda value: feed.append(0, ROWS, (), value),
        "read(cursor)": lambda value: feed.read(value),
        "read(limit)": lambda value: feed.read(None, value),
        "read(Cursor)": lambda value: feed.read(changefeed.Cursor(value, value)),
        "follow(cursor)": lambda value: feed.follow(value),
        "follow(limit)": lambda value: feed.follow(None, value),
        "follow(poll_s)": lambda value: feed.follow(None, poll_s=value),
        "follow(stop)": lambda value: feed.follow(None, stop=value),
        "purge(older_than_s)": lambda value: feed.purge(value),
        "purge(behind_cursors)": lambda value: feed.purge(None, value),
        "Cursor.of": lambda value: changefeed.Cursor.of(value),
    }
    assert {name: found for name, call in calls.items() if (found := leaks(call))} == {}


def test_what_is_misused_raises_errors_of_iscp(feed: changefeed.Changefeed) -> None:
    transaction = feed.transaction(0)
    with pytest.raises(errors.InvalidRequest, match="has not begun"):
        transaction.append(ROWS)
    with transaction:
        transaction.append(ROWS)
    with pytest.raises(errors.InvalidRequest, match="was used before"), transaction:
        pass
    of_etcd: tuple[Callable[[], object], ...] = (lambda: feed.cursors, feed.incidents)
    for call in of_etcd:
        with pytest.raises(errors.ConfigurationError, match="without etcd"):
            call()
    feed.close()
    all_of_it: tuple[Callable[[], object], ...] = (feed.read, feed.first_cursor, lambda: feed.append(0, ROWS))
    for call in (*all_of_it, lambda: feed.purge(1.0)):
        with pytest.raises(errors.InvalidRequest, match="closed"):
            call()


def test_no_odd_argument_of_stored_cursors_raises_another_error(uri: str) -> None:
    """None of these reaches etcd, which is not there."""
    with changefeed.open(uri, etcd=NOWHERE) as feed:
        here, cursors = feed.last_cursor(), feed.cursors
        calls: dict[str, Callable[[Any], object]] = {
            "store(cursor)": lambda value: cursors.store("a", value, None),
            "store(expected)": lambda value: cursors.store("a", here, or_zero(value)),
            "delete(expected)": lambda value: cursors.delete("a", or_zero(value)),
        }
        assert {name: found for name, call in calls.items() if (found := leaks(call))} == {}
        names: tuple[Any, ...] = ("", "\0", "a/b", 5, None, b"x", [])
        for given in names:
            with pytest.raises(errors.InvalidRequest):
                cursors.get(given)


@pytest.mark.parametrize("path", ["/lake/a\0b", "/lake/\ud800"])
def test_a_path_that_no_file_has_is_refused_and_ends_no_process(path: str) -> None:
    """Arrow aborts the process at a NUL in the path of a file."""
    for call in (lambda: changefeed.create(path, SCHEMA), lambda: changefeed.open(path)):
        with pytest.raises(errors.InvalidRequest):
            call()


def test_a_feed_is_not_made_where_its_directory_is_missing(tmp_path: Path) -> None:
    """What is missing may be a volume that is not mounted; a file in its place is no directory either."""
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "missing" / "feed", tmp_path / "missing" / "below" / "feed", tmp_path / "file" / "feed"):
        with pytest.raises(errors.InvalidRequest) as refused:
            changefeed.create(place, SCHEMA)
        assert str(refused.value) == (
            f"uri is to lie in {place.parent}, which is not there. "
            "Create that directory, or mount its file system; check the path"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_text_is_no_list_of_key_columns(tmp_path: Path) -> None:
    """Its letters would be columns where a feed has such."""
    with pytest.raises(errors.InvalidRequest, match="a text and no list") as refused:
        changefeed.create(tmp_path / "feed", pa.schema([("i", pa.int64()), ("d", pa.int64())]), key="id")
    assert (refused.value.field, refused.value.remedy) == ("key", "Write it as in key=['id']")
    assert list(tmp_path.iterdir()) == []
