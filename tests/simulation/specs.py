"""The specs of the simulated tables' jobs."""

from __future__ import annotations

from iscp.core.ids import JobKey


def spec_json(key: JobKey, priority: int = 0) -> str:
    target = f"{key.table_id}.{key.job_name}"
    return f'{{"iteration":{{"consumer":{{"kind":"replica","target":"{target}"}},"priority":{priority}}}}}'
