"""Commits of targets say what the rows are made of; whatever else stands there says nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from iscp.adapters.delta.log.commit_origin import origin_of, read_origin
from iscp.adapters.delta.log.commits import Commit
from iscp.adapters.delta.sink.sink_position import tag_json
from iscp.adapters.delta.storage.action_paths import Reach
from iscp.core.values.watermark import NOTHING_APPLIED, SourceMark, Watermark
from iscp.ports.sink import CommitTag
from iscp.ports.source import CommitOrigin

TARGET = "/lake/r"
TAG = CommitTag(4, "job-1", "t-1", 2, Watermark(3, 5.0), 1, 6, "try", "tail", table_uri="/lake/t")
MARKS = {"/lake/t": SourceMark("t-1", Watermark(3, 5.0)), "/lake/u": SourceMark("u-1", Watermark(8, 6.0))}


def commit(metadata: str, *, seq: int | None = 4, changes: bool = False, metadata_id: str | None = None) -> Commit:
    return Commit(7, 9.0, "WRITE", seq, metadata, metadata_id, changes, False, None, 0)


def test_a_target_of_several_tables_names_them_all() -> None:
    found = origin_of(TARGET, commit(tag_json(replace(TAG, sources=MARKS)), changes=True))
    assert found == CommitOrigin(MARKS, changes_data=True)


def test_a_target_of_one_table_names_it() -> None:
    assert origin_of(TARGET, commit(tag_json(TAG))) == CommitOrigin({"/lake/t": MARKS["/lake/t"]}, changes_data=False)
    part = tag_json(replace(TAG, watermark=Watermark(3, 5.0, 1, 4)))
    assert origin_of(TARGET, commit(part)).sources["/lake/t"].watermark == Watermark(3, 5.0, 1, 4)


def test_a_commit_of_an_earlier_release_does_not_say_where_its_table_is() -> None:
    assert origin_of(TARGET, commit(tag_json(replace(TAG, table_uri="")))).sources == {"": MARKS["/lake/t"]}


def test_a_claim_says_nothing_of_the_rows_that_are_there() -> None:
    claim = replace(TAG, kind="claim", watermark=Watermark(NOTHING_APPLIED))
    assert origin_of(TARGET, commit(tag_json(claim))) == CommitOrigin({}, changes_data=False)


@pytest.mark.parametrize(
    "tag",
    [
        *("", "no JSON", "[]", "3", "{}", "null", "[" * 100_000),
        *({"to": 3}, {"to": "3", "at": 1.0, "source_id": "t"}, {"to": 3, "at": 1.0, "source_id": 7}),
        *({"sources": 7}, {"sources": {"/t": []}}, {"sources": {"/t": ["t", "x"]}}),
        {"to": 3, "at": 1.0, "source_id": "t", "table": 9},
    ],
)  # fmt: skip
def test_what_is_no_tag_says_nothing(tag: Any) -> None:
    text = tag if isinstance(tag, str) else json.dumps(tag)
    assert origin_of(TARGET, commit(text, changes=True)) == CommitOrigin({}, changes_data=True)


def test_a_commit_of_others_says_whether_it_has_rows_or_metadata() -> None:
    assert origin_of(TARGET, commit(tag_json(TAG), seq=None)) == CommitOrigin({}, changes_data=False)
    assert origin_of(TARGET, commit("", seq=None, changes=True)) == CommitOrigin({}, changes_data=True)
    assert origin_of(TARGET, commit("", seq=None, metadata_id="t-1")) == CommitOrigin({}, changes_data=True)


def test_a_commit_that_is_gone_has_no_origin(tmp_path: Any) -> None:
    assert read_origin(str(tmp_path), 0) is None


@pytest.mark.parametrize(
    ("source", "followed"),
    [
        *(("/lake/t", True), ("/lake/a/../t", False), ("/other/t", False), ("s3://lake/t", False), ("t", False)),
        *(("/lake/%2e%2e/other/t", False), ("file:///other/t", False), ("http://host/t", False), ("/lake", False)),
    ],
)
def test_a_commit_names_no_place_that_is_read_but_those_of_its_tables_account(source: str, followed: bool) -> None:
    tag = tag_json(replace(TAG, sources={source: MARKS["/lake/t"]}))
    found = origin_of(TARGET, commit(tag), Reach([["/lake"], ["/other"]]))
    assert found.sources == {source: MARKS["/lake/t"]}
    assert found.beyond == (frozenset() if followed else {source})
