"""Random histories of a source whose columns change in every way: targets equal a recomputation, archives lose nothing.

`ISCP_HISTORIES=100 pytest -m full` runs so many, from seed ISCP_HISTORIES_FROM on; each makes the same choices again.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql import types as T

from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import EngineError
from iscp.spark.session import SparkRuntime
from tests.fakes.guards import ScriptedFailpoints
from tests.selection import in_full

from .conftest import Pipeline
from .playing import play, play_many, stop

pytestmark = pytest.mark.spark

SHORT = (1, 2)
STEPS, RUNS_MAX, IDS = 10, 10, 30
RUN_SHARE, STOP_SHARE = 0.5, 0.2
PLACES = ("read.after", "snapshot.staged", "publish.before", "commit.before", "commit.after", "report.before")
PROPERTIES = (
    "delta.columnMapping.mode='name', delta.enableTypeWidening=true, delta.feature.timestampNtz='supported', "
    "delta.feature.variantType='supported'"
)
ADDED = {
    "STRING": "concat('w', CAST(id AS STRING))",
    "INT": "CAST(id AS INT)",
    "TIMESTAMP_NTZ": "timestamp_ntz'2020-01-01 00:00:00'",
    "MAP<STRING,INT>": "map('x', 1, 'y', CAST(id AS INT))",
    "VARIANT": """parse_json('{"x": 1}')""",
    "VOID": "NULL",
    "ARRAY<STRUCT<x:INT,y:INT>>": "array(named_struct('x', 1, 'y', CAST(id AS INT)))",
}

Row = tuple[tuple[str, Any], ...]


@dataclass
class State:
    """The source at one version: its rows, and its columns with what is in them."""

    rows: list[dict[str, Any]]
    shape: T.StructType


@dataclass
class Model:
    """What an append-only target has to hold, by the commits that it says it has taken."""

    states: dict[int, State] = field(default_factory=dict)
    held: list[dict[str, Any]] = field(default_factory=list)

    def take(self, kind: str, from_version: int, to_version: int) -> None:
        match kind:
            case "snapshot":
                self.held = list(self.states[to_version].rows)
            case "difference":
                self.held += self._lacking(self.held, self.states[to_version])
            case "tail":
                for version in range(from_version + 1, to_version + 1):
                    before, after = self.states[version - 1], self.states[version]
                    self.held += self._lacking(before.rows, after)

    def _lacking(self, held: list[dict[str, Any]], now: State) -> list[dict[str, Any]]:
        """Nothing depends on what a column was that is gone."""
        there = Counter(told(picked(row, now.shape)) for row in held)
        lacking = []
        for row in now.rows:
            text = told(row)
            if there[text]:
                there[text] -= 1
            else:
                lacking.append(row)
        return lacking


def told(row: Any) -> str:
    """A row as text, in which what is null is as what is not there."""
    return json.dumps(_bare(row), sort_keys=True, default=repr)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items() if each is not None}
    return [_bare(each) for each in value] if isinstance(value, list) else value


def picked(value: Any, kind: T.DataType) -> Any:
    """What a type has of a value."""
    match kind:
        case T.StructType(fields=fields) if isinstance(value, dict):
            return {each.name: picked(value.get(each.name), each.dataType) for each in fields}
        case T.ArrayType(elementType=inner) if isinstance(value, list):
            return [picked(each, inner) for each in value]
    return value


def read(pipeline: Pipeline, uri: str, version: int | None = None) -> State:
    """A table by Spark; maps are lists of entries in order, variants JSON."""
    with pipeline.engine.session() as session:
        reader = session.read.format("delta")
        frame = (reader if version is None else reader.option("versionAsOf", version)).load(uri)
        columns = [_readable(F.col(f"`{each.name}`"), each.dataType).alias(each.name) for each in frame.schema.fields]
        return State([row.asDict(recursive=True) for row in frame.select(*columns).collect()], frame.schema)


def _readable(value: Any, kind: T.DataType) -> Any:
    match kind:
        case T.VariantType():
            return F.to_json(value)
        case T.MapType():
            return F.array_sort(F.map_entries(value))
    return value


class SchemaHistory:
    """One source with mapped names, a job by key and one without, all chosen by `seed`."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pipeline = pipeline
        self.told: list[str] = []
        self.model = Model()
        shutil.rmtree(pipeline.source)
        feed = f"delta.enableChangeDataFeed={str(self.draw.random() < 0.7).lower()}"
        self.sql(
            "CREATE TABLE SOURCE (id BIGINT, a STRING, b STRING, s STRUCT<x:INT,y:INT>) USING delta "
            f"TBLPROPERTIES ({PROPERTIES}, {feed})"
        )
        self.insert()
        self.keyed = pipeline.job("keyed", key=("id",), policies={"enable_cdf": self.draw.random() < 0.2})
        self.archive = pipeline.job("archive")

    @property
    def columns(self) -> dict[str, T.DataType]:
        shape = self.model.states[max(self.model.states)].shape
        return {each.name: each.dataType for each in shape.fields}

    def sql(self, statement: str) -> None:
        self.told.append(statement)
        try:
            self.pipeline.sql(statement)
        except EngineError as error:
            if "INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND" not in str(error):
                raise
            self.told.append("which Spark cannot do beside a VOID column, and has not done")
        for version in range(len(self.model.states), DeltaTable(self.pipeline.source).version() + 1):
            self.model.states[version] = read(self.pipeline, self.pipeline.source, version)

    def step(self) -> None:
        rows = [self.insert, self.insert, self.update, self.rewrite, self.delete, self.overwrite, self.restore]
        log_steps = [self.switch_feed, self.clean_log, self.touch]
        columns = [self.add, self.add, self.fill, self.drop_and_add, self.drop, self.rename, self.swap, self.reorder]
        nested = [self.add_within, self.drop_and_add_within, self.swap_within, self.widen]
        self.draw.choice([*rows, *rows, *log_steps, *columns, *nested])()

    def insert(self) -> None:
        ids = self.draw.sample(range(IDS), 4)
        there = {row["id"] for row in self.model.states[max(self.model.states)].rows} if self.model.states else set()
        if new := [each for each in ids if each not in there]:
            within = self._within() if self.model.states else ["x", "y"]
            given = {"x": "{0}", "y": "1"}
            fields = ", ".join(f"'{name}', {given.get(name, 'NULL')}" for name in within)
            values = ",".join(f"({each}, named_struct({fields.format(each)}))" for each in new)
            self.sql(f"INSERT INTO SOURCE (id, s) VALUES {values}")

    def update(self) -> None:
        name = self.draw.choice(
            [each for each, kind in self.columns.items() if isinstance(kind, T.StringType)] or ["s"]
        )
        value = "NULL" if name == "s" else f"'{self.draw.choice('pq')}'"
        self.sql(f"UPDATE SOURCE SET {name} = {value} WHERE id % 3 = {self.draw.randrange(3)}")

    def rewrite(self) -> None:
        """Rows are written as they were."""
        self.sql("UPDATE SOURCE SET id = id WHERE id % 2 = 0")

    def delete(self) -> None:
        self.sql(f"DELETE FROM SOURCE WHERE id % 5 = {self.draw.randrange(5)}")

    def overwrite(self) -> None:
        self.sql("INSERT OVERWRITE SOURCE SELECT * FROM SOURCE WHERE id % 4 <> 0")

    def restore(self) -> None:
        versions = [version for version in self.model.states if version >= self._earliest()]
        self.sql(f"RESTORE TABLE SOURCE TO VERSION AS OF {self.draw.choice(versions)}")

    def switch_feed(self) -> None:
        self.sql(
            f"ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed = {self.draw.choice(['true', 'false'])})"
        )

    def touch(self) -> None:
        self.sql(f"ALTER TABLE SOURCE SET TBLPROPERTIES ('touched' = '{self.draw.random()}')")

    def clean_log(self) -> None:
        self.told.append("clean_log")
        newest = max(self.model.states)
        with self.pipeline.engine.session() as session:
            jvm: Any = session._jvm
            jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, self.pipeline.source).checkpoint()
        for version in range(newest):
            self._commit_file(version).unlink(missing_ok=True)

    def _earliest(self) -> int:
        return next(version for version in self.model.states if self._commit_file(version).exists())

    def _commit_file(self, version: int) -> Path:
        return Path(self.pipeline.source, "_delta_log", f"{version:020d}.json")

    def add(self) -> None:
        kind = self.draw.choice([*ADDED])
        self.sql(f"ALTER TABLE SOURCE ADD COLUMN {self._unused()} {kind}")

    def fill(self) -> None:
        for name, kind in self.columns.items():
            value = ADDED.get(kind.simpleString().upper().replace("X:", "x:").replace("Y:", "y:"))
            if value and name not in ("a", "b"):
                self.sql(f"UPDATE SOURCE SET {name} = {value} WHERE id % 2 = 1")
                return

    def drop_and_add(self) -> None:
        name = self.draw.choice("ab")
        if name in self.columns:
            self.sql(f"ALTER TABLE SOURCE DROP COLUMN {name}")
        self.sql(f"ALTER TABLE SOURCE ADD COLUMN {name} STRING")

    def drop(self) -> None:
        if names := [name for name in self.columns if name not in ("id", "s")]:
            self.sql(f"ALTER TABLE SOURCE DROP COLUMN {self.draw.choice(names)}")

    def rename(self) -> None:
        if names := [name for name in self.columns if name not in ("id", "s")]:
            self.sql(f"ALTER TABLE SOURCE RENAME COLUMN {self.draw.choice(names)} TO {self._unused()}")

    def swap(self) -> None:
        if {"a", "b"} <= self.columns.keys():
            for one, other in (("a", "aside"), ("b", "a"), ("aside", "b")):
                self.sql(f"ALTER TABLE SOURCE RENAME COLUMN {one} TO {other}")

    def reorder(self) -> None:
        self.sql(f"ALTER TABLE SOURCE ALTER COLUMN {self.draw.choice([*self.columns])} FIRST")

    def add_within(self) -> None:
        self.sql(f"ALTER TABLE SOURCE ADD COLUMN s.{self._unused()} STRING")

    def drop_and_add_within(self) -> None:
        if "y" in self._within():
            self.sql("ALTER TABLE SOURCE DROP COLUMN s.y")
        self.sql("ALTER TABLE SOURCE ADD COLUMN s.y INT")

    def swap_within(self) -> None:
        if {"x", "y"} <= {*self._within()}:  # a restored version may be one between two of these steps
            for one, other in (("x", "aside"), ("y", "x"), ("aside", "y")):
                self.sql(f"ALTER TABLE SOURCE RENAME COLUMN s.{one} TO {other}")

    def _within(self) -> list[str]:
        within = self.columns["s"]
        assert isinstance(within, T.StructType)
        return within.names

    def widen(self) -> None:
        for name, kind in self.columns.items():
            if isinstance(kind, T.IntegerType):
                self.sql(f"ALTER TABLE SOURCE ALTER COLUMN {name} TYPE BIGINT")
                return

    def _unused(self) -> str:
        return f"c{len(self.told)}"

    def run(self) -> None:
        failpoints = ScriptedFailpoints()
        if self.draw.random() < STOP_SHARE:
            failpoints.once(self.draw.choice(PLACES), stop)
        small = self.draw.choice([0, 2**20])
        self.told.append(f"run {small}")
        self.pipeline.run(self.keyed, self.archive, runner=self.pipeline.new_runner(failpoints, None, small))

    def finish(self) -> None:
        newest = max(self.model.states)
        for _ in range(RUNS_MAX):
            outcomes = self.pipeline.run(
                self.keyed, self.archive, runner=self.pipeline.new_runner(ScriptedFailpoints())
            )
            assert [outcome.error_msg for outcome in outcomes] == ["", ""]
            newest = DeltaTable(self.pipeline.source).version()  # a job may switch the feed on
            if all(outcome.watermark.version == newest for outcome in outcomes):
                return
        pytest.fail("the jobs do not come to the newest version")

    def assert_right(self) -> None:
        now = read(self.pipeline, self.pipeline.source)
        keyed = read(self.pipeline, self.keyed.spec.consumer.target)
        assert Counter(map(told, keyed.rows)) == Counter(map(told, now.rows))
        assert {each.name.lower() for each in keyed.shape.fields} == {each.name.lower() for each in now.shape.fields}
        for kind, from_version, to_version in self._taken(self.archive):
            self.model.take(kind, from_version, to_version)
        archive = read(self.pipeline, self.archive.spec.consumer.target)
        assert Counter(map(told, archive.rows)) == Counter(map(told, self.model.held))

    def _taken(self, job: JobRow) -> Iterator[tuple[str, int, int]]:
        for commit in self.pipeline.commits(job.key.job_name):
            if commit.seq is not None:
                tag = json.loads(commit.user_metadata)
                self.told.append(f"{job.key.job_name} {tag['kind']} {tag['from']} {tag['to']}")
                for version in range(len(self.model.states), tag["to"] + 1):
                    self.model.states[version] = read(self.pipeline, self.pipeline.source, version)
                yield tag["kind"], tag["from"], tag["to"]


def play_seed(root: Path, spark_runtime: SparkRuntime, seed: int, steps: int = STEPS) -> None:
    play(SchemaHistory(Pipeline(root, spark_runtime), seed), seed, steps, RUN_SHARE)


@pytest.mark.parametrize("steps", in_full([STEPS // 2, STEPS]))
@pytest.mark.parametrize("seed", in_full(SHORT))
def test_targets_follow_columns_and_archives_lose_nothing(
    tmp_path: Path, spark_runtime: SparkRuntime, seed: int, steps: int
) -> None:
    play_seed(tmp_path, spark_runtime, seed, steps)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_histories_of_columns(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    play_many(lambda root, seed: play_seed(root, spark_runtime, seed), tmp_path)
