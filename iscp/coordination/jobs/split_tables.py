"""Remember which ranges the tables of the book's jobs are split into."""

from __future__ import annotations

from collections import Counter

from iscp.core.rows.key_ranges import WHOLE
from iscp.core.values.ids import JobKey


class SplitTables:
    """A range of a table counts as often as jobs have a row for it; costs nothing of tables that are not split."""

    def __init__(self) -> None:
        self._rows: dict[str, Counter[int]] = {}

    def ranges(self, table_id: str) -> tuple[int, ...]:
        found = self._rows.get(table_id)
        return tuple(sorted(found)) if found else (WHOLE,)

    def add(self, key: JobKey) -> None:
        if key.range_id != WHOLE:
            self._rows.setdefault(key.table_id, Counter())[key.range_id] += 1

    def remove(self, key: JobKey) -> None:
        if key.range_id == WHOLE:
            return
        rows = self._rows[key.table_id]
        rows[key.range_id] -= 1
        if not rows[key.range_id]:
            del rows[key.range_id]
        if not rows:
            del self._rows[key.table_id]
