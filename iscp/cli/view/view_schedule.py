"""When a view is refreshed, in words."""

from __future__ import annotations

from iscp.cli.shell import render
from iscp.core.spec.cron_schedule import DEFAULT_ZONE
from iscp.core.spec.view_fields import ViewFields


def shown_schedule(view: ViewFields) -> str:
    """As its spec has it."""
    if cron := view.run.get("cron"):
        return f"cron {cron} in {view.run.get('time_zone') or DEFAULT_ZONE}"
    every_s = view.run.get("every")
    return f"every {render.seconds(every_s)}" if isinstance(every_s, (int, float)) else "on change"
