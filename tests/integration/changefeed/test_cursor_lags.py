"""How far stored cursors are behind, of real feeds and in a real etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iscp.changefeed import Changefeed, Cursor
from iscp.changefeed.client.reader import CursorLags, cursor_lag_s
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import DEFAULT_PREFIX, EtcdSettings, Keys
from iscp.model.values.errors import ConfigurationError
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

from .conftest import row

Opened = Callable[..., Changefeed]
ULID_0, ULID_5, ULID_9 = ("01ARZ3NDEK" + "0" * 16, "01ARZ3NDEQ" + "0" * 16, "01ARZ3NDEV" + "0" * 16)
"""Three ulids whose times are 0, 3 and 7 milliseconds after the first."""


@pytest.fixture
def lags(etcd: str) -> Iterator[CursorLags]:
    clock = SystemClock()
    client = EtcdClient(EtcdSettings((etcd,)), clock)
    yield CursorLags(client, Keys(DEFAULT_PREFIX), clock, EnvironmentFailpoints())
    client.close()


def test_a_cursor_is_behind_by_the_time_between_its_row_and_the_newest(
    opened: Opened, etcd: str, uri: str, lags: CursorLags
) -> None:
    feed = opened(etcd)
    assert lags.read(uri) == {}
    feed.append(0, [row(1)])
    first = feed.last_cursor()
    feed.cursors.store("slow", first, None)
    assert lags.read(uri) == {"slow": 0.0}
    for number in range(2, 5):
        feed.append(0, [row(number)])
    feed.cursors.store("fast", feed.last_cursor(), None)
    feed.cursors.store("new", Cursor(feed.feed_id), None)
    found = lags.read(uri)
    assert found.keys() == {"slow", "fast"}  # one that has read nothing is behind by nobody knows how much
    expected = cursor_lag_s(first, dict(feed.last_cursor().items()))
    assert found == {"slow": expected, "fast": 0.0}


def test_a_place_without_a_feed_has_none_and_a_table_that_is_no_feed_is_refused(
    tmp_path: Path, lags: CursorLags
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    assert lags.read(str(tmp_path / "none")) == {}
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    with pytest.raises(ConfigurationError):
        lags.read(str(tmp_path / "t"))


def test_the_shard_that_is_furthest_behind_counts() -> None:
    newest = {0: ULID_9, 1: ULID_5}
    assert cursor_lag_s(Cursor("f", newest), newest) == 0.0
    assert cursor_lag_s(Cursor("f", {0: ULID_9, 1: ULID_0}), newest) == pytest.approx(0.004)
    assert cursor_lag_s(Cursor("f", {0: ULID_0, 1: ULID_0}), newest) == pytest.approx(0.008)
    assert cursor_lag_s(Cursor("f", {1: ULID_5}), newest) == pytest.approx(0.004)  # shard 0 is not begun
    assert cursor_lag_s(Cursor("f"), newest) is None
    assert cursor_lag_s(Cursor("f"), {}) == 0.0
