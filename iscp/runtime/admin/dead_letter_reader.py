"""Reads rows that a job leaves out of its target, for whoever is shown them: few, cut to a length, within a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from iscp.core.api.api_views import LeftOutRow, LeftOutRows
from iscp.core.job.job_row import JobRow
from iscp.core.values.json_values import json_value
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import NO_DEATHS, JobDeaths
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard
from iscp.runtime.reads.account_turns import TargetReads
from iscp.runtime.reads.work_for_jobs import at_work_for

READ_S = 10.0
"""Seconds that reading these rows may take; then the call fails, and can be repeated."""

COLUMNS_MAX = 100
"""Columns of a row that are shown; further ones are left out."""

VALUE_CHARS_MAX = 1_000
"""Characters of a value, or of a reason, that are shown; the rest is cut off."""

ANSWER_CHARS_MAX = 1_000_000
"""Characters of all rows of an answer together; those that would be beyond are left out."""

_CUT = "…"


class DeadLetterReader:
    """Reads the rows of any job. Safe for threads."""

    def __init__(
        self,
        kinds: Callable[[str], ConsumerKind],
        places: PlaceGuard = ANYWHERE,
        read_s: float = READ_S,
        deaths: JobDeaths = NO_DEATHS,
    ) -> None:
        self._kinds = kinds
        self._deaths = deaths
        self._reads = TargetReads(places, read_s, "iscp-dead-letters", "read of the rows left out")

    def read(self, row: JobRow, limit: int) -> LeftOutRows:
        """Return up to `limit` rows; none of a kind of consumer that leaves out none.

        Raises InvalidRequest for a kind that is not here, and for a target outside of the account's roots; QueueFull,
        TimedOut, StorageError, PermanentError, and NodeKilled where this node's process died of the job too often.
        """
        dead_letters = self._kinds(row.spec.consumer.kind).dead_letters
        if dead_letters is None:
            return LeftOutRows()

        def read() -> LeftOutRows:
            with at_work_for(row, self._deaths):
                return _shortened(dead_letters(row, limit), limit)

        return self._reads.run(row, read)


def _shortened(found: LeftOutRows, limit: int) -> LeftOutRows:
    return replace(found, rows=tuple(_fitting(map(_short_row, found.rows[:limit]))))


def _fitting(rows: Iterable[LeftOutRow]) -> Iterator[LeftOutRow]:
    left = ANSWER_CHARS_MAX
    for row in rows:
        left -= len(json.dumps(row.columns)) + len(row.reason)
        if left < 0:
            return
        yield row


def _short_row(row: LeftOutRow) -> LeftOutRow:
    columns = list(row.columns.items())[:COLUMNS_MAX]
    return LeftOutRow({_short_text(str(name)): _short(value) for name, value in columns}, _short_text(row.reason))


def _short(value: Any) -> Any:
    """Return the value as JSON has it: a text or whatever has parts is cut to VALUE_CHARS_MAX, the latter as a text."""
    if isinstance(value, (str, bytes)):
        value = value[: VALUE_CHARS_MAX + 1]
    found = json_value(value)
    if isinstance(found, (dict, list)) and len(text := json.dumps(found, ensure_ascii=False)) > VALUE_CHARS_MAX:
        return _short_text(text)
    return _short_text(found) if isinstance(found, str) else found


def _short_text(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + _CUT
