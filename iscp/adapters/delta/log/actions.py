"""The actions of a commit file, whoever wrote it: what one may hold is checked here, once.

A line is one JSON object with one action in it (Delta protocol, "Actions"); blank lines, blanks around a line, and
actions that are null are skipped, as Spark and delta-rs skip them. All else that they do not read alike is refused: of
two actions on a line, Spark takes the first one alone. Statistics are hints: those that are not what they should be are
treated as absent. Kinds that are not known here are handed on as they are: `action_fields` says what follows from that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple, NoReturn, TypeGuard
from urllib.parse import unquote

from iscp.core.values.errors import ErrorCode, StorageError

Action = dict[str, dict[str, Any]]
"""One kind, and its body."""

_FILES = ("add", "remove", "cdc")
_KINDS = frozenset((*_FILES, "metaData", "protocol", "commitInfo", "txn", "domainMetadata"))
_REMEDY = "Restore the file from a backup; or recreate the table, and resync its jobs (a target: move it away)"
TEXT_LENGTH_MAX = 200
"""Characters of an operation's name that messages show; the rest is cut off."""

LINE_BYTES_MAX = 16 * 1024**2
"""Bytes of one line of a commit: nothing else of the process goes on while it is parsed. A file with a longer one is
refused by its name.
"""

LINES_MAX = 2_000_000
"""Lines of a commit; one with more is refused by its name."""

VALUES_MAX = 16_000_000
"""Values in a commit, an object or a list counted as four; one with more, which take ten times its bytes and more, is
refused by its name.
"""

_TIME_MS_MAX = 253_402_300_799_999


class CommitBounds(NamedTuple):
    """The bounds of a commit, as the constants of these names have them."""

    line_bytes: int = LINE_BYTES_MAX
    lines: int = LINES_MAX
    values: int = VALUES_MAX


_BOUNDS = CommitBounds()


def parse_actions(
    content: bytes, path: str, skip: tuple[bytes, ...] = (), bounds: CommitBounds = _BOUNDS
) -> list[Action]:
    """Return the actions of the commit file at `path`, but for lines that begin with one of `skip`.

    Guaranteed: each body is an object, a file's path is a text that can be one, its size None or a whole number. Raises
    StorageError that names file and line, also where there is nothing in the file.
    """
    if not content.strip():
        # Nobody commits nothing: it was torn, and taken for one without actions it would be missed for ever.
        _refuse(path, "is empty")
    if content.count(b"\n") + content.count(b"\r") > bounds.lines:
        _refuse(path, f"has more than {bounds.lines} lines")
    if content.count(b",") + 4 * (content.count(b"{") + content.count(b"[")) > bounds.values:
        _refuse(path, f"has more than {bounds.values} values")
    actions = []
    for number, line in enumerate(_lines(content), 1):
        if len(line) > bounds.line_bytes:
            _refuse(f"{path}, line {number}", f"has more than {bounds.line_bytes} bytes")
        if line and not line.isspace() and not line.startswith(skip or b"\n"):
            action = _parse(line, f"{path}, line {number}")
            if action:
                actions.append(action)
    return actions


def _lines(content: bytes) -> Iterator[bytes]:
    """Yield lines as `splitlines` returns them, without having all at once."""
    for line in BytesIO(content):
        yield from line.splitlines()


def _parse(line: bytes, where: str) -> Action:
    try:
        found = json.loads(line.decode())
        if b"\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeError:
        _refuse(where, "is not UTF-8")
    except (ValueError, RecursionError) as error:
        _refuse(where, "is not JSON, or not all of it is there", error)
    if not isinstance(found, dict):
        _refuse(where, "is not a JSON object")
    action = {kind: body for kind, body in found.items() if body is not None}
    known = {kind: body for kind, body in action.items() if kind in _KINDS}
    if len(known) > 1:
        _refuse(where, f"holds more than one action ({', '.join(known)})")
    for kind, body in known.items():
        if not isinstance(body, dict):
            _refuse(where, f"holds an action {kind} that is not an object")
        if kind in _FILES:
            _check_file(kind, body, where)
    return action


def _check_file(kind: str, body: Mapping[str, Any], where: str) -> None:
    path, size, change = body.get("path"), body.get("size"), body.get("dataChange", True)
    if not isinstance(path, str) or not path or "\0" in unquote(path):
        _refuse(where, f"holds an action {kind} without a path")
    if size is not None and not is_count(size):
        _refuse(where, f"holds an action {kind} whose size is not a whole number")
    if not isinstance(change, bool):
        _refuse(where, f"holds an action {kind} whose dataChange is neither true nor false")
    if not isinstance(body.get("partitionValues") or {}, dict):
        _refuse(where, f"holds an action {kind} whose partitionValues are not an object")


def _refuse(where: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise StorageError(f"{where}, {why}", remedy=_REMEDY, code=ErrorCode.LOG_CORRUPT) from cause


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number; JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number that is not negative."""
    return is_whole(value) and value >= 0


def text_of(body: Mapping[str, Any], name: str) -> str:
    """Return a text of the action; empty where there is none, or something else."""
    value = body.get(name)
    return value if isinstance(value, str) else ""


def texts_of(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of texts; empty where there is none, or something else."""
    value = body.get(name)
    return tuple(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else ()


def time_s_of(body: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """The first of these times (Unix ms) that is one, in Unix seconds."""
    given = (body.get(name) for name in names)
    return next((ms / 1000 for ms in given if is_count(ms) and 0 < ms <= _TIME_MS_MAX), None)


def statistics_of(add: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a file, empty where there are none that can be trusted; each part has still to be
    checked.
    """
    text = add.get("stats")
    try:
        found = json.loads(text) if isinstance(text, str) and text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
