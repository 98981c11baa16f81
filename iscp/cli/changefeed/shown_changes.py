"""Shows changes of a feed, and the cursors between them, whoever has read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iscp.changefeed.model.ulid import parse_ulid, ulid_time_ms
from iscp.cli.shell import render
from iscp.cli.shell.terminal import say
from iscp.core.values.untrusted_values import one_line


def show_change(shown: Mapping[str, Any], output: str) -> None:
    """Show the line of a change: `ulid`, `shard`, `operation`, `row` and so on, as JSON has their values."""
    if render.show_line(dict(shown), output):
        return
    moment = render.moment(ulid_time_ms(parse_ulid(shown["ulid"])) / 1000)
    what = json.dumps(shown["row"], ensure_ascii=False)
    say(f"{moment}  {shown['shard']:>4}  {shown['ulid']}  {one_line(shown['operation']):16} {what}")


def show_cursor(text: str, output: str) -> None:
    """Show the cursor to go on from, as what `--from` takes."""
    if not render.show_line({"cursor": json.loads(text)}, output):
        say(text)
