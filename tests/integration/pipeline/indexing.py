"""Indexes as jobs of a pipeline: registered, run, and compared with what the source has."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any, cast

import pyarrow as pa
from deltalake import write_deltalake

from iscp.app.registry import ConsumerRegistry, default_embeddings
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.index.embedding.embedding_service import EmbeddingService, EmbeddingServices, IndexServices
from iscp.index.lance.index_columns import HEAD_KEY, KEY
from iscp.index.lance.index_store import IndexStore, OpenIndex, open_index
from iscp.index.lance.word_counts import merged_counts, read_table
from iscp.model.job.iteration import Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import VerifyReport
from iscp.model.job.watermark_record import position_of
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.storage.s3_settings import table_options
from iscp.system.threads import SystemClock
from tests.fakes.guards import OpenGuard, ScriptedFailpoints

from .conftest import Pipeline, opened

WORDS = ("apache", "arrow", "delta", "lake", "spark", "index", "vector", "search")


def text_of(number: int, turn: int = 0) -> str | None:
    """Return a text for a row; some rows have none."""
    if number % 11 == 10:
        return None
    return " ".join(WORDS[(number * 7 + turn * 3 + place * place) % len(WORDS)] for place in range(2 + number % 5))


def documents(numbers: list[int], turn: int = 0) -> pa.Table:
    """Return rows with texts and vectors of three numbers."""
    vectors = [None if each % 13 == 12 else [1.0 + each, float(turn), 0.5] for each in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "title": [f"Title {each}" for each in numbers],
            "body": pa.array([text_of(each, turn) for each in numbers], pa.string()),
            "embedding": pa.array(vectors, pa.list_(pa.float32())),
            "price": pa.array([each / 4 for each in numbers], pa.float64()),
        }
    )


class CountedEmbeddings:
    """Embedders as a node has them, whose services are all remembered."""

    def __init__(self) -> None:
        self.services: list[EmbeddingService] = []
        self._of_a_node = default_embeddings()
        self.registry = self._of_a_node.registry

    def service(self, name: str, account: str) -> EmbeddingService:
        self.services.append(self._of_a_node.service(name, account))
        return self.services[-1]

    def forget_vectors(self) -> None:
        """Make it those of a node that has just started."""
        self._of_a_node = default_embeddings()


class Indexing:
    """One source of documents, and indexes on it."""

    def __init__(self, pipeline: Pipeline, configuration: dict[str, str | None] | None = None) -> None:
        self.pipeline = pipeline
        self.failpoints = pipeline.failpoints
        self.embeddings = CountedEmbeddings()
        services = IndexServices(cast(EmbeddingServices, self.embeddings), SystemClock(), self.failpoints)
        self.kinds = ConsumerRegistry(services=lambda: services).kind
        self.runner = pipeline.new_runner(self.failpoints, kinds=self.kinds)
        self.source = f"{pipeline.root}/documents"
        feed: dict[str, str | None] = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(
            self.source,
            documents(list(range(40))),
            configuration=configuration or feed,
            storage_options=table_options(self.source),
        )

    def embedded(self) -> int:
        """Return how many texts were embedded so far."""
        return sum(each.counts.embedded for each in self.embeddings.services)

    def forget_vectors(self) -> None:
        self.embeddings.forget_vectors()

    def other_runner(self) -> Any:
        return self.pipeline.new_runner(ScriptedFailpoints(), kinds=self.kinds)

    def runner_with(self, failpoints: ScriptedFailpoints) -> Any:
        """Return another node's runner, which stops at these points."""
        services = IndexServices(cast(EmbeddingServices, self.embeddings), SystemClock(), failpoints)
        return self.pipeline.new_runner(failpoints, kinds=ConsumerRegistry(services=lambda: services).kind)

    def store(self, job: JobRow) -> IndexStore:
        return IndexStore(job.spec.consumer.target, ScriptedFailpoints())

    def job(
        self, kind: str, registration: int = 1, name: str = "", policies: dict[str, Any] | None = None, **consumer: Any
    ) -> JobRow:
        options = {
            "fulltext": {"columns": "title^2,body", "stored": "price"},
            "vector": {"column": "embedding"},
            "search": {"columns": "body", "text": "body", "embed": "hashed"},
        }[kind]
        place = f"{self.pipeline.root}/{name or kind}"
        spec = ConsumerSpec(kind, place, **{"key": ("id",), "options": options, **consumer})
        catalog = DeltaCatalog(s3=True)
        source = catalog.describe(self.source)
        self.kinds(kind).validate(spec, source, catalog)
        key = JobKey("default", source.table_id, name or kind)
        document = JobSpec(spec, **(policies or {})).to_json()
        return JobRow(key, f"{name or kind}-{registration}", document, self.source, self.source)

    def run(self, *jobs: JobRow, runner: Any = None) -> list[JobOutcome]:
        iteration = Iteration(1, jobs[0].key.table_id, self.source, jobs)
        return list((runner or self.runner).run(iteration, OpenGuard()))

    def verify(self, job: JobRow, purpose: Purpose = Purpose.VERIFY) -> VerifyReport:
        iteration = Iteration(1, job.key.table_id, self.source, (job,), purpose=purpose)
        (outcome,) = self.runner.run(iteration, OpenGuard())
        assert outcome.verified is not None, outcome
        return outcome.verified

    def upsert(self, table: pa.Table) -> None:
        (
            opened(self.source)
            .merge(table, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def replace_source(self, table: pa.Table) -> None:
        """Drop the source, and make another one in its place."""
        shutil.rmtree(self.source)
        write_deltalake(self.source, table, configuration={"delta.enableChangeDataFeed": "true"})

    def overwrite_source(self, table: pa.Table) -> None:
        """Replace the source's rows and columns."""
        write_deltalake(opened(self.source), table, mode="overwrite", schema_mode="overwrite")

    def delete(self, condition: str) -> None:
        opened(self.source).delete(condition)

    def rows(self) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in opened(self.source).to_pyarrow_table().to_pylist()}

    def index(self, job: JobRow) -> OpenIndex:
        return open_index(job.spec.consumer.target)

    def assert_equal(self, job: JobRow) -> OpenIndex:
        """Assert that the index has the source's rows, at its newest version, and sums that are those of the rows."""
        index, expected = self.index(job), self.rows()
        (record,) = index.head.records.values()
        assert position_of(record).watermark.version == opened(self.source).version()
        found = index.dataset.to_table().to_pylist()
        rows = {row["id"]: row for row in found if row[KEY] != HEAD_KEY}
        assert len(found) == len(rows) + 1
        assert sorted(rows) == sorted(expected)
        names = [name for name in index.dataset.schema.names if not name.startswith("_")]
        for number, row in rows.items():
            assert {name: row[name] for name in names} == {name: expected[number][name] for name in names}
            if "_words_0" in row and "_words_1" in row:
                self._assert_words(row["_words_1"], expected[number]["body"])
            if job.spec.consumer.kind == "vector":
                assert row["_vector"] == expected[number]["embedding"]
        self.assert_sums(index)
        return index

    def _assert_words(self, words: str | None, text: str | None) -> None:
        assert words == (None if text is None else f" {text} ")

    def assert_sums(self, index: OpenIndex) -> None:
        """Assert that the head and the files of counts say what the rows have."""
        rows = [row for row in index.dataset.to_table().to_pylist() if row[KEY] != HEAD_KEY]
        assert index.head.rows == len(rows)
        assert index.head.faults == sum(row["_fault"] is not None for row in rows)
        assert index.head.vectors == sum(row.get("_vector") is not None for row in rows)
        counted: Counter[tuple[int, str]] = Counter()
        for number, totals in enumerate(index.head.totals):
            words = [row[f"_words_{number}"].split() for row in rows if row[f"_words_{number}"]]
            assert (totals.rows, totals.words) == (len(words), sum(map(len, words)))
            for each in words:
                counted.update((number, word) for word in set(each))
        files = [read_table(index.root, name) for name in index.head.count_files]
        stored = merged_counts(files).to_pylist() if files else []
        assert {(row["column"], row["word"]): row["rows"] for row in stored} == dict(counted)
