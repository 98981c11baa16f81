"""How a terminal's output becomes a picture, and that the picture in README is one of a run that ended well."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.recording import COLUMNS, PAUSE_MAX_S, PICTURE, ROWS, Frame, Written, draw, frames_of, record, shorten

PICTURE_BYTES_MAX = 300_000
SVG = "{http://www.w3.org/2000/svg}"


def text_of(line: str) -> str:
    return "".join(ElementTree.fromstring(f"<text>{line}</text>").itertext())


def test_a_frame_is_what_the_terminal_shows() -> None:
    redrawn = [Written(0.0, "one <1>\r\n"), Written(1.0, "\x1b[1A\x1b[2K\x1b[1;32mtwo\x1b[0m & more\r\n")]
    first, second, third = frames_of(redrawn, "$ try")
    assert (first.at_s, second.at_s, third.at_s) == (0.0, 0.0, 1.0)
    assert [text_of(line) for line in second.lines[:3]] == ["$ try", "one <1>", ""]
    assert [text_of(line) for line in third.lines[:3]] == ["$ try", "two& more", ""]
    assert 'font-weight="bold">two<' in third.lines[1]


def test_writes_that_follow_each_other_at_once_and_change_nothing_are_no_frames() -> None:
    assert [frame.at_s for frame in frames_of([Written(1.0, "a"), Written(1.01, "b"), Written(9.0, "")], "$")] == [
        0.0,
        1.01,
    ]


def test_only_pauses_are_shortened() -> None:
    frames = [Frame(at_s, (str(at_s),)) for at_s in (0.0, 0.5, 60.0, 60.25)]
    shown = shorten(frames)
    assert [frame.lines for frame in shown] == [frame.lines for frame in frames]
    assert [frame.at_s for frame in shown] == [0.0, 0.5, 0.5 + PAUSE_MAX_S, 0.75 + PAUSE_MAX_S]


def test_the_picture_has_each_frame_and_each_line_once() -> None:
    frames = frames_of([Written(1.0, "same\r\n"), Written(2.0, "other\r\n")], "$")
    picture = ElementTree.fromstring(draw(frames, "A <title>"))
    assert len(picture.findall(f"{SVG}g/{SVG}g")) == 3
    assert len(picture.findall(f"{SVG}defs/{SVG}text")) == 3


def test_a_command_runs_in_a_terminal_and_has_to_succeed() -> None:
    code = "import os, sys; assert sys.stdout.isatty(); print(os.get_terminal_size())"
    written = "".join(each.text for each in record([sys.executable, "-c", code]))
    assert f"columns={COLUMNS}, lines={ROWS}" in written
    with pytest.raises(subprocess.CalledProcessError):
        record([sys.executable, "-c", "raise SystemExit(1)"])


def test_the_picture_of_the_demo_is_of_a_run_in_which_all_was_equal() -> None:
    assert PICTURE.stat().st_size < PICTURE_BYTES_MAX
    picture = ElementTree.fromstring(PICTURE.read_text())
    lines = {each.get("id"): "".join(each.itertext()) for each in picture.findall(f"{SVG}defs/{SVG}text")}
    *_, last = picture.findall(f"{SVG}g/{SVG}g")
    result = [lines[str(use.get("href")).removeprefix("#")] for use in last]
    assert sum("yes" in line for line in result) == 6, result
    assert not any("differ" in line for line in result)
