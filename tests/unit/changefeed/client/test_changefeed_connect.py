"""What programs give to make and open a changefeed: refused by the argument's name before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from iscp.changefeed.client.changefeed import create, open_feed, settings_of
from iscp.etcd.keys import EtcdSettings
from iscp.model.settings.config import EtcdConfig
from iscp.model.values.errors import InvalidRequest, IscpError

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.mark.parametrize(
    ("address", "endpoints"),
    [
        ("h:1", ("h:1",)),
        ("h:1,http://i:2", ("h:1", "http://i:2")),
        (["https://h:1", "[::1]:2379"], ("https://h:1", "[::1]:2379")),
        (EtcdSettings(("h:1",), timeout_s=3.0), ("h:1",)),
    ],
)
def test_members_of_etcd_are_given_in_several_ways(address: Any, endpoints: tuple[str, ...]) -> None:
    assert settings_of(address).endpoints == endpoints
    assert settings_of(EtcdConfig(endpoints=endpoints)).endpoints == endpoints


@pytest.mark.parametrize(
    "address", ["", "h", "h:", "h:65536", "h:1,", ",h:1", [], ["h:1", 3], [""], 3, b"h:1", {"h:1"}]
)
def test_what_is_no_member_of_etcd_is_refused(address: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        settings_of(address)
    assert refused.value.field == "etcd"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"uri": 3}, "uri"),
        ({"uri": ""}, "uri"),
        ({"uri": "missing/feed"}, "uri"),
        ({"schema": {"id": "long"}}, "schema"),
        ({"schema": pa.schema([("a", pa.int64()), ("A", pa.int64())])}, "schema"),
        ({"schema": pa.schema([])}, "schema"),
        ({"schema": pa.schema([("d", pa.duration("s"))])}, "schema"),
        ({"schema": pa.schema([("t", pa.timestamp("ns"))])}, "schema"),
        ({"schema": pa.schema([("u", pa.uint64())])}, "schema"),
        ({"schema": pa.schema([("l", pa.list_(pa.field("e", pa.int64(), nullable=False)))])}, "schema"),
        ({"shards": 0}, "shards"),
        ({"shards": True}, "shards"),
        ({"shards": 1_025}, "shards"),
        ({"key": "id"}, "key"),
        ({"key": ["none"]}, "key"),
        ({"key": ["id", "id"]}, "key"),
    ],
)
def test_a_feed_that_cannot_be_is_refused_and_nothing_is_made(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    given = {"uri": tmp_path / "feed", "schema": SCHEMA} | change
    if given["uri"] == "missing/feed":
        given["uri"] = tmp_path / "missing" / "feed"
    with pytest.raises(InvalidRequest) as refused:
        create(given.pop("uri"), given.pop("schema"), **given)
    assert refused.value.field == field
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1.0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"wait_max_s": True}, "wait_max_s"),
        ({"wait_max_s": "1"}, "wait_max_s"),
        ({"name": 3}, "name"),
        ({"etcd_prefix": None}, "etcd_prefix"),
        ({"etcd": "h"}, "etcd"),
    ],
)
def test_what_a_feed_is_opened_with_is_refused_by_its_name(tmp_path: Path, given: dict[str, Any], field: str) -> None:
    create(tmp_path / "feed", SCHEMA)
    with pytest.raises(InvalidRequest) as refused:
        open_feed(tmp_path / "feed", **given)
    assert refused.value.field == field


def test_a_feed_is_made_once_and_opened_as_it_was_made(tmp_path: Path) -> None:
    create(tmp_path / "feed", SCHEMA, shards=3, key=["id"])
    with open_feed(str(tmp_path / "feed")) as feed:
        feed.append(2, [{"id": 1, "v": "x"}])
        assert feed.read().rows["row"].to_pylist() == [{"id": 1, "v": "x"}]
        with pytest.raises(InvalidRequest):
            feed.append(3, [{"id": 1, "v": "x"}])
    with pytest.raises(InvalidRequest, match="there is a table") as refused:
        create(tmp_path / "feed", SCHEMA)
    assert refused.value.field == "uri"
    with pytest.raises(IscpError):
        open_feed(tmp_path / "other")
