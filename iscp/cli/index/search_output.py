"""Shows the answers of searches."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from iscp.cli.shell import render
from iscp.cli.shell.drawing import table
from iscp.cli.shell.terminal import say, say_marked
from iscp.core.api.search_views import SearchAnswer, SearchHit, fragment_parts
from iscp.core.values.json_values import json_value
from iscp.core.values.untrusted_values import one_line

CELL_CHARS = 60
"""Characters of a value in a table; the rest is cut off, unless all is to be shown."""

SCORE = "_score"
"""The heading of scores, which no column of an index has."""


def answer_row(answer: SearchAnswer) -> render.Row:
    """Return the answer as JSON has it."""
    row: render.Row = json_value(dataclasses.asdict(answer))
    return row


def show_answer(answer: SearchAnswer, output: str) -> None:
    """Show the hits as a table, and at which version of the source they are; otherwise as `output` says."""
    if render.show(answer_row(answer), output):
        return
    wide = output == "wide"
    if answer.hits:
        _draw_hits(answer.hits, wide)
    for each in answer.cut:
        say(f"{each} stands for more words than were searched for", err=True)
    if not answer.proven:
        say("another row may be nearer: not all vectors were compared", err=True)
    waited = f", after {answer.waited_ms:.0f} ms of waiting" if answer.waited_ms >= 1 else ""
    count = f"{len(answer.hits)} hit{'' if len(answer.hits) == 1 else 's'}"
    say(f"{count} at version {answer.version} of the source, in {answer.took_ms:.1f} ms{waited}", err=True)


def _draw_hits(hits: tuple[SearchHit, ...], wide: bool) -> None:
    names = list(dict.fromkeys(name for hit in hits for name in (*hit.key, *hit.columns)))
    rows = [
        (f"{hit.score:.4f}", *(_cell({**hit.columns, **hit.key}.get(name), wide) for name in names)) for hit in hits
    ]
    table((SCORE, *names), rows, spare=tuple(reversed([name for name in names if name not in hits[0].key])), wide=wide)
    for hit in hits:
        if hit.highlights or hit.explanation:
            say()
            say(one_line(" ".join(f"{name}={json.dumps(json_value(value))}" for name, value in hit.key.items())))
        for name, fragments in hit.highlights.items():
            for fragment in fragments:
                say_marked(f"  {one_line(name)}: ", fragment_parts(fragment), one_line(fragment))
        for line in hit.explanation.splitlines():
            say(f"  {one_line(line) if line.strip() else ''}".rstrip())


def _cell(value: Any, wide: bool) -> str:
    plain = json_value(value)
    text = plain if isinstance(plain, str) else "" if plain is None else json.dumps(plain, ensure_ascii=False)
    text = one_line(text)
    return text if wide or len(text) <= CELL_CHARS else f"{text[: CELL_CHARS - 1]}…"
