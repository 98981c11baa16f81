"""Rows that a job leaves out are few and short, whatever its kind returns; what is wrong is an error by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from iscp.cluster.requests.job_views import ANSWER_CHARS_MAX, COLUMNS_MAX, VALUE_CHARS_MAX, DeadLetterReader
from iscp.engine.account_turns import ANYWHERE, READERS_OF_ACCOUNT_MAX, PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.api.api_requests import LeftOutRow, LeftOutRows
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import InvalidRequest, JobNotFound, PermanentError, QueueFull, StorageError, TimedOut
from tests.fakes.desk import Desk, X
from tests.fakes.pipeline import FakeKind


class LeavingKind(FakeKind):
    """A kind that leaves out what `find` returns."""

    def __init__(self, find: Callable[[], Any]) -> None:
        super().__init__()
        self._find = find

    def dead_letters(self, row: JobRow, limit: int) -> LeftOutRows:
        found: LeftOutRows = self._find()
        return found


def left_out(*rows: Mapping[str, Any], reason: str = "it is shared") -> LeftOutRows:
    return LeftOutRows(tuple(LeftOutRow(each, reason) for each in rows), "/copy_dead_letter")


@pytest.fixture
def row(desk: Desk) -> JobRow:
    return desk.running()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def read(row: JobRow, find: Callable[[], Any], limit: int = 20, places: PlaceGuard = ANYWHERE) -> LeftOutRows:
    kind = LeavingKind(find)
    return DeadLetterReader(lambda name: kind, places).read(row, limit)


def test_rows_are_those_of_the_kind_up_to_the_limit(row: JobRow) -> None:
    found = read(row, lambda: left_out({"id": 1, "at": b"ab"}, {"id": 2}, {"id": 3}), limit=2)
    assert found == left_out({"id": 1, "at": "YWI="}, {"id": 2})


def test_a_kind_that_leaves_out_nothing_has_none(row: JobRow) -> None:
    assert DeadLetterReader(lambda name: FakeKind()).read(row, 20) == LeftOutRows()


def test_columns_and_values_are_cut(row: JobRow) -> None:
    long = "x" * 5_000
    wide = {f"c{number}": number for number in range(COLUMNS_MAX + 5)}
    texts = {"text": long, "bytes": long.encode(), "list": [long], "deep": {"a": {"b": long}}, "short": [1, {"a": 2}]}
    found = read(row, lambda: left_out(wide, texts, reason=long))
    assert list(found.rows[0].columns) == list(wide)[:COLUMNS_MAX]
    cut = found.rows[1].columns
    assert cut["short"] == [1, {"a": 2}]
    for value in (cut["text"], cut["bytes"], cut["list"], cut["deep"], found.rows[0].reason):
        assert isinstance(value, str)
        assert len(value) == VALUE_CHARS_MAX
        assert value.endswith("…")


def test_an_answer_fits_into_a_message(row: JobRow) -> None:
    many = {f"c{number}": "ü" * VALUE_CHARS_MAX for number in range(COLUMNS_MAX)}
    found = read(row, lambda: left_out(*[many] * 100), limit=100)
    assert 0 < len(found.rows) < 100
    assert sum(len(json.dumps(each.columns)) for each in found.rows) <= ANSWER_CHARS_MAX


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (StorageError("cannot read the table"), StorageError, "cannot read the table"),
        (KeyError("no head"), PermanentError, "'no head'"),
        (RecursionError("too deep"), PermanentError, "too deep"),
    ],
)
def test_what_a_kind_raises_is_an_error_by_name(row: JobRow, error: Exception, kind: type, text: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        read(row, fail)
    assert text in str(caught.value)


def test_a_target_outside_of_the_accounts_roots_is_not_read(row: JobRow) -> None:
    roots = AccountRoots({row.key.account: ("/elsewhere",)})
    with pytest.raises(InvalidRequest, match="root"):
        read(row, left_out, places=PlaceGuard(roots, lambda place: (place,), lambda root: root))


def test_targets_that_hang_block_neither_an_answer_nor_all_others(row: JobRow, released: threading.Event) -> None:
    slow = LeavingKind(lambda: released.wait(60.0))
    reader = DeadLetterReader(lambda name: slow, read_s=0.05)
    for _ in range(READERS_OF_ACCOUNT_MAX):
        with pytest.raises(TimedOut, match=r"within 0\.05 s"):
            reader.read(row, 1)
    with pytest.raises(QueueFull, match="others of the account hang"):
        reader.read(row, 1)
    of_other = row._replace(key=row.key._replace(account="other"))
    with pytest.raises(TimedOut):
        reader.read(of_other, 1)


def test_the_owner_reads_those_of_the_job_that_is_named(desk: Desk) -> None:
    desk.running()
    desk.kind = LeavingKind(lambda: left_out({"id": 7}))
    assert desk.admin.dead_letters(X, 5) == left_out({"id": 7})
    with pytest.raises(JobNotFound):
        desk.admin.dead_letters(type(X)(X.table, "nobody", X.account), 5)
