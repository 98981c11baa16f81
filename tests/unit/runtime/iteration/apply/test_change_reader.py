"""What a consumer is handed: batches in order and bounded, and a watermark that is compared before it is set.

What the frames hold is tried on Spark, in the pipeline's tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from iscp.core.job.iteration import ChangeDetail, DataType
from iscp.core.job.job_row import JobRow
from iscp.core.job.watermark_record import WatermarkRecord, position_of
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.values.errors import Canceled, Conflict
from iscp.core.values.ids import JobKey
from iscp.core.values.watermark import Position, Watermark
from iscp.ports.consumer import Needs
from iscp.runtime.iteration.apply.change_reader import BATCH_ROWS_MAX, IterationRetriever
from iscp.runtime.iteration.job_run import JobRun
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeConsumer, FakeKind, FakeSource, FakeTarget, fake_ports

SPEC = JobSpec(ConsumerSpec("custom", "/t", key=("id",)))
ROW = JobRow(JobKey("a", "t-1", "x"), "j-1", SPEC.to_json(), "t", "/t-1")


class Given(IterationRetriever):
    """Its inserts and deletes are lists of numbers, as the fake engine takes them for frames."""

    def __init__(self, inserts: int, deletes: int, detail: ChangeDetail = ChangeDetail.NET, seq: int = 1) -> None:
        record = WatermarkRecord(seq, Watermark(4, 5.0), "j-1", "t-1", 3, 1, "attempt")
        self.guard = OpenGuard()
        base_seq = seq - 1 if seq > 1 else -1
        kind, position = FakeKind(Needs(detail)), Position(base_version=base_seq)
        work = JobRun(ROW, kind, FakeConsumer(FakeTarget()), position)
        super().__init__(DataType.TAIL, work, record, fake_ports(FakeSource(), lambda name: kind), self.guard)
        self._frames: tuple[Any, Any] = (list(range(inserts)), list(range(deletes)))

    @property
    def inserts(self) -> Any:
        return self._frames[0]

    @property
    def deletes(self) -> Any:
        return self._frames[1]

    def all(self) -> Any:
        return self._frames[0]

    def drained(self) -> list[tuple[int, int]]:
        pairs = []
        while (pair := self.next()) is not None:
            assert max(map(len, pair)) <= BATCH_ROWS_MAX
            pairs.append((len(pair[0]), len(pair[1])))
        assert self.next() is None  # and stays at its end
        return pairs


@pytest.mark.parametrize(
    ("inserts", "deletes", "pairs"),
    [
        (0, 0, []),
        (3, 0, [(3, 0)]),
        (0, 2, [(0, 2)]),
        (3, 2, [(3, 2)]),
        (
            BATCH_ROWS_MAX + 1,
            2 * BATCH_ROWS_MAX + 5,
            [(0, BATCH_ROWS_MAX), (0, BATCH_ROWS_MAX), (BATCH_ROWS_MAX, 5), (1, 0)],
        ),
    ],
)
def test_pairs_are_bounded_and_take_deletes_first(inserts: int, deletes: int, pairs: list[tuple[int, int]]) -> None:
    given = Given(inserts, deletes)
    assert given.drained() == pairs
    assert given.rows_given == inserts + deletes


def test_every_change_comes_in_the_first_of_each_pair() -> None:
    given = Given(BATCH_ROWS_MAX + 2, 0, ChangeDetail.ALL)
    assert given.drained() == [(BATCH_ROWS_MAX, 0), (2, 0)]


class Txn(dict[str, str]):
    """A dictionary is a transaction without an end."""

    def put(self, key: str, value: str) -> None:
        self[key] = value


def test_the_watermark_is_set_where_the_sink_still_is_as_it_said() -> None:
    txn = Txn()
    Given(0, 0, seq=1).update_watermark(txn)
    Given(0, 0, seq=2).update_watermark(txn)
    assert {key: position_of(text).seq for key, text in txn.items()} == {"iscp:/t": 2}


@pytest.mark.parametrize("seq", [1, 2, 4], ids=["as if new", "the same seq again", "one that is yet to come"])
def test_a_watermark_of_another_state_of_the_sink_is_a_conflict(seq: int) -> None:
    txn = Txn()
    for done in (1, 2):
        Given(0, 0, seq=done).update_watermark(txn)
    before = dict(txn)
    with pytest.raises(Conflict, match="another writer"):
        Given(0, 0, seq=seq).update_watermark(txn)
    assert txn == before


def test_nothing_is_set_where_the_guard_lets_nothing_be_written() -> None:
    txn, given = Txn(), Given(0, 0)
    given.guard.shut = True
    with pytest.raises(Canceled):
        given.update_watermark(txn)
    assert txn == {}
