"""Random histories of a source, random indexes, kills and maintenance: after each iteration an index is its source.

`ISCP_HISTORIES=100 pytest -m full` runs so many, from seed ISCP_HISTORIES_FROM on; each makes the same choices again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.app.registry import ConsumerRegistry, default_embeddings
from iscp.consumers.index.index_check import sampled_faults
from iscp.consumers.index.index_kind import IndexKindBase
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.index.embedding.embedding_service import IndexServices
from iscp.index.lance.index_columns import KEY_INDEX, VECTOR, VECTOR_INDEX, words_column, words_index
from iscp.index.lance.index_store import IndexStore, OpenIndex, build_segments, commit_segments, open_index, segments_of
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.maintenance.index_shape import fragments_of
from iscp.index.search.search_library import search
from iscp.index.search.searched_index import open_whole
from iscp.model.api.api_requests import SearchWeights
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import position_of
from iscp.model.spec.spec import ChangeMode, ConsumerSpec, JobSpec
from iscp.model.values.errors import InvalidRequest, StorageError
from iscp.model.values.ids import JobKey
from iscp.ports.consumer import ConsumerKind
from iscp.spark.session import SparkRuntime
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.selection import in_full

from .conftest import Pipeline
from .index_expectations import Expectations, assert_as_expected, plain_rows
from .playing import play, play_many, stop
from .test_histories import KEYS_MAX, PLACES, RUN_SHARE, History

pytestmark = pytest.mark.spark

FAILED_ONCE: tuple[int, ...] = (1053,)
"""Seeds that found something: tried each time."""

SHORT = (1,)
STEPS = 8
DIMENSION = 8
INDEX_PLACES = (*PLACES, "index.fragments", "index.commit.before", "index.commit.after")
UPKEEP_PLACES = (
    "maintain.segments.before",
    "maintain.segments.built",
    "maintain.state.before",
    "maintain.merge.before",
    "maintain.compact.written",
    "maintain.compact.committed",
    "maintain.calibrate.found",
    "maintain.counts.written",
    "maintain.clean-up.versions",
)

WORDS = ("apache", "Arrow", "delta", "lakes", "spark", "indices", "vector", "searching", "the", "Straße")
ODD_TEXTS = (
    "",
    "   ",
    "\x00 null\x00byte",
    "😀 smile 👩‍👩‍👧‍👦 family",
    "数据库索引 東京 日本語 데이터베이스",
    "a" * 300,
    'it\'s "quoted" \\ | \t\r\n',
    "\u202e right to left עברית",
    "e\u0301 combining \ufeff mark",
    "word\u00a0with\u2028spaces\x1fin it",
    "123456789012 . 99",
)
LONG_TEXT = "long words " * 100_000
ODD_VECTORS: tuple[list[float | None], ...] = (
    [],
    [1.0, 2.0],
    [0.0] * DIMENSION,
    [float("nan")] * DIMENSION,
    [float("inf"), *[1.0] * (DIMENSION - 1)],
    [None, *[1.0] * (DIMENSION - 1)],
    [1e6] * DIMENSION,
    [3e38] * DIMENSION,
    [1e-30, *[0.0] * (DIMENSION - 1)],
)
INVALID = "CAST(X'FFFE41' AS STRING)"

FILTERS: dict[str, Callable[[Any], bool]] = {"": lambda row: True, "g < 4": lambda row: row["g"] < 4}
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fulltext", {"columns": "v^2,body", "stored": "price"}),
    ("fulltext", {"columns": "body", "language": "english"}),
    ("fulltext", {"columns": "body", "tokenizer": "ngram", "min_ngram": 2, "max_ngram": 3}),
    ("fulltext", {"columns": "body", "tokenizer": "simple", "max_token_length": 20}),
    ("vector", {"column": "embedding", "metric": "l2"}),
    ("vector", {"column": "embedding", "precision": "float16", "stored": "price,v"}),
    ("vector", {"column": "embedding", "metric": "dot"}),
    ("vector", {"text": "body", "embed": "hashed"}),
    ("search", {"columns": "body", "text": "body", "embed": "hashed"}),
    ("search", {"columns": "v,body", "column": "embedding"}),
)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.string()),
        ("g", pa.int64()),
        ("body", pa.string()),
        ("embedding", pa.list_(pa.float32())),
        ("price", pa.float64()),
    ]
)


class IndexHistory(History):
    """A history of documents, and three indexes on them."""

    places = INDEX_PLACES

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self._versions: dict[int, list[dict[str, Any]]] = {}
        self._added = 0
        super().__init__(pipeline, seed)
        self._record()

    # --- the source ----------------------------------------------------------------------------------------------

    def _rows(self) -> pa.Table:
        first = self.draw.randrange(KEYS_MAX)
        return self._documents(range(first, first + self.draw.randrange(1, 12)))

    def _documents(self, ids: Sequence[int]) -> pa.Table:
        rows = [
            {
                "id": each,
                "v": self.draw.choice("xyz"),
                "g": each % 7,
                "body": self._text(),
                "embedding": self._vector(),
                "price": self.draw.choice([None, 0.0, -0.0, 1.5]),
            }
            for each in ids
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _text(self) -> str | None:
        kind = self.draw.random()
        if kind < 0.1:
            return None
        if kind < 0.25:
            return self.draw.choice(ODD_TEXTS)
        if kind < 0.26:
            return LONG_TEXT
        return " ".join(self.draw.choices(WORDS, k=self.draw.randrange(1, 9)))

    def _vector(self) -> list[float | None] | None:
        kind = self.draw.random()
        if kind < 0.1:
            return None
        if kind < 0.25:
            return self.draw.choice(ODD_VECTORS)
        return [self.draw.choice([-1.0, 0.5, 2.0]) + self.draw.random() for _ in range(DIMENSION)]

    def steps(self) -> list[Callable[[], None]]:
        own = [self.poison, self.add_column, self.cover, self.cover, self.foreign_upkeep, self.upkeep, self.upkeep]
        return [*super().steps(), *own]

    def step(self) -> None:
        super().step()
        self._record()

    def _record(self) -> None:
        """Remember the rows of each version that is new."""
        newest = DeltaTable(self.pipeline.source).version()
        for version in range(newest, -1, -1):
            if version in self._versions:
                break
            with suppress(Exception):  # a version between may be unreadable: no test compares with it then
                self._versions[version] = plain_rows(_as_schema(DeltaTable(self.pipeline.source, version=version)))
        if not self._readable_by_delta_rs():
            self.told.append("  has bytes that are no UTF-8")

    def _readable_by_delta_rs(self) -> bool:
        newest = self._versions[max(self._versions)]
        return not any(isinstance(value, bytes) for row in newest for value in row.values())

    def _change(self, by_delta_rs: Callable[[], object], by_spark: str) -> None:
        """Change rows by one of two programs: one of them cannot read texts that are no UTF-8."""
        if self._readable_by_delta_rs():
            by_delta_rs()
        else:
            self.pipeline.sql(by_spark)

    def insert(self) -> None:
        write_deltalake(self.pipeline.source, self._rows(), mode="append", schema_mode="merge")

    def insert_by_spark(self) -> None:
        first = self.draw.randrange(KEYS_MAX)
        self.pipeline.sql(
            "INSERT INTO SOURCE (id, v, g, body) SELECT id, 's', CAST(id % 7 AS BIGINT), concat('by Spark ', id)"
            f" FROM range({first}, {first + 5})"
        )

    def poison(self) -> None:
        first = self.draw.randrange(KEYS_MAX)
        self.pipeline.sql(
            f"INSERT INTO SOURCE (id, v, g, body) SELECT id, 'p', CAST(id % 7 AS BIGINT), {INVALID}"
            f" FROM range({first}, {first + 2})"
        )

    def add_column(self) -> None:
        self._added += 1
        self.pipeline.sql(f"ALTER TABLE SOURCE ADD COLUMN (added_{self._added} STRING)")

    def optimize(self) -> None:
        self._change(super().optimize, "OPTIMIZE SOURCE")

    def delete(self) -> None:
        condition = f"id % 5 = {self.draw.randrange(5)}"
        self._change(lambda: self.pipeline.delete(condition), f"DELETE FROM SOURCE WHERE {condition}")

    def update(self) -> None:
        condition, value = f"id % 4 = {self.draw.randrange(4)}", self.draw.choice(["'apache x'", "NULL", "v"])
        self._change(
            lambda: DeltaTable(self.pipeline.source).update({"body": value}, predicate=condition),
            f"UPDATE SOURCE SET body = {value} WHERE {condition}",
        )

    def update_by_spark(self) -> None:
        change = self.draw.choice(["v = 'x'", "g = (g + 1) % 7", "id = id + 1", "id = 3", "body = v"])
        self.pipeline.sql(f"UPDATE SOURCE SET {change} WHERE id % 9 = {self.draw.randrange(9)}")

    def upsert(self) -> None:
        first = self.draw.randrange(KEYS_MAX)
        table = self._documents(range(first, first + 10))
        names = {name: f"s.{name}" for name in SCHEMA.names}

        def merge() -> None:
            merged = DeltaTable(self.pipeline.source).merge(table, "t.id = s.id", source_alias="s", target_alias="t")
            merged.when_matched_update(names).when_not_matched_insert(names).execute()

        self._change(merge, f"UPDATE SOURCE SET body = 'u' WHERE id BETWEEN {first} AND {first + 10}")

    def overwrite(self) -> None:
        kept = self.draw.choice([self._rows(), self._rows(), None])
        if kept is None:  # the same rows once more
            kept = _as_schema(DeltaTable(self.pipeline.source))
        write_deltalake(self.pipeline.source, kept, mode="overwrite", schema_mode="merge")

    def replace(self) -> None:
        self.replaced = True
        self.doubtful |= self.cleaned
        vector = ", ".join(f"CAST(id + {each} AS FLOAT)" for each in range(self.draw.choice([DIMENSION, 4])))
        self.pipeline.sql(
            "CREATE OR REPLACE TABLE SOURCE USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true) AS"
            " SELECT id, 'r' AS v, CAST(id % 7 AS BIGINT) AS g, concat('replaced spark ', id % 3) AS body,"
            f" array({vector}) AS embedding, CAST(1.5 AS DOUBLE) AS price FROM range(20)"
        )

    # --- the indexes ---------------------------------------------------------------------------------------------

    def _job(self, name: str) -> JobRow:
        kind, options = self.draw.choice(KINDS)
        key = self.draw.choice([("id",), ("g", "id")])
        where = self.draw.choice([*FILTERS])
        self.told.append(f"{name} {kind} {options} {key} {where!r}")
        spec = ConsumerSpec(kind, self.pipeline.target(name), key=key, options=options, where=where)
        source = DeltaCatalog().describe(self.pipeline.source)
        self.kind(kind).validate(spec, source, DeltaCatalog())
        mode = self.draw.choice([ChangeMode.AUTO, ChangeMode.AUTO, ChangeMode.DIFF])
        document = JobSpec(spec, change_source=mode).to_json()
        job_key = JobKey("default", source.table_id, name)
        return JobRow(job_key, f"{name}-1", document, self.pipeline.source, self.pipeline.source)

    @cached_property
    def _kinds(self) -> Callable[[str], ConsumerKind]:
        services = IndexServices(default_embeddings(), SystemClock(), ScriptedFailpoints())
        return ConsumerRegistry(services=lambda: services).kind

    def kind(self, name: str) -> ConsumerKind:
        return self._kinds(name)

    def run(self) -> None:
        super().run()
        for job in self.jobs:
            self._assert_at_watermark(job)

    def _indexes(self) -> list[tuple[JobRow, OpenIndex]]:
        found = []
        for job in self.jobs:
            with suppress(InvalidRequest):
                found.append((job, open_index(job.spec.consumer.target)))
        return found

    def _metric(self, job: JobRow) -> str:
        vector = self._expectations(job).definition.vector
        return "cosine" if vector is None else vector.metric.value

    def cover(self) -> None:
        """Cover fragments of an index by segments, which these small ones would never have."""
        for job, at in self._some_indexes():
            there = segments_of(at.dataset)
            present = set(fragments_of(at))
            names = [KEY_INDEX, *(words_index(number) for number in range(len(at.head.totals)))]
            names += [VECTOR_INDEX] if _dimension(at) else []
            wanted = {}
            again = self.draw.random() < 0.3
            for name in self.draw.sample(names, self.draw.randrange(1, len(names) + 1)):
                covered = {number for each in there if each.name == name for number in each.fragments}
                if fresh := sorted(present if again else present - covered):
                    wanted[name] = fresh
            built = build_segments(at, wanted, self._metric(job))
            replaced = [each for each in there if again and each.name in {one.name for one in built}]
            if built:
                commit_segments(at, built, replaced)
            self.told.append(f"  {job.key.job_name}: {sorted(wanted)} {'again' if again else ''}")

    def _some_indexes(self) -> list[tuple[JobRow, OpenIndex]]:
        found = self._indexes()
        return self.draw.sample(found, self.draw.randrange(1, len(found) + 1)) if found else []

    def foreign_upkeep(self) -> None:
        """Have somebody else maintain an index, who knows nothing of iscp's own files."""
        for job, at in self._some_indexes():
            way = self.draw.choice(["compact", "optimize", "clean"])
            self.told.append(f"  {job.key.job_name}: {way}")
            if way == "compact":
                at.dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
            elif way == "optimize":
                at.dataset.optimize.optimize_indices()
            else:
                maintain(self._store(job), MaintenanceLimits(keep_s=0.0), SystemClock(), ScriptedFailpoints(), 60.0)

    def upkeep(self) -> None:
        """Maintain an index, which may be stopped anywhere."""
        for job, _ in self._some_indexes():
            failpoints, place = ScriptedFailpoints(), ""
            if self.draw.random() < 0.3:
                place = self.draw.choice(UPKEEP_PLACES)
                failpoints.once(place, stop)
            limits = MaintenanceLimits(keep_s=self.draw.choice([0.0, 600.0]), metric=self._metric(job))
            try:
                done = maintain(IndexStore(job.spec.consumer.target, failpoints), limits, SystemClock(), failpoints, 60)
                self.told.append(f"  {job.key.job_name}: {[each.value for each in done.actions]}")
            except (RuntimeError, StorageError) as error:
                if not str(error).endswith("stopped"):
                    raise
                self.told.append(f"  {job.key.job_name}: stopped at {place}")
            cast(IndexKindBase, self.kind(job.spec.consumer.kind)).refresh(job)

    def _store(self, job: JobRow) -> IndexStore:
        return IndexStore(job.spec.consumer.target, ScriptedFailpoints())

    # --- what is right -------------------------------------------------------------------------------------------

    def _expectations(self, job: JobRow) -> Expectations:
        return Expectations(job.spec.consumer, FILTERS[job.spec.consumer.where])

    def assert_right(self) -> None:
        self._record()
        for job in self.jobs:
            self._assert_at_watermark(job, required=True)

    def _assert_at_watermark(self, job: JobRow, required: bool = False) -> None:
        try:
            index = open_whole(job.spec.consumer.target)
        except InvalidRequest:
            assert not required
            return
        version = index.head.version
        if version < 0:
            assert not required
            assert index.head.rows == 0
            return
        (record,) = index.head.records.values()
        assert position_of(record).watermark.version in (-1, version)  # -1: built again, and the old rows stay
        rows = self._versions.get(version)
        if rows is None:
            assert not required
            return
        expectations = self._expectations(job)
        try:
            assert_as_expected(index, expectations.of(rows, _dimension(index)), rows)
            if expectations.definition.columns:
                self._assert_found(job, index)
            assert not sampled_faults(index)
        except AssertionError as error:
            error.add_note(f"{job.key.job_name} at {version}, {len(rows)} rows")
            raise

    def _assert_found(self, job: JobRow, index: OpenIndex) -> None:
        """Assert that a search finds just the rows that have a word, whatever segments there are."""
        options = job.spec.consumer.options
        word, stored = ("indices", "indic") if "language" in options else ("spark", "spark")
        if options.get("tokenizer") == "ngram":
            word = stored = "sp"
        key = index.head.key
        for number, column in enumerate(self._expectations(job).definition.text_names()):
            name = words_column(number)
            rows = index.dataset.to_table(columns=[*key, name])
            holding = rows.filter(pc.fill_null(pc.match_substring(rows[name], f" {stored} "), False))
            weights = SearchWeights(vector=0.0)
            answer = search(job.spec.consumer.target, f"{column}:{word}", k=1000, weights=weights)
            found = sorted(tuple(hit.key.values()) for hit in answer.hits)
            assert found == sorted(zip(*(holding[each].to_pylist() for each in key), strict=True)), (column, word)


def _dimension(index: OpenIndex) -> int:
    """Return how many numbers a vector of an index has; 0: it has none."""
    names = index.dataset.schema.names
    return int(index.dataset.schema.field(VECTOR).type.list_size) if VECTOR in names else 0


def _as_schema(table: DeltaTable) -> pa.Table:
    """Return a table's rows in the columns that it began with."""
    found = table.to_pyarrow_table()
    return pa.table([found[name].cast(SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA)


def play_seed(root: Path, spark_runtime: SparkRuntime, seed: int, steps: int = STEPS) -> None:
    play(IndexHistory(Pipeline(root, spark_runtime), seed), seed, steps, RUN_SHARE)


@pytest.mark.parametrize("seed", in_full([*SHORT, *FAILED_ONCE]))
def test_indexes_equal_their_source_through_any_history(tmp_path: Path, spark_runtime: SparkRuntime, seed: int) -> None:
    play_seed(tmp_path, spark_runtime, seed)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_histories_of_indexes(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    play_many(lambda root, seed: play_seed(root, spark_runtime, seed), tmp_path)
