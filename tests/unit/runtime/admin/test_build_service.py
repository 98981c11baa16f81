"""Requests about builds are validated by what the builder knows, and given to it or refused; jobs are found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from iscp.core.api.api_requests import ChangeOutcome, ChangeVerb, JobChange, JobName
from iscp.core.build.api_builds import BuildStage
from iscp.core.build.build_progress import JobBuild, KnownBuilds
from iscp.core.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.core.values.errors import InvalidRequest, IscpError, JobNotFound, NotOwner, TableNotFound, Unavailable
from iscp.core.values.progress import SnapshotSize, TableSize
from iscp.runtime.admin.build_service import OwnerBuilds
from tests.fakes.catalog import FakeCatalog
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.shown_builds import FakeTermBuilds

SIZE = SnapshotSize(1_000, 8_000, 100)


def build(name: str, table_id: str = "t-1", stage: BuildStage = BuildStage.BUILDING) -> JobBuild:
    """Of the account `a`, with the ranges 4 to 7 unfinished, of which 7 is aborted."""
    plan = BuildPlan(f"id-{name}", "a", table_id, name, f"/tables/{table_id}", 7, "{}", 0, 2, SIZE)
    tasks = [
        BuildTask(f"{name}-{each}", TaskType.BUILD_RANGE, each == 7, table_id, f"id-{name}", each, "n-1")
        for each in (range(4, 8) if stage is BuildStage.BUILDING else ())
    ]
    return JobBuild(plan, stage, tuple(tasks), began_at_s=1.0)


class Built:
    """An owner with the jobs `x` and `y` on the table orders, and `z` on t-2; `paused` is what was paused."""

    def __init__(self) -> None:
        self.world = OwnerWorld()
        self.world.lead()
        named = [row("x")._replace(table_name="orders"), row("y")._replace(table_name="orders"), row("z", "t-2")]
        register(self.world, *named)
        self.builder = FakeTermBuilds(KnownBuilds((build("x"),), frozenset({"x-4"})))
        self.paused: list[JobChange] = []
        self.outcome: ChangeOutcome = True
        self.admin = OwnerBuilds(self.world.owner, FakeCatalog(), self.builder, self.pause, self.world.clock)

    def pause(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        self.paused += changes
        return [self.outcome for _ in changes]

    def known(self, *builds: JobBuild) -> None:
        self.builder.builds = KnownBuilds(builds)


@pytest.fixture
def built() -> Iterator[Built]:
    made = Built()
    yield made
    made.world.close()


def test_builds_are_shown_of_all_tables_or_of_one_by_its_name(built: Built) -> None:
    built.known(build("x"), build("z", "t-2", BuildStage.WAITING))
    assert [(each.table, each.jobs) for each in built.admin.builds("")] == [("orders", ("x",)), ("t-2", ("z",))]
    (view,) = built.admin.builds("orders")
    assert len(view.tasks) == 4
    assert [each.table for each in built.admin.builds("t-2")] == ["t-2"]
    with pytest.raises(TableNotFound):
        built.admin.builds("nowhere")


def test_a_build_whose_job_is_gone_is_shown_by_the_place_of_its_table(built: Built) -> None:
    built.known(build("gone"))
    assert [each.table for each in built.admin.builds("")] == ["/tables/t-1"]


def test_an_abort_pauses_what_is_not_staged_yet(built: Built) -> None:
    staged = build("y", stage=BuildStage.PUBLISHING)
    built.known(build("x"), staged)
    assert built.admin.abort(JobName("orders", "")) == 3
    assert built.admin.abort(JobName("orders", "x", "a")) == 3
    assert [(each.verb, each.job) for each in built.paused] == [(ChangeVerb.PAUSE, JobName("t-1", "x", "a"))] * 2


@pytest.mark.parametrize(
    ("job", "kind", "message"),
    [
        (JobName("orders", "y", "a"), InvalidRequest, "is staged as a whole"),
        (JobName("orders", "w", "a"), JobNotFound, "no job 'w'"),
        (JobName("orders", "x", "b"), TableNotFound, "orders has no jobs"),
        (JobName("t-2", "z", "a"), InvalidRequest, "job 'z' on t-2 is not being built"),
        (JobName("t-2", ""), InvalidRequest, "t-2 is not being built"),
        (JobName("nowhere", ""), TableNotFound, "nowhere"),
    ],
)
def test_an_abort_of_what_is_finished_or_unknown_is_refused(
    built: Built, job: JobName, kind: type[IscpError], message: str
) -> None:
    built.known(build("x"), build("y", stage=BuildStage.PUBLISHING))
    with pytest.raises(kind, match=message) as refused:
        built.admin.abort(job)
    assert refused.value.field
    assert refused.value.remedy
    assert built.paused == []


def test_an_abort_fails_as_the_pause_does(built: Built) -> None:
    built.outcome = JobNotFound("it is gone")
    with pytest.raises(JobNotFound, match="it is gone"):
        built.admin.abort(JobName("orders", "x", "a"))


def test_ranges_are_split_and_merged_together_or_not_at_all(built: Built) -> None:
    assert built.admin.split("orders", 0) == 6
    assert built.admin.split("orders", 5) == 4
    assert built.admin.merge("orders", 5) == 2
    wanted = [("split", "t-1", [4, 5, 6]), ("split", "t-1", [5]), ("merge", "t-1", [2])]
    assert built.builder.changes == wanted
    for change, range_id in ((built.admin.split, 7), (built.admin.merge, 6), (built.admin.merge, 9)):
        with pytest.raises(InvalidRequest):
            change("orders", range_id)
    for change in (built.admin.split, built.admin.merge):
        with pytest.raises(InvalidRequest, match="t-2 is not being built"):
            change("t-2", 0)
        with pytest.raises(TableNotFound):
            change("nowhere", 0)
    assert built.builder.changes == wanted


def test_of_a_table_that_was_recreated_one_has_to_be_named(built: Built) -> None:
    register(built.world, row("x", "t-3", "id-new")._replace(table_name="orders"))
    built.known(build("x"), build("x", "t-3"))
    with pytest.raises(InvalidRequest, match=r"each is being built: t-1, t-3"):
        built.admin.split("orders", 0)
    assert built.admin.split("t-3", 4) == 4
    assert built.builder.changes == [("split", "t-3", [4])]


def test_a_table_is_built_next_once(built: Built) -> None:
    built.known(build("x", stage=BuildStage.WAITING), build("z", "t-2", BuildStage.WAITING))
    assert built.admin.prioritize("t-2")
    assert built.builder.changes == [("prioritize", "t-2", 1)]
    assert not built.admin.prioritize("orders")
    built.known(build("z", "t-2"))
    assert not built.admin.prioritize("t-2")
    with pytest.raises(InvalidRequest, match="orders is not being built"):
        built.admin.prioritize("orders")
    assert len(built.builder.changes) == 1


def test_a_builder_that_does_not_know_yet_says_so(built: Built) -> None:
    built.builder.fault = Unavailable("the builds are being read")
    for call in (lambda: built.admin.builds(""), lambda: built.admin.split("orders", 0)):
        with pytest.raises(Unavailable):
            call()


def test_between_terms_there_is_nobody_who_builds() -> None:
    world = OwnerWorld()
    admin = OwnerBuilds(world.owner, FakeCatalog(), FakeTermBuilds(), lambda changes: [], world.clock)
    with pytest.raises(NotOwner):
        admin.builds("")
    world.close()


def test_an_owner_that_builds_nothing_refuses_every_change(built: Built) -> None:
    admin = OwnerBuilds(built.world.owner, FakeCatalog(), FakeTermBuilds(), built.pause, built.world.clock)
    assert admin.builds("") == []
    calls: list[Callable[[], object]] = [
        lambda: admin.abort(JobName("orders", "")),
        lambda: admin.prioritize("orders"),
        lambda: admin.split("orders", 0),
        lambda: admin.merge("orders", 2),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match="orders is not being built"):
            call()
    assert built.paused == []


def test_views_have_the_time_of_the_clock(built: Built) -> None:
    now_s = built.world.clock.now_s()
    done = build("x")
    half = {"n-1": TableSize(500, 4_000)}
    built.known(replace(done, tasks=done.tasks[:2], done=half, began_at_s=now_s - 10.0))
    (view,) = built.admin.builds("orders")
    assert (view.done_share, view.left_s) == (0.5, 10.0)
