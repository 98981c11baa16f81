"""A Delta table that somebody else wrote becomes a target as it is, if it holds the source's rows."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import PermanentError
from iscp.model.values.ids import JobKey
from tests.fakes.guards import OpenGuard

from .conftest import Pipeline, rows

pytestmark = pytest.mark.spark


def adopting(pipeline: Pipeline, name: str, version: int, **consumer: object) -> JobRow:
    spec = ConsumerSpec("replica", pipeline.target(name), **consumer)  # type: ignore[arg-type]
    source = DeltaCatalog().describe(pipeline.source)
    ReplicaKind().validate_adoption(spec, source, DeltaCatalog())
    key = JobKey("default", source.table_id, name)
    return JobRow(key, f"{name}-1", JobSpec(spec, adopt_from=version).to_json(), pipeline.source, pipeline.source)


def adopt(pipeline: Pipeline, job: JobRow) -> JobOutcome:
    (outcome,) = pipeline.runner.run(Iteration(1, job.key.table_id, pipeline.source, (job,)), OpenGuard())
    return outcome


def test_a_copy_that_is_equal_is_followed_from_its_version_and_its_rows_are_not_written_again(
    pipeline: Pipeline,
) -> None:
    write_deltalake(pipeline.target("copy"), rows(range(50)))
    files = set(DeltaTable(pipeline.target("copy")).file_uris())
    pipeline.insert(range(100, 110))
    job = adopting(pipeline, "copy", 0, key=("id",))
    outcome = adopt(pipeline, job)
    assert (outcome.ok, outcome.watermark.version, outcome.seq) == (True, 0, 1)
    assert set(DeltaTable(pipeline.target("copy")).file_uris()) == files
    assert pipeline.run(job)[0].watermark.version == 1
    pipeline.assert_equal("copy")
    assert files <= set(DeltaTable(pipeline.target("copy")).file_uris())


@pytest.mark.further  # each time: an equal copy above, and foreign rows in test_verify.py
def test_a_copy_that_differs_is_left_alone_and_reported_by_its_keys(pipeline: Pipeline) -> None:
    write_deltalake(pipeline.target("other"), rows(range(2, 52)))
    before = DeltaTable(pipeline.target("other")).version()
    with pytest.raises(PermanentError, match="2 rows are missing, 2 are too many, 0 are different") as refused:
        adopt(pipeline, adopting(pipeline, "other", 0, key=("id",)))
    assert "51" in str(refused.value)
    assert DeltaTable(pipeline.target("other")).version() == before


@pytest.mark.further  # each time: an equal copy above, and test_append_only.py
def test_an_archive_goes_on_under_a_new_registration_with_all_that_its_source_has_lost(pipeline: Pipeline) -> None:
    write_deltalake(pipeline.target("log"), rows(range(60)).append_column("old", [[None] * 59 + ["x"]]))
    pipeline.delete("id < 40")
    outcome = adopt(pipeline, job := adopting(pipeline, "log", 1))
    assert (outcome.error_msg, outcome.watermark.version) == ("", 1)
    pipeline.insert([100])
    assert pipeline.run(job)[0].error_msg == ""
    held = DeltaTable(pipeline.target("log")).to_pyarrow_table().to_pydict()
    assert sorted(held["id"]) == [*range(60), 100]
    assert "x" in held["old"]

    write_deltalake(pipeline.target("lacks"), rows(range(49)))
    with pytest.raises(PermanentError, match="1 rows are missing"):
        adopt(pipeline, adopting(pipeline, "lacks", 1))
