"""Operators' orders are validated, stored in etcd before they take effect, and answered with their effect.

Requests about builds are validated by what the builder knows, and given to it or refused; jobs are found by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from iscp.cluster.requests.job_maker import JobMaker
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.cluster.worker_loop import VerifyDesk
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    JobChange,
    JobName,
    LogPage,
    LogPlace,
    LogQuery,
    NodeVerb,
    ShardVerb,
)
from iscp.model.build.build_progress import BuildStage, JobBuild, KnownBuilds
from iscp.model.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.model.protocol.messages import Sync
from iscp.model.values.errors import InvalidRequest, IscpError, JobNotFound, NotOwner, TableNotFound, Unavailable
from iscp.model.values.ids import JobKey, NodeRecord, ShardId
from iscp.model.values.progress import SnapshotSize, TableSize
from iscp.model.values.ring import Overrides
from iscp.ports.consumer import ConsumerKind
from iscp.server.admin.operator_service import OwnerBuilds, OwnerOperator, Resharder
from tests.fakes.catalog import FakeCatalog
from tests.fakes.etcd import FakeMembership, FakeOverrides
from tests.fakes.nodes import FakeCalls, nodes_and_views
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import TIMES, OwnerWorld
from tests.fakes.pipeline import FakeKind
from tests.fakes.shown_builds import FakeTermBuilds
from tests.fakes.waiting import until

SHARD = ShardId("t-1")


class Operated:
    """An owner whose node `n-1` runs the table t-1, and an operator who speaks to it."""

    def __init__(self) -> None:
        self.world = OwnerWorld()
        self.world.lead()
        self.sharded = True
        self.store = FakeOverrides(self.world.etcd)
        self.intake = RequestValidator(JobMaker(FakeCatalog(), self.kinds, lambda trigger: None, self.world.clock))
        self.calls = FakeCalls(VerifyDesk(lambda event: None, self.world.clock))
        nodes, _ = nodes_and_views(self.world.owner, self.world.membership, self.world.clock, self.calls)
        resharder = Resharder(self.world.owner, FakeCatalog(), self.kinds, self.intake)
        self.operator = OwnerOperator(self.world.owner, self.store, FakeCatalog(), resharder, nodes, tuple)
        register(self.world, row("x", job_id="000000000001")._replace(table_name="orders"))

    def kinds(self, name: str) -> ConsumerKind:
        return FakeKind(sharded=self.sharded)

    def ranges(self) -> list[int]:
        return [each.range_id for each in self.operator.placement("t-1")]

    def join(self, node_id: str) -> None:
        """Another node, which is registered and has synced with nothing."""
        FakeMembership(self.world.etcd).register(NodeRecord(node_id, 1, f"{node_id}:1"))
        owner = self.world.owner

        def known() -> bool:
            return owner.query(lambda loop: loop.machine.term is not None and node_id in loop.machine.term.peers)

        until(known)
        owner.receive(node_id, [Sync(owner.machine.owner_rev, 1, "v", 1, 0, 1, 0, ())])
        until(lambda: owner.query(lambda loop: loop.machine.term and node_id in loop.machine.term.placement.eligible))
        self.world.pass_s(TIMES.settle_s)

    def overrides(self) -> Overrides:
        """As the owner has them."""
        return self.world.owner.query(lambda loop: loop.machine.term.placement.overrides)  # type: ignore[union-attr]


@pytest.fixture
def operated() -> Iterator[Operated]:
    made = Operated()
    yield made
    made.world.close()


def test_a_cordon_is_kept_before_it_counts_and_may_be_repeated(operated: Operated) -> None:
    operator = operated.operator
    assert operator.change_node(NodeVerb.CORDON, "n-1") == (True, 1)
    assert operated.store.load().cordoned == {"n-1"}
    until(lambda: operated.overrides().cordoned == {"n-1"})
    assert operator.change_node(NodeVerb.CORDON, "n-1") == (False, 1)
    assert operator.change_node(NodeVerb.UNCORDON, "n-1") == (True, 1)
    until(lambda: operated.overrides() == Overrides())
    assert operator.change_node(NodeVerb.UNCORDON, "n-1") == (False, 1)


def test_an_account_sees_a_table_by_the_name_that_it_has_given_it(operated: Operated) -> None:
    """Under which name another registered it first is that one's own."""
    operator = operated.operator
    for name, called in (("z", "mine"), ("y", "later")):
        register(operated.world, row(name)._replace(key=JobKey("b", "t-1", name), table_name=called))
    for table in ("t-1", ""):
        for account, name in (("a", "orders"), ("b", "mine"), ("", "orders")):
            assert {each.table for each in operator.placement(table, account)} == {name}
            events = operator.events(0, 0, 0.0, lambda: True, table, account)
            assert {each.table for each in events if each.shard} == {name}
    assert operator.placement("", "c") == []
    assert operator.events(0, 0, 0.0, lambda: True, "", "c") == []


def test_what_makes_no_sense_is_refused_and_nothing_changes(operated: Operated) -> None:
    operator = operated.operator
    with pytest.raises(InvalidRequest, match="there is no node 'n-9'") as refused:
        operator.change_node(NodeVerb.CORDON, "n-9")
    assert refused.value.remedy == "The nodes are: n-1"
    with pytest.raises(InvalidRequest, match="last node"):
        operator.change_node(NodeVerb.DRAIN, "n-1")
    with pytest.raises(InvalidRequest, match="no node 'n-9'"):
        operator.change_shards(ShardVerb.MOVE, "t-1", 0, "n-9")
    with pytest.raises(TableNotFound):
        operator.change_shards(ShardVerb.PIN, "/tables/none", 0, "n-1")
    with pytest.raises(InvalidRequest, match="no shard 7"):
        operator.change_shards(ShardVerb.PIN, "t-1", 7, "n-1")
    operated.join("n-2")
    operator.change_node(NodeVerb.CORDON, "n-2")
    until(lambda: operated.overrides().cordoned == {"n-2"})
    with pytest.raises(InvalidRequest, match="n-2 is cordoned") as cordoned:
        operator.change_shards(ShardVerb.MOVE, "t-1", 0, "n-2")
    assert "uncordon n-2" in cordoned.value.remedy
    with pytest.raises(InvalidRequest, match="last node"):
        operator.change_node(NodeVerb.DRAIN, "n-1")
    assert operated.store.load() == Overrides(frozenset({"n-2"}))


def test_a_node_that_is_gone_for_good_can_be_uncordoned(operated: Operated) -> None:
    operated.join("n-2")
    operated.operator.change_node(NodeVerb.CORDON, "n-2")
    until(lambda: operated.overrides().cordoned == {"n-2"})
    (lease_id,) = (record.lease_id for record in operated.world.etcd.members() if record.node_id == "n-2")
    operated.world.etcd.expire(lease_id)
    assert operated.operator.change_node(NodeVerb.UNCORDON, "n-2") == (True, 0)


def test_a_pin_holds_and_says_why_a_shard_is_elsewhere(operated: Operated) -> None:
    operated.join("n-2")
    (before,) = operated.operator.placement("")
    assert (before.node_id, before.state, before.pinned) == ("n-1", "running", "")
    away = "n-2"
    assert operated.operator.change_shards(ShardVerb.PIN, "t-1", 0, away) == 1
    assert operated.operator.change_shards(ShardVerb.PIN, "t-1", 1, away) == 0
    assert operated.store.load().pins == {SHARD: away}
    until(lambda: operated.operator.placement("t-1")[0].pinned == away)
    until(lambda: operated.operator.placement("t-1")[0].node_id != "n-1")
    assert operated.operator.change_shards(ShardVerb.UNPIN, "t-1", 0, "") == 1
    assert operated.store.load().pins == {}


def test_a_move_of_what_is_there_already_is_none(operated: Operated) -> None:
    assert operated.operator.change_shards(ShardVerb.MOVE, "t-1", 0, "n-1") == 0


def test_between_terms_there_is_nobody_to_query(operated: Operated) -> None:
    operated.world.owner.on_lost()
    until(lambda: operated.world.owner.writer is None)
    with pytest.raises(NotOwner):
        operated.operator.placement("")
    with pytest.raises(NotOwner):
        operated.operator.change_node(NodeVerb.CORDON, "n-1")
    with pytest.raises(NotOwner):
        operated.operator.events(0, 0, 0.0, lambda: True)


def test_events_say_what_was_decided_and_why(operated: Operated) -> None:
    events = operated.operator.events(0, 0, 0.0, lambda: True)
    assert [(each.what, each.node_id) for each in events] == [
        ("term", "n-1"),
        ("join", "n-1"),
        ("sync", "n-1"),
        ("dispatch", "n-1"),
    ]
    assert [each.number for each in events] == [1, 2, 3, 4]
    assert (events[-1].shard, events[-1].table, events[-1].why) == ("t-1", "orders", "new")
    last = events[-1]
    assert operated.operator.events(last.owner_rev, last.number, 0.05, lambda: True) == []
    operated.join("n-2")
    assert [record.node_id for record in operated.world.synced] == ["n-2"], "not the owner itself"
    new = operated.operator.events(last.owner_rev, last.number, 5.0, lambda: True)
    assert [each.what for each in new][:1] == ["join"]
    assert operated.operator.events(last.owner_rev - 1, 99, 0.0, lambda: True)[0] == events[0]


def test_events_of_a_table_are_those_of_its_shards_alone(operated: Operated) -> None:
    operated.join("n-2")
    events = operated.operator.events(0, 0, 0.0, lambda: True)
    of_table = operated.operator.events(0, 0, 0.0, lambda: True, "orders")
    assert of_table == [each for each in events if each.shard == "t-1"] != events
    assert operated.operator.events(0, 0, 0.0, lambda: True, "t-1") == of_table
    with pytest.raises(TableNotFound):
        operated.operator.events(0, 0, 0.0, lambda: True, "nowhere")


def test_a_table_is_split_and_merged_and_pins_of_ranges_that_are_gone_go_with_them(operated: Operated) -> None:
    operator = operated.operator
    operator.change_shards(ShardVerb.PIN, "t-1", 0, "n-1")
    until(lambda: operated.overrides().pins == {SHARD: "n-1"})
    assert operator.reshard(False, "t-1", 0, "r-1") == 2
    assert operator.reshard(False, "t-1", 0, "r-1") == 2  # the same, heard twice
    until(lambda: operated.ranges() == [2, 3])
    until(lambda: operated.overrides().pins == {})
    assert operator.change_shards(ShardVerb.PIN, "t-1", 3, "n-1") == 1
    assert operated.store.load().pins == {ShardId("t-1", 3): "n-1"}
    assert operator.reshard(True, "t-1", 3, "r-2") == 1
    until(lambda: operated.ranges() == [1])
    assert operated.store.load().pins == {}
    with pytest.raises(InvalidRequest, match="no range 3"):
        operator.reshard(True, "t-1", 3, "r-3")


def test_what_cannot_be_split_is_refused_with_its_jobs_and_nothing_changes(operated: Operated) -> None:
    operator = operated.operator
    operated.sharded = False
    with pytest.raises(InvalidRequest, match=r"x \(replica: its sink is not sharded\)") as refused:
        operator.reshard(False, "t-1", 0, "r-1")
    assert refused.value.field == "table"
    assert "Unregister" in refused.value.remedy
    operated.sharded = True
    with pytest.raises(TableNotFound):
        operator.reshard(False, "/tables/none", 0, "r-1")
    assert operated.ranges() == [1]


def test_lines_of_a_log_come_from_the_node_after_its_place(operated: Operated) -> None:
    place, calls = LogPlace(5, 6), operated.calls
    assert operated.operator.node_logs("n-1", LogQuery(tail=3), {"n-2": place}) == [LogPage("n-1", LogPlace(1, 1))]
    operated.operator.node_logs("n-1", LogQuery(tail=3), {"n-1": place})
    assert calls.queries == [LogQuery(tail=3), LogQuery(place, tail=3)]
    with pytest.raises(InvalidRequest, match="there is no node 'n-9'") as refused:
        operated.operator.node_logs("n-9", LogQuery(), {})
    assert refused.value.remedy == "The nodes are: n-1"


def test_lines_about_a_job_come_from_all_nodes(operated: Operated) -> None:
    operated.join("n-2")
    job = JobName("orders", "x", "a")
    pages = operated.operator.job_logs(job, LogQuery(), {"n-2": LogPlace(5, 6)})
    assert {page.node_id for page in pages} == {"n-1", "n-2"}
    assert {query.after for query in operated.calls.queries} == {None, LogPlace(5, 6)}
    (about,) = {query.job for query in operated.calls.queries}
    assert about is not None
    assert (about.job_id, about.name, about.account) == ("000000000001", "x", "a")
    assert {"t-1", "orders"} <= set(about.tables)
    with pytest.raises(JobNotFound):
        operated.operator.job_logs(JobName("orders", "y", "a"), LogQuery(), {})


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
