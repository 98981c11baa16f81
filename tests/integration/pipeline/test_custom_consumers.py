"""Custom consumers on real tables: the example of docs/consumers.md as users copy it, and every change in order."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.app.registry import GROUP, ConsumerRegistry
from iscp.consumers.custom.custom_kind import ChangeDetail, CustomConsumer, CustomKind
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import parse_record, position_of
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import EngineError, ErrorCode
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, ConsumerKind, Retriever
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.packages import install
from tests.selection import in_full

from .conftest import BY_SPARK, SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[3] / "examples" / "iscp_sqlite.py"


def job(pipeline: Pipeline, kind: ConsumerKind, target: str, registration: int = 1, **consumer: object) -> JobRow:
    spec = ConsumerSpec(kind.name, target, **{"key": ("id",), **consumer})  # type: ignore[arg-type]
    source = DeltaCatalog().describe(pipeline.source)
    kind.validate(spec, source, DeltaCatalog())
    key = JobKey("default", source.table_id, "custom")
    return JobRow(key, f"custom-{registration}", JobSpec(spec).to_json(), pipeline.source, pipeline.source)


class Sqlite:
    """The example, installed and allowed, and a job with columns, a filter and a table's name."""

    def __init__(self, pipeline: Pipeline, root: Path, path: pytest.MonkeyPatch) -> None:
        self.pipeline, self.file = pipeline, str(root / "target.db")
        install(root / "site", "iscp_sqlite", EXAMPLE.read_text(), GROUP, sqlite="SqliteTable")
        path.syspath_prepend(str(root / "site"))
        self.kinds = ConsumerRegistry(allowed=("sqlite",)).kind
        self.runner = pipeline.new_runner(pipeline.failpoints, kinds=self.kinds)
        self.job = self.registered(1)

    def registered(self, registration: int) -> JobRow:
        spec = {"columns": ("id", "v"), "where": "g <> 3 -- not these", "options": {"table": "copies"}}
        return job(self.pipeline, self.kinds("sqlite"), self.file, registration, **spec)

    def run(self, row: JobRow | None = None, **given: Any) -> Any:
        return self.pipeline.run(row or self.job, **{"runner": self.runner, **given})[0]

    def rows(self) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as db:
            return sorted(db.execute("SELECT id, v FROM copies"))

    def versions(self) -> dict[int, int]:
        with closing(sqlite3.connect(self.file)) as db:
            return dict(db.execute("SELECT _commit_version, count(*) FROM copies GROUP BY 1"))

    def assert_equal(self) -> None:
        """Against a recomputation from the source."""
        source = DeltaTable(self.pipeline.source).to_pyarrow_table().to_pylist()
        assert self.rows() == sorted((row["id"], row["v"]) for row in source if row["g"] != 3)


def test_the_example_applies_each_change_exactly_once(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite = Sqlite(pipeline, tmp_path, monkeypatch)
    assert [(o.data_type, o.seq, o.rows) for o in [sqlite.run()]] == [(DataType.SNAPSHOT, 1, 43)]
    sqlite.assert_equal()
    assert sqlite.versions() == {0: 43}

    pipeline.upsert([1, 2, 60], "changed")
    pipeline.delete("id = 5")
    outcome = sqlite.run()
    assert (outcome.data_type, outcome.seq, outcome.rows, outcome.error_code) == (DataType.TAIL, 2, 4, ErrorCode.OK)
    sqlite.assert_equal()
    assert sqlite.versions() == {0: 40, 1: 3}

    # It dies with the rows written and nothing committed, and again with all committed and nothing reported.
    pipeline.upsert([1, 61], "again")
    for failpoint, seq in (("commit.before", 2), ("report.before", 3)):
        pipeline.failpoints.once(failpoint, _die)
        assert sqlite.run().error_code == ErrorCode.ENGINE
        assert sqlite.kinds("sqlite").open(sqlite.job, None).position(sqlite.job).seq == seq  # type: ignore[arg-type]
    assert sqlite.run().seq == 3
    sqlite.assert_equal()

    # The same changes delivered twice: another node commits them while they are being read here.
    pipeline.upsert([1, 62], "twice")
    other = pipeline.new_runner(ScriptedFailpoints(), kinds=sqlite.kinds)
    pipeline.failpoints.once("read.after", lambda: sqlite.run(runner=other) and None)
    assert [(o.seq, o.error_code) for o in [sqlite.run()]] == [(4, ErrorCode.OK)]
    sqlite.assert_equal()

    assert [(o.data_type, o.seq) for o in [sqlite.run(sqlite.registered(2))]] == [(DataType.SNAPSHOT, 5)]
    assert sqlite.run().error_code == ErrorCode.SUPERSEDED
    sqlite.assert_equal()


def _die() -> None:
    raise EngineError("died")


class Recorder(CustomConsumer):
    """Writes down what `next` gives."""

    changes = ChangeDetail.ALL
    needs_target = False
    given: list[tuple[Any, ...]] = []  # noqa: RUF012  (one test's, recreated by it)
    texts: dict[str, str] = {}  # noqa: RUF012

    def position(self) -> Position:
        return position_of(self.texts.get(self.watermark_key))

    def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
        names: Sequence[str] = ("_commit_version", "_change_type", "id", "v")
        while (pair := retriever.next()) is not None:
            self.given.extend(tuple(row[name] for name in names) for row in pair[0].to_pylist())
            assert len(pair[1]) == 0
        retriever.update_watermark(self)

    def get(self, key: str) -> str | None:
        return self.texts.get(key)

    def put(self, key: str, value: str) -> None:
        self.texts[key] = value


class Whole(Recorder):
    """Keeps what an iteration has given only if there was all of it."""

    def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
        given: list[tuple[Any, ...]] = []
        while (pair := retriever.next()) is not None:
            given.extend((row["id"], row["v"]) for row in pair[0].to_pylist())
        self.given.extend(given)
        retriever.update_watermark(self)


def opened(kind: CustomKind, row: JobRow) -> Recorder:
    found = kind.open(row, None)._consumer  # type: ignore[arg-type]
    assert isinstance(found, Recorder)
    return found


@pytest.mark.parametrize("small_bytes_max", [8 * 1024**2, 0], ids=["by arrow", "by spark"])
def test_every_change_comes_in_order_with_what_was_before(pipeline: Pipeline, small_bytes_max: int) -> None:
    kind = CustomKind("recorder", type("Recorder", (Recorder,), {"given": [], "texts": {}}))
    runner = pipeline.new_runner(ScriptedFailpoints(), small_bytes_max=small_bytes_max, kinds=lambda name: kind)
    recorder = job(pipeline, kind, "", where="id < 3 OR id > 100")
    pipeline.run(recorder, runner=runner)
    kept = opened(kind, recorder)
    assert kept.given == [(0, "insert", i, "x") for i in range(3)]
    kept.given.clear()

    pipeline.upsert([2, 1, 101], "y")
    pipeline.delete("id = 2")
    pipeline.upsert([2], "back")
    outcome = pipeline.run(recorder, runner=runner)[0]
    assert (outcome.data_type, outcome.rows) == (DataType.TAIL, 7)
    assert kept.given == [
        (1, "update_preimage", 1, "x"),
        (1, "update_postimage", 1, "y"),
        (1, "update_preimage", 2, "x"),
        (1, "update_postimage", 2, "y"),
        (1, "insert", 101, "y"),
        (2, "delete", 2, "y"),
        (3, "insert", 2, "back"),
    ]
    (text,) = kept.texts.values()
    record = parse_record(text)
    assert (record.seq, record.job_id, record.from_version, record.epoch) == (2, "custom-1", 0, 1)
    assert record.watermark == outcome.watermark


@pytest.mark.further  # each time: changes in order by Spark above
def test_net_changes_of_a_large_range_have_their_last_changes_version(pipeline: Pipeline) -> None:
    class Net(Recorder):
        changes = ChangeDetail.NET

        def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
            for row in (*retriever.inserts.collect(), *retriever.deletes.collect()):
                self.given.append((row["_commit_version"], row["id"], row["_commit_timestamp"].timestamp()))
            retriever.update_watermark(self)

    kind = CustomKind("net", type("Net", (Net,), {"given": [], "texts": {}}))
    runner = pipeline.new_runner(ScriptedFailpoints(), small_bytes_max=0, kinds=lambda name: kind)
    net = job(pipeline, kind, "", where="id < 2 OR id > 100")
    first = pipeline.run(net, runner=runner)[0]
    kept = opened(kind, net)
    assert [each[:2] for each in kept.given] == [(0, 0), (0, 1)]
    assert {round(each[2], 3) for each in kept.given} == {round(first.watermark.at_s, 3)}
    kept.given.clear()
    pipeline.upsert([1, 101], "y")
    pipeline.upsert([101], "z")
    pipeline.delete("id = 0")
    pipeline.run(net, runner=runner)
    assert sorted(each[:2] for each in kept.given) == [(1, 1), (2, 101), (3, 0)]


@SPARK_IN_FULL
@pytest.mark.parametrize("detail", in_full(ChangeDetail))
def test_changes_of_columns_that_have_another_type_now_come_as_a_snapshot(
    pipeline: Pipeline, detail: ChangeDetail
) -> None:
    """They show only when their rows are read."""
    kind = CustomKind("recorder", type("Recorder", (Whole,), {"changes": detail, "given": [], "texts": {}}))
    runner = pipeline.new_runner(ScriptedFailpoints(), kinds=lambda name: kind)
    recorder = job(pipeline, kind, "")
    assert pipeline.run(recorder, runner=runner)[0].ok
    kept = opened(kind, recorder)
    kept.given.clear()
    other = rows([1], "x").set_column(1, "v", pa.array([7], pa.int64()))
    write_deltalake(pipeline.source, other, mode="overwrite", schema_mode="overwrite")
    (outcome,) = pipeline.run(recorder, runner=runner)
    assert (outcome.error_msg, outcome.data_type) == ("", DataType.SNAPSHOT)
    assert kept.given == [(1, 7)]


class Mirror(Recorder):
    """Keeps the source's rows by their key, as docs/consumers.md says that frames are to be taken."""

    kept: dict[Any, Any] = {}  # noqa: RUF012  (one test's, recreated by it)

    def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
        inserts, deletes = self.taken(retriever)
        if retriever.data_type is DataType.SNAPSHOT:
            self.kept.clear()
        for row in deletes:
            self.kept.pop(row["id"], None)
        self.kept.update({row["id"]: row["v"] for row in inserts})
        retriever.update_watermark(self)

    def taken(self, retriever: Retriever) -> tuple[list[Any], list[Any]]:
        return retriever.inserts.collect(), retriever.deletes.collect()


class OrderedMirror(Mirror):
    changes = ChangeDetail.ALL

    def taken(self, retriever: Retriever) -> tuple[list[Any], list[Any]]:
        every = retriever.all().collect()
        gone = [row for row in every if row["_change_type"] in ("delete", "update_preimage")]
        return [row for row in every if row not in gone], gone


@BY_SPARK
@pytest.mark.parametrize(
    ("column", "before", "after"),
    in_full(
        [("v", pa.int64(), pa.string()), ("id", pa.int32(), pa.int8()), ("v", pa.timestamp("us", "UTC"), pa.int64())],
        unpack=True,
    ),
    ids=["a text now", "a narrower key", "a number now"],
)
def test_frames_of_columns_that_have_another_type_now_are_right(
    pipeline: Pipeline, column: str, before: pa.DataType, after: pa.DataType
) -> None:
    """Files written before are read by some types as other values, and no fault shows."""

    def written(numbers: list[int], kind: pa.DataType) -> pa.Table:
        table = pa.table({"id": pa.array(numbers, pa.int64()), "v": pa.array(numbers, pa.int64())})
        place = table.column_names.index(column)
        values = table[column].cast(kind)
        return table.set_column(place, column, values)

    shutil.rmtree(pipeline.source)
    write_deltalake(pipeline.source, written([1000, 1], before), configuration={"delta.enableChangeDataFeed": "true"})
    classes: list[type[Mirror]] = [
        type(base.__name__, (base,), {"kept": {}, "texts": {}}) for base in (Mirror, OrderedMirror)
    ]
    kinds = {each.__name__: CustomKind(each.__name__, each) for each in classes}
    runner = pipeline.new_runner(ScriptedFailpoints(), kinds=lambda name: kinds[name])
    jobs = [job(pipeline, kind, "", number) for number, kind in enumerate(kinds.values())]
    assert all(outcome.ok for outcome in pipeline.run(*jobs, runner=runner))
    assert [len(each.kept) for each in classes] == [2, 2]
    write_deltalake(pipeline.source, written([1, 2], after), mode="overwrite", schema_mode="overwrite")
    outcomes = pipeline.run(*jobs, runner=runner)
    assert {(outcome.error_msg, outcome.data_type) for outcome in outcomes} == {("", DataType.SNAPSHOT)}
    now = {row["id"]: row["v"] for row in DeltaTable(pipeline.source).to_pyarrow_table().to_pylist()}
    assert [each.kept for each in classes] == [now, now]
