"""Records the demo in a terminal and draws it as an animated SVG: `python -m tests.recording COMMAND…`.

What is shown is what the command wrote; only pauses of more than PAUSE_MAX_S, in which nothing changes, are shortened.
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/demo.svg"

COLUMNS, ROWS = 84, 16
"""Of the terminal; the demo's tables need no more."""

FRAME_S = 0.1
"""What is written within so long is one frame: a program redraws by several writes."""

PAUSE_MAX_S = 1.5
"""Longer pauses are shown as this one."""

LAST_S = 8.0
"""How long the result stays before it begins again."""

SIZE, ADVANCE, LEADING, MARGIN = 14.0, 8.4, 19.0, 14.0
"""Of the letters, in the picture's units."""

FONTS = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'

WORDS = re.compile(r"\S+(?: \S+)*")
"""What is between wider gaps: in SVG several blanks may count as one."""

PAPER, INK = "#1a1d23", "#d6dae0"
COLOURS = {
    "black": "#4b5263",
    "red": "#f0727c",
    "green": "#8ccf7e",
    "brown": "#e5c76b",
    "blue": "#71a7f0",
    "magenta": "#c47fd5",
    "cyan": "#67cbe7",
    "white": INK,
}


@dataclass(frozen=True, slots=True)
class Written:
    """`text` came `at_s` after the command began."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The terminal's lines, as SVG, from `at_s` on."""

    at_s: float
    lines: tuple[str, ...]


def record(command: Sequence[str]) -> list[Written]:
    """Runs the command in a terminal of its own. Raises CalledProcessError if it fails."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    environ = os.environ | {"TERM": "xterm-256color"}
    begin_s = time.monotonic()
    written, decoder = [], codecs.getincrementaldecoder("utf-8")()
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        while part := _read(ours):
            written.append(Written(time.monotonic() - begin_s, decoder.decode(part)))
    os.close(ours)
    if child.returncode != 0:
        raise subprocess.CalledProcessError(child.returncode, list(command), "".join(each.text for each in written))
    return written


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux: nobody has the other end open any more
        return b""


def frames_of(written: Sequence[Written], prompt: str) -> list[Frame]:
    """What the terminal showed below the prompt; equal frames are one."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    stream.feed(f"{prompt}\r\n")
    frames = [Frame(0.0, lines_of(screen))]
    for number, each in enumerate(written):
        stream.feed(each.text)
        follows_at_once = number + 1 < len(written) and written[number + 1].at_s - each.at_s < FRAME_S
        if not follows_at_once and (lines := lines_of(screen)) != frames[-1].lines:
            frames.append(Frame(each.at_s, lines))
    return frames


def shorten(frames: Sequence[Frame]) -> list[Frame]:
    """The same, none for longer than PAUSE_MAX_S."""
    shown, at_s = [frames[0]], 0.0
    for before, each in pairwise(frames):
        at_s += min(each.at_s - before.at_s, PAUSE_MAX_S)
        shown.append(Frame(at_s, each.lines))
    return shown


def lines_of(screen: pyte.Screen) -> tuple[str, ...]:
    return tuple(line_of([screen.buffer[row][column] for column in range(screen.columns)]) for row in range(ROWS))


def line_of(cells: Sequence[pyte.screens.Char]) -> str:
    """The line's letters in SVG; each piece of one style begins at its own column, whatever is before it."""
    pieces, column = [], 0
    for style, group in groupby(cells, lambda cell: (cell.fg, cell.bold, cell.italics)):
        text = "".join(cell.data for cell in group)
        for words in WORDS.finditer(text):
            at = (column + words.start()) * ADVANCE
            pieces.append(f'<tspan x="{at:g}"{_style(*style)}>{escape(words[0])}</tspan>')
        column += len(text)
    return "".join(pieces)


def _style(colour: str, bold: bool, italics: bool) -> str:
    ink = COLOURS.get(colour.removeprefix("bright"), INK if colour == "default" else f"#{colour}")
    return (
        ("" if ink == INK else f' fill="{ink}"')
        + (' font-weight="bold"' if bold else "")
        + (' font-style="italic"' if italics else "")
    )


def draw(frames: Sequence[Frame], title: str) -> str:
    """An SVG that shows one frame after the other, without end; who wants no motion sees the last one."""
    width, height = COLUMNS * ADVANCE + 2 * MARGIN, ROWS * LEADING + 2 * MARGIN
    total_s = frames[-1].at_s + LAST_S
    numbers = {line: number for number, line in enumerate(sorted({line for each in frames for line in each.lines}))}
    steps = "".join(
        f"{100 * each.at_s / total_s:.3f}%{{transform:translateY({-number * height:g}px)}}"
        for number, each in enumerate(frames)
    )
    texts = "\n".join(f'<text id="l{number}">{line}</text>' for line, number in numbers.items() if line)
    film = "\n".join(
        f'<g transform="translate({MARGIN:g} {number * height + MARGIN + SIZE:g})">{_uses(each, numbers)}</g>'
        for number, each in enumerate(frames)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">
<!-- Made by scripts/record-demo from a run; do not edit. -->
<title>{escape(title)}</title>
<style>
text{{font:{SIZE:g}px {FONTS};fill:{INK}}}
.film{{transform:translateY({-(len(frames) - 1) * height:g}px)}}
@media (prefers-reduced-motion:no-preference){{.film{{animation:play {total_s:.2f}s steps(1,end) infinite}}}}
@keyframes play{{{steps}100%{{transform:translateY({-(len(frames) - 1) * height:g}px)}}}}
</style>
<defs>
{texts}
</defs>
<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>
<g class="film">
{film}
</g>
</svg>
"""


def _uses(frame: Frame, numbers: Mapping[str, int]) -> str:
    """Lines are kept once, however many frames have them."""
    places = ((numbers[line], row * LEADING) for row, line in enumerate(frame.lines) if line)
    return "".join(f'<use href="#l{number}" y="{y:g}"/>' for number, y in places)


def main(command: Sequence[str]) -> int:
    line = " ".join(command)
    frames = shorten(frames_of(record(command), f"$ {line}"))
    PICTURE.write_text(draw(frames, f"A run of {line}"))
    sys.stdout.write(f"{PICTURE}: {len(frames)} frames of {frames[-1].at_s:.0f} s, {PICTURE.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
