"""Targets that are indexes are probed by the log of their kind, as Delta tables are by theirs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.app.shard_parts import LOG_PROBES
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import OtherTargetSeen, TargetLog, TargetSeen
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import TargetLost
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.consumer import ConsumerKind, Needs
from iscp.schedule.probe_pool import TargetProbes, WaitedTargets
from tests.fakes.pipeline import FakeKind


class Indexed:
    """A job whose target is a dataset of one row for each version of its source; and those that probe it."""

    def __init__(self, path: Path) -> None:
        self.uri, self.kind = str(path), FakeKind(Needs(target_log=TargetLog.LANCE))
        spec = JobSpec(ConsumerSpec("replica", self.uri, key=("id",)))
        key = JobKey("default", "source", "copy")
        self.row = JobRow(key, "job-1", spec.to_json(), "t", "/t", watermark=Watermark(7, 1.0), seq=2)
        self.target.position = Position(2, Watermark(7, 1.0), "job-1")
        self.probes = TargetProbes(LOG_PROBES, self._kind_of, None)  # type: ignore[arg-type]  # the fake needs none
        self.kinds_asked = 0
        lance.write_dataset(pa.table({"version": [7]}), self.uri)

    @property
    def target(self):  # type: ignore[no-untyped-def]
        return self.kind.target(self.uri)

    def _kind_of(self, name: str) -> ConsumerKind:
        self.kinds_asked += 1
        return self.kind


@pytest.fixture
def indexed(tmp_path: Path) -> Indexed:
    return Indexed(tmp_path / "index")


def test_an_index_that_nobody_touched_costs_neither_its_spec_nor_its_position(indexed: Indexed) -> None:
    seen = indexed.probes.probe(indexed.row, None)
    assert (seen.uri, seen.log) == (indexed.uri, TargetLog.LANCE)
    asked, looks = indexed.kinds_asked, indexed.target.looks
    assert looks == 1
    unreadable = indexed.row._replace(spec_json="{")
    assert indexed.probes.probe(unreadable, seen) is seen
    assert (indexed.kinds_asked, indexed.target.looks) == (asked, looks)


def test_the_position_of_an_index_is_read_again_when_it_has_moved(indexed: Indexed) -> None:
    seen = indexed.probes.probe(indexed.row, None)
    lance.write_dataset(pa.table({"version": [8]}), indexed.uri, mode="append")
    moved = indexed.probes.probe(indexed.row, seen)
    assert isinstance(moved, OtherTargetSeen)
    assert (moved.log, indexed.target.looks) == (TargetLog.LANCE, 2)
    indexed.target.position = Position(1, Watermark(6, 1.0), "job-1")
    lance.write_dataset(pa.table({"version": [8]}), indexed.uri, mode="overwrite")
    with pytest.raises(TargetLost, match="it is at version 6 of the source, and 7 was applied"):
        indexed.probes.probe(indexed.row, moved)
    assert isinstance(WaitedTargets(indexed.probes).fault([indexed.row]), TargetLost)


def delete_manifests(uri: str) -> None:
    shutil.rmtree(Path(uri, "_versions"))


@pytest.mark.parametrize("damage", [shutil.rmtree, delete_manifests])
@pytest.mark.parametrize("known", [True, False], ids=["seen before", "first look"])
def test_an_index_that_is_gone_is_lost(indexed: Indexed, damage: Callable[[str], None], known: bool) -> None:
    seen = indexed.probes.probe(indexed.row, None) if known else None
    damage(indexed.uri)
    with pytest.raises(TargetLost, match="it is not there"):
        indexed.probes.probe(indexed.row, seen)


def test_every_kind_of_log_has_its_probe() -> None:
    assert set(LOG_PROBES) == set(TargetLog) - {TargetLog.NONE}


def test_an_idle_table_has_nothing_stored_that_says_of_which_kind_it_is() -> None:
    assert (TargetSeen.__slots__, TargetSeen("/t").log, TargetSeen().log) == (
        ("uri", "state"),
        TargetLog.DELTA,
        TargetLog.NONE,
    )
