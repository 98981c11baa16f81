"""The newest lines of this process's log, in memory: the same lines as in the log itself, always as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from iscp.core.api.log_lines import LINES_MAX, JobOfLines, LogLine, LogPage, LogPlace, LogQuery
from iscp.core.values.untrusted_values import escaped_json

RING_BYTES_MAX = 4 * 1024**2
"""Bytes of its log that a node keeps in memory for `node logs` and `job logs`; the oldest lines go first."""


class _Line(NamedTuple):
    number: int
    at_s: float
    level: int
    line: bytes


class LogRing(logging.Handler):
    """The port NodeLog. `life` differs from that of every other process of the node."""

    def __init__(self, node_id: str, life: int, now_s: Callable[[], float], bytes_max: int = RING_BYTES_MAX) -> None:
        super().__init__()
        self._node_id = node_id
        self._life = life
        self._now_s = now_s
        self._bytes_max = bytes_max
        self._lines: deque[_Line] = deque()
        self._bytes = 0
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Store the record's line; called under the handler's lock."""
        try:
            line = self.format(record).encode()
        except Exception:  # noqa: BLE001  (as the standard library's handlers do: logging never ends what it logs)
            self.handleError(record)
            return
        self._number += 1
        self._lines.append(_Line(self._number, record.created, record.levelno, line))
        self._bytes += _size(line)
        while self._bytes > self._bytes_max:
            self._bytes -= _size(self._lines.popleft().line)

    def read(self, query: LogQuery) -> LogPage:
        # Only copied under the lock, which every thread that logs takes; the search comes after it.
        self.acquire()
        try:
            stored, last = list(self._lines), self._number
        finally:
            self.release()
        restarted = query.after is not None and query.after.life != self._life
        after = 0 if query.after is None or restarted else query.after.number
        found = [each for each in stored if each.number > after and each.level >= _level(query)]
        if not after and query.since_s:  # what follows is wanted however late it is fetched
            found = [each for each in found if each.at_s >= self._now_s() - query.since_s]
        if query.job is not None:
            found = list(_of_job(found, query.job))
        if query.after is None:
            found = found[-min(query.tail or LINES_MAX, LINES_MAX) :]
        elif len(found) > LINES_MAX:  # the rest is there for the next query
            found = found[:LINES_MAX]
            last = found[-1].number
        oldest = stored[0].number if stored else last + 1
        lost = 0 if query.after is None or restarted else max(0, oldest - 1 - after)
        lines = tuple(LogLine(each.number, each.at_s, each.line.decode()) for each in found)
        return LogPage(self._node_id, LogPlace(self._life, last), lost, restarted, lines=lines)


def _level(query: LogQuery) -> int:
    return logging.getLevelNamesMapping()[query.level.upper()]


def _size(line: bytes) -> int:
    return sys.getsizeof(line)


def _of_job(lines: Iterable[_Line], job: JobOfLines) -> Iterable[_Line]:
    """Return the lines about the job; only those that have one of the names anywhere are parsed."""
    needles = [escaped_json(json.dumps(name, ensure_ascii=False))[1:-1].encode() for name in (job.job_id, *job.tables)]
    return (
        each for each in lines if any(needle in each.line for needle in needles) and job.named_in(json.loads(each.line))
    )
