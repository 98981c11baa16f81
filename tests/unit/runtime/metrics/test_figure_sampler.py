from __future__ import annotations

from collections.abc import Iterator

import pytest

from iscp.core.job.job_row import JobRow
from iscp.core.metrics.feed_metrics import COUNT, LAG, LAG_REST, UNNAMED
from iscp.core.metrics.index_metrics import ROWS
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.values.errors import IscpError, StorageError
from iscp.runtime.access.place_guard import ANYWHERE
from iscp.runtime.admin.target_figures import TargetFigures
from iscp.runtime.metrics.figure_sampler import TARGETS_MAX, FigureSampler, sampled_feeds, sampled_indexes
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.waiting import until

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
            if each.metric is LAG
        }

    def found(self) -> dict[str, float]:
        return {each.attributes["iscp.job"]: each.value for each in self.sampler.read() if each.metric is ROWS}


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
    sums = {each.metric: each.value for each in bench.sampler.read() if each.metric is not LAG}
    assert sums == {LAG_REST: 0.0, COUNT: 3, UNNAMED: 1}


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
