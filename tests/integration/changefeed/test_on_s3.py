"""What S3 may do to a writer of a changefeed: overwrite what is there, lose its answer, or not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from iscp import changefeed
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError, StorageError
from iscp.storage import files
from iscp.system.http_exchange import free_port
from tests.fakes.changefeed_program import ROWS, SCHEMA, rows_of
from tests.fakes.s3 import FakeS3, asking, s3_server

from .conftest import paths_below


@contextmanager
def store_with(fault: str, tmp_path: Path) -> Iterator[FakeS3]:
    server = FakeS3(free_port(), bucket="faulty")
    with s3_server(tmp_path / "log", server, fault=fault), asking(server):
        yield server


def test_a_store_that_overwrites_is_refused_before_a_feed_is_made(tmp_path: Path) -> None:
    with store_with("ignore-conditions", tmp_path) as server:
        uri = server.uri("feed")
        with pytest.raises(PermanentError, match="overwrites what is there") as refused:
            changefeed.create(uri, SCHEMA)
        assert (refused.value.field, refused.value.code) == ("uri", ErrorCode.SELF_TEST)
        assert "If-None-Match" in refused.value.remedy
        assert paths_below(uri) == set()


def test_nothing_is_appended_where_a_store_has_begun_to_overwrite(tmp_path: Path) -> None:
    """The feed was made when the store still obeyed conditional writes."""
    with store_with("", tmp_path) as server:
        uri = server.uri("feed")
        changefeed.create(uri, SCHEMA)
        held = {path: files.read(f"{uri}/{path}")[0] for path in paths_below(uri)}
    with store_with("ignore-conditions", tmp_path) as naive:
        for path, content in held.items():
            files.create(naive.uri(f"feed/{path}"), content)
        with changefeed.open(naive.uri("feed")) as feed, pytest.raises(PermanentError, match="overwrites"):
            feed.append(0, rows_of("a", 0))
        assert paths_below(uri) == set(held), "nothing of it is left"


def test_a_commit_whose_answer_is_lost_is_found_and_not_made_twice(tmp_path: Path) -> None:
    with store_with("lose-answers", tmp_path) as server:
        changefeed.create(server.uri("feed"), SCHEMA)
        with changefeed.open(server.uri("feed")) as feed:
            for number in range(3):
                feed.append(0, rows_of("a", number))
            assert len(feed.read().rows) == 3 * ROWS
        with pytest.raises(InvalidRequest, match="there is a table"):
            changefeed.create(server.uri("feed"), SCHEMA)


def test_a_store_that_is_gone_is_reported(tmp_path: Path) -> None:
    with store_with("", tmp_path) as server:
        uri = server.uri("feed")
        changefeed.create(uri, SCHEMA)
        feed = changefeed.open(uri)
    uses: list[Callable[[], object]] = [
        feed.read,
        lambda: feed.append(0, rows_of("a", 0)),
        lambda: changefeed.open(uri),
        lambda: changefeed.create(server.uri("other"), SCHEMA),
    ]
    with asking(server):
        for use in uses:
            with pytest.raises(StorageError):
                use()
