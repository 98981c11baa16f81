"""A view of two Delta tables through the runner: its sink says of each which version it shows, in the rows' commit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.log.commits import read_commit
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode
from iscp.model.values.ids import JobKey
from iscp.ports.consumer import ConsumerKind
from tests.fakes.counting_view import CountingViewKind
from tests.fakes.guards import ScriptedFailpoints

from .conftest import ROWS, Pipeline, rows

pytestmark = pytest.mark.spark


@dataclass
class Views:
    """A view of how many rows the pipeline's source and another table have."""

    pipeline: Pipeline
    row: JobRow
    other: str

    def __post_init__(self) -> None:
        self.failpoints = ScriptedFailpoints()
        self.runner = self.pipeline.new_runner(self.failpoints, kinds=_kind)

    def run(self, *more: JobRow) -> list[JobOutcome]:
        """A view goes on from what its last iteration came to, as in a node."""
        outcomes = self.pipeline.run(self.row, *more, runner=self.runner)
        self.row = self.row._replace(watermark=outcomes[0].watermark, seq=outcomes[0].seq)
        return outcomes

    def add(self, *ids: int) -> None:
        write_deltalake(self.other, rows(list(ids)), mode="append")

    def counts(self) -> dict[str, int]:
        kept = DeltaTable(self.pipeline.target("view")).to_pyarrow_table().to_pylist()
        return {row["name"]: row["n"] for row in kept}

    def versions(self, outcome: JobOutcome) -> dict[str, int]:
        names = {self.pipeline.source: "own", self.other: "other"}
        return {names[uri]: mark.watermark.version for uri, mark in outcome.sources.items()}


def _kind(name: str) -> ConsumerKind:
    return CountingViewKind() if name == "view" else ReplicaKind()


@pytest.fixture
def views(pipeline: Pipeline) -> Views:
    other = f"{pipeline.root}/other"
    write_deltalake(other, rows([1, 2, 3]))
    tables = {"own": pipeline.source, "other": other}
    spec = JobSpec(ConsumerSpec("view", pipeline.target("view"), options={"sql": "…", "tables": tables}))
    source = DeltaCatalog(s3=True).describe(pipeline.source)
    row = JobRow(JobKey("default", source.table_id, "view"), "view-1", spec.to_json(), "source", pipeline.source)
    return Views(pipeline, row, other)


def test_it_is_built_and_follows_each_of_its_tables(views: Views) -> None:
    first, copied = views.run(views.pipeline.job("copy", key=("id",)))
    assert (first.error_msg, first.strategy, views.versions(first)) == ("", "full", {"own": 0, "other": 0})
    assert copied.ok
    assert views.counts() == {"own": ROWS, "other": 3}
    views.add(4, 5)
    (second,) = views.run()
    assert (second.error_msg, second.strategy, views.versions(second)) == ("", "incremental", {"own": 0, "other": 1})
    assert views.counts() == {"own": ROWS, "other": 5}
    views.pipeline.delete("id = 0")
    (third,) = views.run()
    assert views.versions(third) == {"own": 1, "other": 1}
    assert views.counts() == {"own": ROWS - 1, "other": 5}
    (idle,) = views.run()
    assert (idle.ok, idle.committed, idle.seq) == (True, False, third.seq)


@pytest.mark.further  # each time: the slower of two nodes
def test_another_node_reads_from_the_sink_how_far_each_table_is_in_it(views: Views) -> None:
    (first,) = views.run()
    views.add(4)
    newer = views.pipeline.new_runner(ScriptedFailpoints(), kinds=_kind)
    (second,) = views.pipeline.run(views.row, runner=newer)  # as the node that dies before it has reported
    (third,) = views.run()
    assert (third.committed, third.seq, third.sources) == (False, second.seq, second.sources)
    assert second.seq == first.seq + 1
    commit = read_commit(views.pipeline.target("view"), second.seq - 1)
    assert commit is not None
    assert views.other in commit.user_metadata


def test_the_slower_of_two_nodes_starts_over(views: Views) -> None:
    (first,) = views.run()
    views.add(4)
    newer, row = views.pipeline.new_runner(ScriptedFailpoints(), kinds=_kind), views.row
    views.failpoints.once("commit.before", lambda: views.pipeline.run(row, runner=newer))
    (second,) = views.run()
    assert (second.error_msg, second.committed, second.seq) == ("", False, first.seq + 1)
    assert views.counts() == {"own": ROWS, "other": 4}


@pytest.mark.further  # each time: rows of others in views/test_view_consumer_events.py
def test_a_target_that_somebody_wrote_to_is_recomputed(views: Views) -> None:
    views.run()
    DeltaTable(views.pipeline.target("view")).delete("name = 'own'")
    (outcome,) = views.run()
    assert (outcome.strategy, "not ours" in outcome.strategy_reason) == ("full", True)
    assert views.counts() == {"own": ROWS, "other": 3}


def test_another_table_in_the_place_of_one_stops_the_view_or_is_followed(views: Views) -> None:
    views.run()
    views.pipeline.create("CREATE TABLE SOURCE (id BIGINT) USING delta", "INSERT INTO SOURCE VALUES (1)")
    (refused,) = views.run()
    assert refused.error_code == ErrorCode.SOURCE_REPLACED
    views.row = views.row._replace(spec_json=replace(views.row.spec, on_replace="follow").to_json())  # type: ignore[arg-type]
    (followed,) = views.run()
    assert (followed.error_msg, followed.strategy) == ("", "full")
    assert views.counts() == {"own": 1, "other": 3}
