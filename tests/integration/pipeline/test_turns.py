"""Nodes take turns at the same targets, and each remembers what it knew: in the end every target is right.

A shard moves away and back. Meanwhile the source gets columns and loses them, others write to the targets, compact them
and clean their logs. `ISCP_TURNS=100 pytest -m full` plays so many, from seed ISCP_TURNS_FROM on.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.spark.session import SparkRuntime
from tests.fakes.guards import ScriptedFailpoints
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark
log = logging.getLogger(__name__)

SHORT = (1, 2)
LONG, LONG_FROM = int(os.environ.get("ISCP_TURNS", "20")), int(os.environ.get("ISCP_TURNS_FROM", "1000"))
NODES, STEPS, RUN_SHARE, KEYS_MAX = 3, 14, 0.7, 40
COLUMNS = ("more", "other")


def cleaned(uri: str) -> None:
    """As far as Delta ever does: the newest commit stays."""
    table = DeltaTable(uri)
    table.create_checkpoint()
    for version in range(table.version()):
        Path(uri, "_delta_log", f"{version:020d}.json").unlink(missing_ok=True)


class Turns:
    """One source, a keyed job with every column and one with some; all is chosen by `seed`."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pipeline = pipeline
        self.told: list[str] = []
        self.nodes = [pipeline.new_runner(ScriptedFailpoints()) for _ in range(NODES)]
        self.jobs = [pipeline.job("whole", key=("id",)), pipeline.job("part", key=("id",), columns=("id", "v"))]

    def step(self) -> None:
        steps = [self.upsert, self.upsert, self.insert, self.insert, self.delete, self.add_column, self.drop_column]
        done = self.draw.choice([*steps, self.write_to_target, self.optimize_target, self.clean_target])
        self.told.append(str(done.__name__))
        done()

    def _rows(self, keys: range) -> pa.Table:
        """Of the columns that there are now, none of them null."""
        table = rows(keys, self.draw.choice("xyz"))
        for name in DeltaTable(self.pipeline.source).schema().to_arrow().names[3:]:
            table = table.append_column(name, pa.array([self.draw.choice("mno")] * len(table)))
        return table

    def upsert(self) -> None:
        first = self.draw.randrange(KEYS_MAX)
        (
            DeltaTable(self.pipeline.source)
            .merge(self._rows(range(first, first + 5)), "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def insert(self) -> None:
        first = 1000 + 10 * len(self.told)
        write_deltalake(self.pipeline.source, self._rows(range(first, first + 3)), mode="append")

    def delete(self) -> None:
        self.pipeline.delete(f"id % 7 = {self.draw.randrange(7)}")

    def add_column(self) -> None:
        names = set(DeltaTable(self.pipeline.source).schema().to_arrow().names)
        if free := [name for name in COLUMNS if name not in names]:
            self.pipeline.sql(f"ALTER TABLE SOURCE ADD COLUMNS ({self.draw.choice(free)} STRING)")
            self.pipeline.sql(f"UPDATE SOURCE SET {self._last()} = 'u' WHERE id % 2 = 0")

    def _last(self) -> str:
        return str(DeltaTable(self.pipeline.source).schema().to_arrow().names[-1])

    def drop_column(self) -> None:
        """As an overwrite does it."""
        held = DeltaTable(self.pipeline.source).to_pyarrow_table()
        if len(held.schema.names) > 3:
            table = held.drop_columns([self._last()])
            write_deltalake(self.pipeline.source, table, mode="overwrite", schema_mode="overwrite")

    def _target(self) -> str | None:
        uri = self.pipeline.target(self.draw.choice(["whole", "part"]))
        return uri if DeltaTable.is_deltatable(uri) else None

    def write_to_target(self) -> None:
        if uri := self._target():
            held = DeltaTable(uri).to_pyarrow_table()
            change: Any = self.draw.choice([held.slice(0, 1), held.slice(2)])
            mode: Literal["append", "overwrite"] = self.draw.choice(["append", "overwrite"])
            write_deltalake(uri, change, mode=mode)

    def optimize_target(self) -> None:
        if uri := self._target():
            DeltaTable(uri).optimize.compact()

    def clean_target(self) -> None:
        if uri := self._target():
            cleaned(uri)

    def run(self) -> None:
        node = self.draw.randrange(NODES)
        self.told.append(f"node {node}")
        for place, outcome in enumerate(self.pipeline.run(*self.jobs, runner=self.nodes[node])):
            assert outcome.error_msg == ""
            if self.draw.random() < 0.8:  # else the node died before the job log knew
                self.jobs[place] = self._reported(outcome.row, outcome.seq, outcome.watermark)

    def _reported(self, row: JobRow, seq: int, watermark: Any) -> JobRow:
        return row._replace(seq=seq, watermark=watermark)

    def assert_equal(self) -> None:
        columns = tuple(DeltaTable(self.pipeline.source).schema().to_arrow().names)
        self.pipeline.assert_equal("whole", columns=columns)
        self.pipeline.assert_equal("part", columns=("id", "v"))


def play(root: Path, spark_runtime: SparkRuntime, seed: int, small_bytes_max: int) -> None:
    turns = Turns(Pipeline(root, spark_runtime, small_bytes_max), seed)
    try:
        for _ in range(STEPS):
            turns.step()
            if turns.draw.random() < RUN_SHARE:
                turns.run()
                turns.assert_equal()
        turns.run()
        turns.assert_equal()
    except BaseException as failure:
        failure.add_note("\n  ".join([f"seed {seed}:", *turns.told]))
        raise


@pytest.mark.parametrize("seed", in_full(SHORT))
def test_nodes_that_take_turns_keep_targets_right(tmp_path: Path, spark_runtime: SparkRuntime, seed: int) -> None:
    play(tmp_path, spark_runtime, seed, 2**20)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_turns(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    for seed in range(LONG_FROM, LONG_FROM + LONG):
        root = tmp_path / str(seed)
        root.mkdir()
        play(root, spark_runtime, seed, 2**20 if seed % 2 else 0)
        log.info("seed %d passed", seed)
        shutil.rmtree(root)


@pytest.mark.further  # each time: turns above, and test_schema_histories.py
@SPARK_IN_FULL
def test_a_column_that_another_node_has_added_is_seen_by_the_one_that_comes_back(pipeline: Pipeline) -> None:
    """Its rows, of a time when the source had that column no more, would leave nulls in what the target has."""
    here, there = (pipeline.new_runner(ScriptedFailpoints()) for _ in range(2))
    job = pipeline.job("target", key=("id",))
    before = DeltaTable(pipeline.source).to_pyarrow_table()
    pipeline.build(job)
    pipeline.upsert([1], "a")
    assert pipeline.run(job, runner=here)[0].data_type is DataType.TAIL
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (more STRING)")
    pipeline.sql("UPDATE SOURCE SET more = 'm'")
    assert pipeline.run(job, runner=there)[0].error_msg == ""
    pipeline.assert_equal("target", columns=("id", "v", "g", "more"))
    write_deltalake(pipeline.source, before.slice(0, 5), mode="overwrite", schema_mode="overwrite")
    assert pipeline.run(job, runner=here)[0].error_msg == ""
    pipeline.assert_equal("target")
    assert DeltaTable(pipeline.target("target")).schema().to_arrow().names == ["id", "v", "g"]
