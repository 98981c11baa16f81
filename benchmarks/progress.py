"""Figures as they are measured, so that a run that is cut off leaves what it had until then.

Each is a line of its own on stderr, a JSON object whose last fields are the figures. The one object with all of them
comes on stdout at the end.
"""

from __future__ import annotations

import json

import click


def report_progress(what: str, **figures: object) -> None:
    """`what` was measured just now, or what has been reached where nothing was yet."""
    click.echo(json.dumps({"measured": what, **figures}), err=True)  # flushed at once
