"""The specs of the simulated tables' jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from iscp.model.values.ids import JobKey


def spec_json(key: JobKey, priority: int = 0, further: Sequence[str] = ()) -> str:
    """`further`: tables that it reads besides its own."""
    target = f"{key.table_id}.{key.job_name}"
    if further:
        tables = {table: f"/{table}" for table in (key.table_id, *further)}
        consumer = {"kind": "view", "target": target, "options": {"sql": "SELECT 1", "tables": tables}}
        return json.dumps({"iteration": {"consumer": consumer, "priority": priority}})
    return f'{{"iteration":{{"consumer":{{"kind":"replica","target":"{target}"}},"priority":{priority}}}}}'
