"""Live streams: what is sent, how many there are, and their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from iscp.core.values.errors import QueueFull
from iscp.page.serving.live_streams import STREAMS_MAX, STREAMS_PER_VIEWER_MAX, LiveStreams, event


def test_an_event_is_one_line_whatever_it_holds() -> None:
    text = event("board", "a\n\nevent: forged\ndata: x\r\u2028")
    assert text.count("\n") == 3
    assert json.loads(text.splitlines()[1].removeprefix("data: ")) == "a\n\nevent: forged\ndata: x\r\u2028"


def test_what_has_not_changed_is_not_sent_again() -> None:
    contents: Iterator[str] = iter(["one", "one", "two"])

    async def run() -> list[str]:
        streams = LiveStreams()
        found: list[str] = []

        async def content() -> str:
            try:
                return next(contents)
            finally:
                if len(found) >= 2:
                    streams.end_all()

        async for each in streams.events(content):
            found.append(each)
        return found

    # It ends at the pause after the second content, which is cut short.
    assert asyncio.run(run()) == ["retry: 3000\n\n", event("board", "one"), ": the same\n\n"]


def test_places_are_bounded_for_each_viewer_and_in_all_and_are_given_back() -> None:
    async def run() -> None:
        streams = LiveStreams()
        held = [streams.place("ana") for _ in range(STREAMS_PER_VIEWER_MAX)]
        for each in held:
            each.__enter__()
        with pytest.raises(QueueFull):
            streams.refuse_beyond("ana")
        others = [streams.place(f"v{number}") for number in range(STREAMS_MAX - STREAMS_PER_VIEWER_MAX)]
        for each in others:
            each.__enter__()
        with pytest.raises(QueueFull):
            streams.refuse_beyond("one more")
        for each in (*held, *others):
            each.__exit__(None, None, None)
        assert streams.count == 0
        streams.refuse_beyond("ana")

    asyncio.run(run())
