"""Events go to a URL one by one, or to a file as lines; what is too large or refused is counted, never waited for."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from iscp.adapters.telemetry.event_receivers import EVENT_BYTES_MAX, append_events, post_events
from iscp.adapters.telemetry.http_target import HttpTarget
from iscp.core.values.errors import Unavailable
from tests.fakes.webhooks import HttpReceiver

EVENTS = [{"n": number, "text": "größer\n"} for number in range(3)]
LARGE = {"text": "x" * EVENT_BYTES_MAX}


def test_each_event_is_a_request_of_its_own() -> None:
    receiver = HttpReceiver()
    assert post_events(HttpTarget(receiver.url, {"x-key": "k"}, "application/json"), [*EVENTS, LARGE]) == 1
    receiver.close()
    assert [json.loads(each.body) for each in receiver.received] == EVENTS
    assert {each.headers["content-type"] for each in receiver.received} == {"application/json"}
    assert {each.headers["x-key"] for each in receiver.received} == {"k"}


def test_each_event_is_a_line_and_the_file_is_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "events"
    assert append_events(str(path), EVENTS[:1]) == 0
    assert append_events(str(path), [LARGE, *EVENTS[1:]]) == 1
    assert [json.loads(line) for line in path.read_text().splitlines()] == EVENTS
    assert path.stat().st_mode & 0o007 == 0


def test_lines_of_several_nodes_do_not_mix(tmp_path: Path) -> None:
    path, batch = str(tmp_path / "events"), [{"text": "x" * 1_000}] * 50
    writers = [threading.Thread(target=append_events, args=(path, batch)) for _ in range(8)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [json.loads(line) for line in Path(path).read_text().splitlines()] == batch * 8


def test_a_place_that_cannot_be_written_is_unavailable_and_holds_nobody_up(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "events", tmp_path):
        with pytest.raises(Unavailable, match="cannot be written"):
            append_events(str(path), EVENTS)
    os.mkfifo(tmp_path / "pipe")  # which nobody reads: to open it would wait for ever
    with pytest.raises(Unavailable):
        append_events(str(tmp_path / "pipe"), EVENTS)
