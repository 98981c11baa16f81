"""What `iscp up` says while it waits: each thing once, and only after a moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iscp.cli.node.wait_notice import NOTICE_AFTER_S, WaitNotice, awaited_of


def test_each_thing_is_said_once_after_a_moment() -> None:
    notice = WaitNotice()
    assert notice.due("etcd", 10.0) == ""
    assert notice.due("etcd", 10.0 + NOTICE_AFTER_S - 0.1) == ""
    assert notice.due("etcd", 10.0 + NOTICE_AFTER_S) == "waiting for etcd"
    assert notice.due("etcd", 100.0) == ""
    assert notice.due("a node", 100.0) == "", "its own moment begins"
    assert notice.due("a node", 100.0 + NOTICE_AFTER_S) == "waiting for a node"


def test_a_quick_start_says_nothing() -> None:
    notice = WaitNotice()
    said = [notice.due(awaited, 0.5 * n) for n, awaited in enumerate(("etcd", "a node", "Spark", "", ""))]
    assert said == [""] * 5
    assert notice.due("", 1_000.0) == ""


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "n-1 to start"),
        (["jars.downloading"], "n-1 to download jars"),
        (["jars.downloading", "jars.resolved", "spark.starting"], "n-1 to start Spark"),
        (["spark.starting", "spark.started", "selftest.passed"], "n-1 to be taken in by an owner"),
        (["spark.started", "node.ready", "node.stopped"], "n-1 to start"),
    ],
)
def test_a_nodes_log_shows_what_it_is_at(tmp_path: Path, events: list[str], words: str) -> None:
    log = tmp_path / "n-1.log"
    log.write_text("half a line}\n[1]\n" + "".join(json.dumps({"event": each}) + "\n" for each in events))
    assert awaited_of("n-1", log).startswith(words)
    assert awaited_of("n-1", tmp_path / "none") == "n-1 to start"
