"""A job that keeps a feed of the pipeline's source, and what a replay of it has to come to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import changes, rows_after
from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobReport, JobRow, LogEntry
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import Runner
from tests.fakes.guards import ScriptedFailpoints

from .conftest import Pipeline

SHARDS = 4


class Feed:
    """A job that keeps a feed of the pipeline's source; its rows are those of a book, so that it can be split."""

    def __init__(self, pipeline: Pipeline, policies: dict[str, Any] | None = None, **consumer: Any) -> None:
        self.pipeline, self.number = pipeline, 1
        self.uri = pipeline.target("feed")
        self.spec = ConsumerSpec("changefeed", self.uri, **{"key": ("id",), "options": {"shards": SHARDS}, **consumer})
        source = DeltaCatalog().describe(pipeline.source)
        self.mapped = "delta.columnMapping.mode" in source.configuration
        ChangefeedKind().validate(self.spec, source, DeltaCatalog())
        self.key = JobKey("default", source.table_id, "feed")
        self.job_spec = JobSpec(self.spec, **(policies or {}))
        self.book = JobBook([self.registered(1)])

    def registered(self, number: int) -> JobRow:
        return JobRow(self.key, f"{number:06}", self.job_spec.to_json(), self.pipeline.source, self.pipeline.source)

    def row(self, range_id: int = 1) -> JobRow:
        return next(row for row in self.book.rows_of(self.key) if row.key.range_id == range_id)

    @property
    def ranges(self) -> list[int]:
        return [row.key.range_id for row in self.book.rows_of(self.key)]

    def reshard(self, merge: bool, range_id: int = 0) -> None:
        self.number += 1
        done = changes(self.book.ranges(self.key.table_id), merge, range_id)
        entries = [LogEntry(row) for row in rows_after(self.book.rows_of(self.key), done, f"{self.number:06}", 1.0)]
        self.book.commit(entries)

    def runner(self, **failing: Callable[[], None]) -> Runner:
        failpoints = ScriptedFailpoints()
        for name, what in failing.items():
            failpoints.once(name.replace("_", "."), what)
        return self.pipeline.new_runner(failpoints, kinds=lambda name: ChangefeedKind())

    def run(self, row: JobRow | None = None, runner: Runner | None = None, told: bool = True) -> JobOutcome:
        (outcome,) = self.pipeline.run(row or self.row(), runner=runner or self.runner())
        if outcome.ok and told:
            self.book.apply([JobReport(outcome.row.key, outcome.row.job_id, outcome.watermark, outcome.seq)])
        return outcome

    def finish(self) -> None:
        newest = DeltaTable(self.pipeline.source).version()
        for range_id in self.ranges:
            for _ in range(20):
                outcome = self.run(self.row(range_id))
                assert outcome.ok, outcome.error_msg
                if outcome.watermark.version >= newest:
                    break

    def changes(self) -> list[dict[str, Any]]:
        table = DeltaTable(self.uri).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda change: change["ulid"])

    def told(self) -> list[tuple[str, int, Any, bool]]:
        """Operation, id, v, and whether it is net."""
        return [(each["operation"], each["row"]["id"], each["row"]["v"], each["net"]) for each in self.changes()]

    def assert_equal(self, keeps: Callable[[dict[str, Any]], bool] = lambda row: True) -> None:
        """A replay takes away only what is there, and ends as the source. Fields that are null count as none."""
        held: Counter[tuple[Any, ...]] = Counter()
        shards: dict[int, set[int]] = {}
        seen: set[bytes] = set()
        for change in self.changes():
            row = tuple((name, _held(value)) for name, value in sorted(change["row"].items()))
            held[row] += 1 if change["operation"] in ("insert", "update_postimage") else -1
            assert held[row] >= 0, change
            assert change["ulid"] not in seen
            assert change["key"] == {"id": change["row"]["id"]}
            seen.add(change["ulid"])
            shards.setdefault(change["row"]["id"], set()).add(change["shard"])
        assert all(len(each) == 1 for each in shards.values()), "all changes of a key are in one shard"
        table = DeltaTable(self.pipeline.source)
        source = (self.pipeline.source_by_spark() if self.mapped else table.to_pyarrow_table()).to_pylist()
        names = sorted(name for name in self.columns if name in source[0])
        expected = Counter(tuple((name, _held(row[name])) for name in names) for row in source if keeps(row))
        lacking = [name for name in self.columns if name not in names]
        got: Counter[tuple[Any, ...]] = Counter()
        for row, count in held.items():
            assert not count or all(value is None for name, value in row if name in lacking), row
            got[tuple(pair for pair in row if pair[0] not in lacking)] += count
        assert +got == expected
        self.assert_in_order()

    def assert_in_order(self) -> None:
        """What a commit has brought lies behind all that was there of its shard."""
        last: dict[str, str] = {}
        for path in sorted(Path(self.uri, "_delta_log").glob("*.json")):
            adds = [json.loads(line)["add"] for line in path.read_text().splitlines() if line.startswith('{"add"')]
            for add in sorted(adds, key=lambda add: str(json.loads(add["stats"])["minValues"])):
                shard, stats = add["partitionValues"]["shard"], json.loads(add["stats"])
                assert last.get(shard, "") < stats["minValues"]["ulid_text"], path
                last[shard] = stats["maxValues"]["ulid_text"]

    @property
    def columns(self) -> list[str]:
        fields = DeltaTable(self.uri).schema().to_arrow()
        return [field.name for field in pa.schema(fields).field("row").type]


def _held(value: Any) -> Any:
    """What a row holds in a column: of nested values those that are there, whatever the order of their fields."""
    if isinstance(value, dict):
        return tuple((name, _held(each)) for name, each in sorted(value.items()) if each is not None)
    return tuple(map(_held, value)) if isinstance(value, list | tuple) else value
