"""Random histories whose targets a node and runs keep by turns: in the end every target equals a recomputation.

`ISCP_HISTORIES=100 pytest -m full` runs so many, from seed ISCP_HISTORIES_FROM on; each makes the same choices again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.model.job.job_row import JobRow
from iscp.spark.session import SparkRuntime
from tests.both_ways.keepers import RunKeeper, kept_by_cluster, registered, request_of
from tests.selection import in_full

from .conftest import Pipeline
from .playing import play, play_many
from .test_histories import RUN_SHARE, History
from .test_index_histories import IndexHistory

pytestmark = pytest.mark.spark

SEEDS = (1, 2)
STEPS_SHORT, STEPS = 4, 8
ALONE_SHARE = 0.5


class TurnsHistory(History):
    """A history in which this share of the iterations is that of runs, which begin with nothing but the targets."""

    runs: RunKeeper

    def _all_jobs(self) -> list[JobRow]:
        return list(map(registered, super()._all_jobs()))

    def run(self) -> None:
        if self.draw.random() < ALONE_SHARE:
            jobs = self.draw.sample(self.jobs, self.draw.randrange(1, len(self.jobs) + 1))
            self.told.append(f"a run of {[job.key.job_name for job in jobs]}")
            self.runs.bring_up(list(map(request_of, jobs)), take_over=True)
        else:
            self.jobs = list(map(kept_by_cluster, self.jobs))
            super().run()

    def finish(self) -> None:
        if self.doubtful or self.draw.random() >= ALONE_SHARE:
            self.jobs = list(map(kept_by_cluster, self.jobs))
            super().finish()
            return
        self.told.append("a run of all")
        brought = self.runs.bring_up(list(map(request_of, self.jobs)), take_over=True)
        assert [each.error for each in brought] == [""] * len(brought)
        assert {each.version for each in brought} == {DeltaTable(self.pipeline.source).version()}


class IndexTurnsHistory(TurnsHistory, IndexHistory):
    """The same of indexes."""


def play_seed(root: Path, spark: SparkRuntime, seed: int, kind: type[TurnsHistory], steps: int = STEPS) -> None:
    history = kind(Pipeline(root, spark), seed)
    history.runs = RunKeeper(lambda: spark)
    play(history, seed, steps, RUN_SHARE)


KINDS = [TurnsHistory, IndexTurnsHistory]


@pytest.mark.parametrize("seed", in_full(SEEDS))
@pytest.mark.parametrize("kind", in_full(KINDS))
def test_targets_equal_a_recomputation_whoever_keeps_them(
    tmp_path: Path, spark_runtime: SparkRuntime, seed: int, kind: type[TurnsHistory]
) -> None:
    play_seed(tmp_path, spark_runtime, seed, kind, STEPS_SHORT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_histories_by_turns(tmp_path: Path, spark_runtime: SparkRuntime, kind: type[TurnsHistory]) -> None:
    play_many(lambda root, seed: play_seed(root, spark_runtime, seed, kind), tmp_path)
