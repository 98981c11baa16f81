"""A view goes from a run to a cluster and back, and what is stored beside it too: neither is computed again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from deltalake import DeltaTable

from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import marked_job_id, spec_mark
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.errors import ErrorCode
from iscp.model.values.watermark import Watermark
from tests.selection import in_full

from .conftest import ViewBench

pytestmark = pytest.mark.spark

NewView = Callable[..., ViewBench]

GROUPS = "select b, count(*) c, sum(n) s from t group by b"
STORED = "select b, c, rank() over (order by c, b) r from (select b, count(*) c from t group by b)"
JOINED = "select t.a, t.b, u.x from t join u on t.a = u.a"


def of(row: JobRow, time: int, *, run: bool = False) -> JobRow:
    """Return the job as one that was registered at this time and has never run."""
    mark = spec_mark(row.table_uri, row.spec.consumer)
    job_id = marked_job_id(f"{time:012x}", mark, run=run)
    return row._replace(job_id=job_id, watermark=Watermark(), seq=0, status_json="")


def full_commits(uri: str) -> int:
    return sum('"kind":"snapshot"' in each.get("userMetadata", "") for each in DeltaTable(uri).history())


@pytest.mark.parametrize("sql", in_full([GROUPS, STORED, JOINED], but=[GROUPS, STORED]))
def test_changes_are_taken_from_the_first_iteration_on(new_view: NewView, sql: str) -> None:
    view = new_view(sql, seed=17, refresh="incremental")
    view.row = of(view.row, 1, run=True)
    assert view.run().ok
    for _ in range(3):
        view.lake.change()
        assert view.run().ok
    former = view.row
    for time, run in ((2, False), (3, True)):
        view.restart()
        view.lake.change()
        view.lake.change()
        view.row = of(view.row, time, run=run)
        outcome = view.run()
        assert outcome.ok, outcome.error_msg
        assert outcome.strategy in ("incremental", "groups", "changes", "difference"), (
            outcome.strategy,
            outcome.strategy_reason,
        )
        view.assert_equal()
    assert full_commits(view.target) == 1
    if sql is not JOINED:
        whole = [each for each in DeltaTable(view.target + VIEW_STATE_SUFFIX).history() if "Overwrite" in str(each)]
        assert len(whole) <= 1, "what is stored was not written again"
    view.row = former
    assert view.run().error_code == ErrorCode.SUPERSEDED


def test_a_process_that_dies_between_the_two_commits_leaves_a_view_that_goes_on(new_view: NewView) -> None:
    view = new_view(STORED, seed=18, refresh="incremental")
    view.row = of(view.row, 1)
    assert view.run().ok
    former = view.row
    view.row = of(view.row, 2, run=True)
    view.restart()

    def die() -> None:
        raise RuntimeError("killed")

    view.failpoints.once("commit.after", die)  # that of what is stored, which is the first
    with suppress(RuntimeError):
        assert not view.run().ok
    view.restart()
    view.lake.change()
    taker, view.row = view.row, former
    assert view.run().ok, "the former keeper goes on: the view is its own still"
    view.assert_equal()
    view.row = taker
    assert view.run().ok
    view.assert_equal()
