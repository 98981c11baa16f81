"""An index as its job maintains it, fed with rows that are in memory: what benchmarks of indexes share.

The consumer, its plan, the store and the maintenance are those of a node. What is missing is all that comes before: the
source's table, and how its changes are read.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from iscp.consumers.index.index_consumer import IndexConsumer
from iscp.consumers.index.index_kind import limits_of
from iscp.consumers.index.index_plan import IndexPlan
from iscp.index.lance.index_columns import FieldTotals, IndexHead
from iscp.index.lance.index_store import IndexStore
from iscp.index.maintenance.index_maintenance import MaintenanceDone, maintain
from iscp.index.model.definition_parsing import parse_definition
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import WatermarkRecord, record_key
from iscp.model.rows.key_ranges import Op
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.sql.sql_names import OP
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.consumer import ConsumeContext, Retriever, WatermarkTxn
from iscp.ports.source import Changes, Rows
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

KEEP_S = 2.0
"""Seconds for which maintenance keeps old versions here: so short that a run has their removal in it too."""

UPSERTS, NEW, DELETIONS = 1_000, 100, 100
"""Rows of a change: those that are written, how many of them are new, and those that go."""

UNBOUNDED_S = 3600.0


class _OpenGuard:
    def check(self) -> None:
        """Let everything through."""


@dataclass(frozen=True, slots=True)
class _Fed:
    """The part of port Retriever that the consumer of an index takes changes from."""

    table: pa.Table
    record: WatermarkRecord
    key: str
    data_type: DataType = DataType.TAIL

    @property
    def to(self) -> Watermark:
        return self.record.watermark

    def changes(self, key: Sequence[str], where: str = "") -> Changes:
        counts = [self.table[OP].to_pylist().count(op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE)]
        return Changes(Rows(_no_frame, lambda: self.table), *counts)

    def update_watermark(self, txn: WatermarkTxn) -> None:
        txn.put(self.key, self.record.to_json())


def _no_frame() -> Any:
    raise AssertionError("rows in memory are not read by Spark")


class FedIndex:
    """The index of one job at a place; made unless it is there. `source` has the columns of its table."""

    def __init__(self, uri: str, kind: str, options: Mapping[str, Any], source: pa.Schema, dimension: int = 0) -> None:
        self.uri = uri
        spec = ConsumerSpec(kind, uri, key=("id",), options=options)
        self._row = JobRow(JobKey("default", "bench", kind), "01BENCH", JobSpec(spec).to_json(), uri, uri)
        self._definition = parse_definition(kind, options)
        self._plan = IndexPlan(self._definition, ("id",), None)
        self.store = IndexStore(uri, EnvironmentFailpoints({}))
        self._consumer = IndexConsumer(self._row, self.store, self._plan, lambda: None)
        self._record = record_key(self._row.key, uri)
        self._schema = self._plan.schema(source, dimension)
        if not self.store.exists():
            self.store.create(self._schema, self._head())
        self._position = self._consumer.position(self._row)

    def _head(self) -> IndexHead:
        return IndexHead(self._plan.definition, ("id",), totals=(FieldTotals(),) * len(self._plan.texts))

    def build(self, tables: Iterable[pa.Table]) -> float:
        """Commit the first rows, and index them; the seconds that it took, without making the rows."""
        took_s, encoder, commit = 0.0, self._plan.encoder(self._schema), self.store.begin()
        commit.replace_all(self._schema, self._head())
        for table in tables:
            began_s = time.perf_counter()
            commit.add(encoder.encode(table))
            took_s += time.perf_counter() - began_s
        began_s = time.perf_counter()
        record = self._next()
        commit.apply(record.watermark.version, record.watermark.at_s)
        commit.put(self._record, record.to_json())
        commit.commit()
        self._position = record.position
        self.maintain()
        return took_s + time.perf_counter() - began_s

    def _next(self) -> WatermarkRecord:
        there: Position = self._position
        watermark = Watermark(there.watermark.version + 1, time.time())
        return WatermarkRecord(there.seq + 1, watermark, "01BENCH", "s", there.watermark.version, 1, "bench")

    def change(self, changes: pa.Table) -> int:
        """Commit net changes as an iteration does, and return the version of the source that the index then has."""
        context = ConsumeContext(cast(Any, None), self._row, "s", 1, self._position, _OpenGuard())
        fed = _Fed(changes, self._next(), self._record)
        self._position = self._consumer.consume(context, cast(Retriever, fed)).position
        return self._position.watermark.version

    def maintain(self, keep_s: float = KEEP_S, in_flight_s: float | None = None) -> MaintenanceDone:
        """Do all that is due."""
        limits = replace(limits_of(self._definition), keep_s=keep_s)
        if in_flight_s is not None:
            limits = replace(limits, in_flight_s=in_flight_s)
        return maintain(self.store, limits, SystemClock(), self.store.failpoints, UNBOUNDED_S)

    def bytes(self) -> int:
        """The bytes of all files, once old versions are gone."""
        time.sleep(0.01)
        self.maintain(keep_s=0.0, in_flight_s=0.0)
        return folder_bytes(Path(self.uri))


@dataclass
class LiveKeys:
    """The keys that a table has, from which changes are drawn: all below `end`, but for those that have gone."""

    end: int
    gone: set[int]
    seed: int = 0

    def draw(self, upserts: int = UPSERTS, new: int = NEW, deletions: int = DELETIONS) -> tuple[list[int], list[int]]:
        """The keys of rows to write, the new ones last, and those of rows to delete."""
        self.seed += 1
        chance, chosen = np.random.default_rng(self.seed), dict[int, None]()
        while len(chosen) < upserts - new + deletions:
            key = int(chance.integers(self.end))
            if key not in self.gone:
                chosen[key] = None
        keys = list(chosen)
        written = [*keys[deletions:], *range(self.end, self.end + new)]
        self.end += new
        self.gone.update(keys[:deletions])
        return written, keys[:deletions]


def net_changes(written: pa.Table, new: int, gone: pa.Table) -> pa.Table:
    """Rows that are written, the last of which are `new`, and rows that go, with the column that says so."""
    ops = [Op.UPDATE] * (len(written) - new) + [Op.INSERT] * new + [Op.DELETE] * len(gone)
    return pa.concat_tables([written, gone]).append_column(OP, pa.array([str(each) for each in ops]))


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fresh_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def timed_ms(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began_s)


def spread(times: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Of several times the median, the 95th percentile, the least and the most."""
    return {
        "p50": round(statistics.median(times), digits),
        "p95": round(percentile(times, 95), digits),
        "min": round(min(times), digits),
        "max": round(max(times), digits),
    }


def percentile(times: Sequence[float], percent: int) -> float:
    return float(np.percentile(times, percent))


def judged(aims: Mapping[str, tuple[str, float]], figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Aims as `<=` or `>=` and a number, with what was measured of each."""
    return [
        {
            "aim": f"{name} {sign} {aim:g}",
            "measured": figures[name],
            "met": figures[name] <= aim if sign == "<=" else figures[name] >= aim,
        }
        for name, (sign, aim) in aims.items()
    ]
