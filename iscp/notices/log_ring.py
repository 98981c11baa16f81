"""The log of this process: one line for each event, as JSON for machines or as text for people.

What is logged are events, `log.info("iteration.done", extra={"job": …})`. The module decides how a line reads, and
holds the newest lines in memory.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from iscp.model.api.api_requests import LINES_MAX, JobOfLines, LogLine, LogPage, LogPlace, LogQuery
from iscp.model.settings.config import LogFormat
from iscp.model.values.untrusted_values import LogLevel, escaped_json, one_line, printable, shown

log = logging.getLogger(__name__)

# --- the newest lines in memory ---------------------------------------------------------------------------------------
# The lines are those of the log itself, always as JSON.

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


# --- lines of the log -------------------------------------------------------------------------------------------------

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
TEXT_CHARS_MAX = 32_000
"""Characters of one field in a line of the log; of a longer one the middle is left out."""

_QUIET = {"py4j": logging.WARNING, "grpc": logging.WARNING}
"""Libraries that log at INFO what concerns nobody."""


def _extra(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the event's own fields; texts are cut to what can be written, as some of them are others' words."""
    found = ((name, value) for name, value in vars(record).items() if name not in _OWN)
    return ((name, printable(value, TEXT_CHARS_MAX) if isinstance(value, str) else value) for name, value in found)


def _text_of(value: object) -> str:
    try:
        return printable(str.__str__(str(value)), TEXT_CHARS_MAX)
    except BaseException:  # noqa: BLE001  (whatever a foreign value raises: the line is to be written)
        return shown(value)


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, event, logger, `fixed` fields, and the event's own.

    A field of the event that has the name of one of the former is written with an underscore behind it.
    """

    def __init__(self, fixed: Mapping[str, object]) -> None:
        super().__init__()
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **self._fixed,
        }
        for name, value in _extra(record):
            line[f"{name}_" if name in line else name] = value
        if record.exc_info:
            line["exception"] = printable(self.formatException(record.exc_info), TEXT_CHARS_MAX)
        return _json(line)


def _json(line: Mapping[str, object]) -> str:
    try:
        text = json.dumps(line, default=_text_of, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):  # numbers of too many digits, odd keys, what holds itself
        text = json.dumps({name: _text_of(value) for name, value in line.items()}, ensure_ascii=False)
    return escaped_json(text)


class TextFormatter(logging.Formatter):
    """`time level event name=value …`, and the traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={one_line(_text_of(value), TEXT_CHARS_MAX)}" for name, value in _extra(record))
        event = one_line(record.getMessage(), TEXT_CHARS_MAX)
        line = f"{_time(record)} {record.levelname.lower():7} {event}{extra}"
        if not record.exc_info:
            return line
        return f"{line}\n{printable(self.formatException(record.exc_info), TEXT_CHARS_MAX)}"


def log_uncaught() -> None:
    """Log what ends this process or one of its threads, instead of printing it."""

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("process.broke", exc_info=(kind, error, trace))

    def uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            info = (args.exc_type, args.exc_value, args.exc_traceback)
            name = args.thread.name if args.thread else ""
            log.critical("thread.broke", exc_info=info, extra={"thread_name": name})

    sys.excepthook, threading.excepthook = uncaught, uncaught_in_thread


def configure_logging(
    log_format: LogFormat,
    level: LogLevel,
    fixed: Mapping[str, object],
    stream: TextIO | None = None,
    ring: logging.Handler | None = None,
) -> None:
    """Send all logs of this process to `stream` (stderr); `fixed` fields stand in every JSON line.

    `ring` gets the same lines, as JSON.
    """
    out = logging.StreamHandler(stream or sys.stderr)
    out.setFormatter(JsonFormatter(fixed) if log_format is LogFormat.JSON else TextFormatter())
    rings = [] if ring is None else [ring]
    for each in rings:
        each.setFormatter(JsonFormatter(fixed))
    logging.basicConfig(handlers=[out, *rings], level=level.upper(), force=True)
    logging.captureWarnings(True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)
