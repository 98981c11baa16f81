"""Which commits are left to the tail, and which are kept first."""

from __future__ import annotations

import pytest

from iscp.core.commit_route import CommitRoute, JobPhase, route_commit

TAIL, STAGING = CommitRoute
WAITING, BUILDING, BUILT = JobPhase


@pytest.mark.parametrize(
    ("phases", "route"),
    [
        ((), TAIL),
        ((WAITING,), TAIL),
        ((BUILT,), TAIL),
        ((BUILT, WAITING), TAIL),
        ((BUILDING,), STAGING),
        ((BUILT, BUILDING), STAGING),
        ((WAITING, BUILDING), STAGING),
    ],
)
def test_a_commit_is_kept_while_a_job_is_built(phases: tuple[JobPhase, ...], route: CommitRoute) -> None:
    assert route_commit(phases) is route
