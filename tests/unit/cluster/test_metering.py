""" """

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iscp.cluster.metering import TARGETS_MAX, FigureSampler, OwnerReadings, sampled_feeds, sampled_indexes
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.requests.job_views import JobViews, TargetFigures
from iscp.engine.account_turns import ANYWHERE
from iscp.model.build.build_progress import KnownBuilds
from iscp.model.job.job_row import JobRow
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import (
    FEED_COUNT,
    FEED_LAG,
    FEED_LAG_REST,
    FEED_UNNAMED,
    INDEX_ROWS,
    DeclaredMetric,
)
from iscp.model.protocol.messages import VersionAge
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import IscpError, NotOwner, StorageError
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.waiting import until

Found = dict[tuple[str, ...], float]


@pytest.fixture
def world() -> Iterator[OwnerWorld]:
    made = OwnerWorld()
    yield made
    made.close()


def no_builds() -> KnownBuilds:
    return KnownBuilds()


def read(world: OwnerWorld, named_max: int = 10) -> Found:
    readings = OwnerReadings(world.owner, no_builds, world.clock, named_max)
    return {(each.metric.name, *each.attributes.values()): each.value for each in readings.read()}


def of(found: Found, metric: DeclaredMetric) -> Found:
    return {key[1:]: value for key, value in found.items() if key[0] == metric.name}


def versions_behind(found: Found) -> dict[str, float]:
    """Return the versions that each job is behind by; they count a report only when the log has it, some time later."""
    return {key[2]: value for key, value in of(found, metrics.JOB_VERSIONS).items()}


def test_a_node_that_is_not_the_owner_says_only_that(world: OwnerWorld) -> None:
    assert read(world) == {(metrics.OWNER_LEADS.name,): 0}


def test_the_owner_reads_its_cluster(world: OwnerWorld) -> None:
    world.lead()
    register(world, row("j"))
    until(lambda: of(read(world), metrics.OWNER_SHARDS)[("running",)] == 1)
    found = read(world)
    assert found[metrics.OWNER_LEADS.name,] == found[metrics.OWNER_NODES.name,] == 1
    assert of(found, metrics.OWNER_SHARDS) == {("absent",): 0, ("dispatching",): 0, ("running",): 1, ("draining",): 0}
    assert found[metrics.OWNER_MOVING.name,] == 0
    assert found[metrics.OWNER_DECISIONS.name, "dispatch"] == 1
    assert found[metrics.OWNER_LOG_COMMITS.name,] >= 1
    assert of(found, metrics.BUILD_COUNT) == {("waiting",): 0, ("building",): 0, ("publishing",): 0}


def test_the_lag_of_a_job_is_the_one_that_its_status_shows(world: OwnerWorld) -> None:
    world.lead()
    behind, current = row("behind"), row("current", "t-2")
    register(world, behind, current)
    for each in (behind, current):
        world.report(each, 4)
    world.pass_s(60.0)
    world.see(9, ages=(VersionAge(4, 30.0),))
    world.see(4, table_id="t-2")
    until(lambda: versions_behind(read(world)) == {"behind": 5, "current": 0})
    found = read(world)
    views = JobViews(
        world.owner,
        NodeClients(world.owner, lambda record: pytest.fail("called")),
        lambda kind: pytest.fail(kind),
        world.clock,
    )
    rows = world.owner.current_writer().read(lambda book: list(book.rows()))
    shown = {view.name: view for view in views.of(rows)}
    assert of(found, metrics.JOB_LAG) == {
        ("a", "/tables/t-1", "behind", "replica"): shown["behind"].lag_s,
        ("a", "/tables/t-2", "current", "replica"): shown["current"].lag_s,
    }
    assert found[metrics.JOB_LAG_MAX.name,] == shown["behind"].lag_s
    assert of(read(world, 1), metrics.JOB_LAG).keys() == {("a", "/tables/t-1", "behind", "replica")}


def test_a_job_on_the_target_of_another_lags_globally_by_both(world: OwnerWorld) -> None:
    world.lead()
    first, second = row("first"), row("second", "t-2")
    second = second._replace(table_uri=first.spec.consumer.target)
    register(world, first, second)
    for each in (first, second):
        world.report(each, 4)
    world.pass_s(60.0)
    world.see(9, ages=(VersionAge(4, 30.0),))
    world.see(7, table_id="t-2", ages=(VersionAge(4, 20.0),))
    until(lambda: versions_behind(read(world)) == {"first": 5, "second": 3})
    found = read(world)
    local, whole = (
        {key[2]: value for key, value in of(found, metric).items()}
        for metric in (metrics.JOB_LAG, metrics.JOB_LAG_GLOBAL)
    )
    assert local == {"first": 30.0, "second": 20.0}
    assert whole == {"first": 30.0, "second": 50.0}


def test_jobs_are_counted_by_state_and_late_ones_by_their_target_lag(world: OwnerWorld) -> None:
    world.lead()
    slow = row("slow")
    slow = slow._replace(spec_json=slow.spec_json[:-1] + ', "target_lag": 20}')
    register(world, slow, row("other"))
    world.clock.advance(30.0)
    found = read(world)
    assert sum(of(found, metrics.JOB_COUNT).values()) == 2
    assert found[metrics.JOB_LATE.name,] == 1


def test_builds_that_are_not_loaded_yet_are_left_out(world: OwnerWorld) -> None:
    def not_yet() -> KnownBuilds:
        raise NotOwner("it begins")

    world.lead()
    readings = OwnerReadings(world.owner, not_yet, world.clock, 10)
    names = {each.metric.name for each in readings.read()}
    assert metrics.OWNER_NODES.name in names
    assert metrics.BUILD_COUNT.name not in names


NAMED_MAX = 2


def index(name: str) -> JobRow:
    spec = JobSpec(ConsumerSpec("fulltext", f"/targets/{name}", ("id",), options={"columns": "body"}))
    return row(name)._replace(spec_json=spec.to_json())


def feed(name: str) -> JobRow:
    spec = JobSpec(ConsumerSpec("changefeed", f"/feeds/{name}", ("id",)))
    return row(name)._replace(spec_json=spec.to_json())


class Bench:
    def __init__(self, every_s: float = 3_600.0) -> None:
        self.world, self.read_of = OwnerWorld(), list[str]()
        self.lags: dict[str, dict[str, float] | IscpError] = {}
        feeds = sampled_feeds(self._lags, ANYWHERE, NAMED_MAX)
        sampled = (sampled_indexes(self._figures), feeds)
        self.sampler = FigureSampler(self.world.owner, sampled, self.world.clock, every_s)

    def _figures(self, of: JobRow) -> TargetFigures:
        self.read_of.append(of.key.job_name)
        return TargetFigures({"rows": len(self.read_of)})

    def _lags(self, uri: str) -> dict[str, float]:
        found: dict[str, float] | IscpError = self.lags[uri]
        if isinstance(found, IscpError):
            raise found
        return found

    def behind(self) -> dict[tuple[str, str], float]:
        return {
            (each.attributes["iscp.job"], each.attributes["iscp.feed.cursor"]): each.value
            for each in self.sampler.read()
            if each.metric is FEED_LAG
        }

    def found(self) -> dict[str, float]:
        return {each.attributes["iscp.job"]: each.value for each in self.sampler.read() if each.metric is INDEX_ROWS}


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.sampler.close()
    made.world.close()


def test_only_the_figures_of_indexes_are_read(bench: Bench) -> None:
    bench.world.lead()
    register(bench.world, row("copy"), index("words"))
    bench.sampler.turn()
    assert bench.read_of == ["words"]
    assert bench.found() == {"words": 1}


def test_the_cursors_of_all_feeds_that_jobs_write_are_read(bench: Bench) -> None:
    bench.world.lead()
    register(bench.world, feed("a"), feed("b"), feed("c"), row("copy"))
    bench.lags = {
        "/feeds/a": {"mail": 5.0, "audit": 0.0},
        "/feeds/b": StorageError("it does not answer"),
        "/feeds/c": {"mail": 70.0},
    }
    bench.sampler.turn()
    assert bench.behind() == {("a", "mail"): 5.0, ("c", "mail"): 70.0}
    sums = {each.metric: each.value for each in bench.sampler.read() if each.metric is not FEED_LAG}
    assert sums == {FEED_LAG_REST: 0.0, FEED_COUNT: 3, FEED_UNNAMED: 1}


def test_a_node_that_is_not_the_owner_reads_none(bench: Bench) -> None:
    bench.sampler.turn()
    assert bench.read_of == []
    assert bench.found() == {}


def test_a_node_that_is_the_owner_no_more_has_none_at_once(bench: Bench) -> None:
    bench.world.lead()
    register(bench.world, index("words"))
    bench.sampler.turn()
    bench.world.owner.on_lost()
    until(lambda: bench.found() == {})


def test_no_more_indexes_are_read_than_the_bound(bench: Bench) -> None:
    bench.world.lead()
    register(bench.world, *(index(f"words-{n}") for n in range(TARGETS_MAX + 3)))
    bench.sampler.turn()
    assert len(bench.found()) == len(bench.read_of) == TARGETS_MAX


def test_a_thread_of_its_own_reads_until_the_end(bench: Bench) -> None:
    bench.world.lead()
    register(bench.world, index("words"))
    bench.sampler.start()
    until(lambda: bench.found() == {"words": 1})
