"""A checkpoint that is damaged, of a log whose commits are all there: named where it is read, and forgotten with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.model.job.iteration import JobOutcome
from iscp.model.values.errors import ErrorCode
from iscp.spark.session import SparkRuntime
from tests.integration.views.conftest import Lake, ViewBench, bag
from tests.selection import in_full

from .conftest import Pipeline

pytestmark = pytest.mark.spark


def garble(path: Path) -> None:
    path.write_bytes(b"garbage" * 100)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def garble_rows(path: Path) -> None:
    """The footer is whole."""
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)


def remove(path: Path, kept: bytes) -> None:
    path.unlink()
    Path(path.parent, "_last_checkpoint").unlink()


def remove_alone(path: Path, kept: bytes) -> None:
    """`_last_checkpoint` still names it."""
    path.unlink()


def restore(path: Path, kept: bytes) -> None:
    path.write_bytes(kept)


def without_hint(path: Path) -> None:
    """For deltalake, by which tests compare tables."""
    Path(path.parent, "_last_checkpoint").unlink(missing_ok=True)


DAMAGES = [garble, cut, garble_rows]
REPAIRS = [remove, remove_alone, restore]


def damaged(uri: str, damage: Callable[[Path], None]) -> tuple[Path, bytes]:
    """The newest checkpoint, which is made now, and what was in it."""
    DeltaTable(uri).create_checkpoint()
    path = sorted(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))[-1]
    kept = path.read_bytes()
    damage(path)
    return path, kept


def assert_named(outcome: JobOutcome, path: Path) -> None:
    """It is applied all the same, or says which file it is."""
    if not outcome.ok:
        assert outcome.error_code == ErrorCode.LOG_CORRUPT, outcome.error_msg
        assert str(path) in outcome.error_msg
        assert "Restore the file" in outcome.error_msg


@pytest.mark.parametrize("repair", in_full(REPAIRS))
@pytest.mark.parametrize("damage", in_full(DAMAGES))
def test_of_a_replicas_target(
    pipeline: Pipeline, damage: Callable[[Path], None], repair: Callable[[Path, bytes], None]
) -> None:
    job = pipeline.job("copy", key=("id",))
    pipeline.run(job)
    path, kept = damaged(pipeline.target("copy"), damage)
    pipeline.upsert([1, 501], "new")
    other = pipeline.new_runner(pipeline.failpoints)
    outcomes = [pipeline.run(job, runner=runner)[0] for runner in (pipeline.runner, pipeline.runner, other)]
    assert not all(outcome.ok for outcome in outcomes)
    for outcome in outcomes:
        assert_named(outcome, path)
    repair(path, kept)
    for runner in (pipeline.runner, other):
        (outcome,) = pipeline.run(job, runner=runner)
        assert outcome.ok, outcome.error_msg
    without_hint(path)
    pipeline.assert_equal("copy")


@pytest.mark.parametrize("repair", in_full(REPAIRS))
def test_of_a_source(pipeline: Pipeline, repair: Callable[[Path, bytes], None]) -> None:
    jobs = pipeline.job("keyed", key=("id",)), pipeline.job("bare")
    pipeline.run(*jobs)
    pipeline.insert([501])
    path, kept = damaged(pipeline.source, garble)
    late, other = pipeline.job("late", key=("id",)), pipeline.new_runner(pipeline.failpoints)
    for outcome in (*pipeline.run(*jobs), *pipeline.run(late, runner=other)):
        assert_named(outcome, path)
    repair(path, kept)
    pipeline.sql("INSERT INTO SOURCE VALUES (502, 'late', 1)")
    for runner in (pipeline.runner, other):
        assert [outcome.error_msg for outcome in pipeline.run(*jobs, late, runner=runner)] == [""] * 3
    without_hint(path)
    for name in ("keyed", "bare", "late"):
        pipeline.assert_equal(name)


GROUPS = "select b, count(*) c, sum(n) s from t group by b"
WINDOW = "select a, b, row_number() over (partition by b order by a, n, d) r from t"


@pytest.mark.parametrize("repair", in_full(REPAIRS))
@pytest.mark.parametrize("of_target", in_full([False, True]))
@pytest.mark.parametrize("sql", in_full([WINDOW, GROUPS]))
def test_of_a_view(
    tmp_path: Path,
    spark_runtime: SparkRuntime,
    sql: str,
    of_target: bool,
    repair: Callable[[Path, bytes], None],
) -> None:
    view = ViewBench(Lake(tmp_path, 5), spark_runtime, sql, refresh="incremental")
    assert view.run().ok
    view.lake._insert("t")
    path, kept = damaged(view.target if of_target else view.lake.uris["t"], garble)
    outcomes = [view.run()]
    view.restart()
    outcomes.append(view.run())
    for outcome in outcomes:
        assert_named(outcome, path)
    repair(path, kept)
    outcome = view.run()
    assert outcome.ok, outcome.error_msg
    for name, uri in view.lake.uris.items():
        view._judge.read.format("delta").load(uri).createOrReplaceTempView(name)
    shown = view._judge.read.format("delta").load(view.target)
    assert bag(shown.toArrow()) == bag(view._judge.sql(sql).toArrow())
