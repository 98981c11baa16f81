"""Which commits are left to the tail, and which are kept first."""

from __future__ import annotations

import pytest

from iscp.core.job.commit_route import REPAIR_MARK, CommitRoute, JobPhase, is_repair, route_commit

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


@pytest.mark.parametrize(
    ("phases", "route"),
    [((), TAIL), ((WAITING,), TAIL), ((BUILT,), STAGING), ((BUILT, WAITING), STAGING), ((BUILDING,), STAGING)],
)
def test_a_repair_is_kept_where_a_job_tails(phases: tuple[JobPhase, ...], route: CommitRoute) -> None:
    assert route_commit(phases, repair=True) is route


@pytest.mark.parametrize(
    ("operation", "user_metadata"),
    [
        ("RESTORE", ""),
        ("MERGE", REPAIR_MARK),
        ("WRITE", '{"iscp.repair": true}'),
        ("WRITE", '{"why": "rates of May", "iscp.repair": true}'),
    ],
)
def test_what_is_a_repair(operation: str, user_metadata: str) -> None:
    assert is_repair(operation, user_metadata)


@pytest.mark.parametrize(
    ("operation", "user_metadata"),
    [
        ("MERGE", ""),
        ("restore", ""),
        ("WRITE", "after the iscp.repair of May"),
        ("WRITE", '{"iscp.repair": false}'),
        ("WRITE", '{"iscp.repair": "true"}'),
        ("WRITE", '{"note": {"iscp.repair": true}}'),
        ("WRITE", '["iscp.repair"]'),
        ("WRITE", '{"iscp.repair": true'),
        ("WRITE", '"iscp.repair"' + "[" * 100_000),
    ],
)
def test_what_is_none(operation: str, user_metadata: str) -> None:
    assert not is_repair(operation, user_metadata)
