"""The lag that is shown is never below the truth, whatever is committed, lost or set wrong; and no more than it has to
be.

A clock that is ahead is noticed, and said once.

What is known of further tables: who is behind them, and since when.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import example, given, settings
from hypothesis import strategies as st

from iscp.cluster.owner.checkpoint_saver import SeenSources
from iscp.model.job.job_row import JobRow, JobStatus, apply_report
from iscp.model.job.start_rule import TARGET_LAG_S, ProbeState
from iscp.model.protocol.events import Seen
from iscp.model.protocol.messages import VERSIONS_MAX, FurtherSeen, SourceSeen, VersionAge
from iscp.model.values.errors import StorageError
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.schedule.lag import (
    AHEAD_FOR_S,
    CLOCKS_APART_S,
    BehindVersions,
    FurtherAnswer,
    FurtherQuery,
    FurtherTables,
    Lag,
    NodeClocks,
    ProbeTimes,
    SeveralTables,
    SteadyTime,
    commit_time_s,
    lag_of,
    of_the_future,
    probe_age_s,
)
from tests.fakes.clock import FakeClock
from tests.fakes.probe import FakeProbe
from tests.fakes.timetable import SHARD, URI, Timetable, job, outcome, specified

DAY_S = 86_400.0
STEP_S = 0.5
"""Seconds between two checks; a report is under way for as long at most, unless it is held."""


class DatedSource(FakeProbe):
    """A table whose commits have the times that their files say, which may be wrong."""

    def __init__(self, made_at_s: float) -> None:
        super().__init__()
        self.versions[URI] = 0
        self.dates_s = [made_at_s]

    def commit_at(self, date_s: float) -> None:
        self.dates_s.append(date_s)
        self.commit(URI)

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        state = super().probe(table_uri, seen)
        first = seen.version + 1
        return state if state is seen or first >= len(self.dates_s) else replace(state, since_s=self.dates_s[first])


class Cluster:
    """A node with the real schedule, an owner that shows what it reports, and the truth beside them.

    `late_s`: for how long a report may have been under way by now.
    """

    def __init__(self) -> None:
        self.node, self.clock = Timetable(), FakeClock()
        self.source = self.node.source = DatedSource(self.clock.now_s())
        self.made_s = [self.clock.monotonic_s()]
        self.sources = SeenSources(self.clock)
        mark = Watermark(0, self.clock.now_s())
        rows = [job("x", 0), specified(job("y", 0), independent=True)]
        self.rows = {row.key: row._replace(watermark=mark, create_at_s=self.clock.now_s()) for row in rows}
        self.held = self.apart = False
        self.node.start(*self.rows.values())

    def commit(self, dated_s: float) -> None:
        """`dated_s`: by how much the time of its file is wrong."""
        self.made_s.append(self.clock.monotonic_s())
        self.source.commit_at(self.clock.now_s() + dated_s)

    def finish(self, back: int, *, fails: bool) -> None:
        """What runs ends: at the newest version or a few before it, or without a result."""
        for number, run in list(self.node.running.items()):
            if fails:
                self.node.fail(number)
                continue
            goal = self.source.versions[URI] if run.to_version is None else run.to_version
            ended = []
            for row in run.jobs:
                version = max(row.watermark.version, goal - back)
                found = outcome(row, version, committed=version > row.watermark.version)
                ended.append(replace(found, watermark=Watermark(version, self.source.dates_s[version])))
            self.node.end(number, *ended)

    def restart_node(self) -> None:
        """It knows what the owner has, and nothing of former probes."""
        clock, source = self.node.clock, self.source
        self.node = Timetable()
        self.node.clock, self.node.source = clock, source
        self.node.start(*self.rows.values())

    def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.node.wait(STEP_S)
            self.clock.advance(STEP_S)
            self.deliver()
            self.check()

    def deliver(self) -> None:
        if self.held:
            return
        for report in self.node.reports:
            self.rows[report.key] = apply_report(self.rows[report.key], report) or self.rows[report.key]
        for news in self.node.news:
            if isinstance(news, Seen):
                self.sources.take(news.seen)
        self.node.reports, self.node.news = [], []

    def truth_s(self, row: JobRow) -> float:
        after = row.watermark.version + 1
        return self.clock.monotonic_s() - self.made_s[after] if after < len(self.made_s) else 0.0

    def lag(self, row: JobRow) -> Lag:
        return lag_of(row, self.sources.dated(SHARD), self.clock.now_s())

    def check(self) -> None:
        for row in self.rows.values():
            lag, truth_s = self.lag(row), self.truth_s(row)
            under_way_s = STEP_S if self.apart else 0.0
            shown = f"{row.key.job_name} lags by {truth_s}, and {lag} is shown"
            assert not lag.known or lag.most_s >= truth_s - under_way_s - 1e-3, shown


WRONG_S = st.sampled_from((0.0, 0.0, 0.0, 7 * DAY_S, -7 * DAY_S))
HAPPENS = st.one_of(
    st.tuples(st.just("commit"), WRONG_S),
    st.tuples(st.just("notice"), st.just(0.0)),
    st.tuples(st.just("pass"), st.floats(0.5, 90.0)),
    st.tuples(st.just("finish"), st.integers(0, 2)),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.sampled_from(("restart node", "restart owner", "storage hangs", "storage answers")), st.just(0.0)),
    st.tuples(st.just("hold"), st.booleans()),
)
STEPS = st.tuples(
    st.sampled_from(("step node", "step owner")), st.sampled_from((-100.0, -20.0, 20.0, 100.0, 30 * DAY_S))
)


def play(cluster: Cluster, what: str, how: float) -> None:
    match what:
        case "commit":
            cluster.commit(how)
        case "notice":
            cluster.node.notify()
        case "pass":
            cluster.pass_s(how)
        case "finish" | "fail":
            cluster.finish(int(how), fails=what == "fail")
        case "restart node":
            cluster.restart_node()
        case "restart owner":
            cluster.sources = SeenSources(cluster.clock)
        case "storage hangs":
            cluster.source.errors[URI] = StorageError("does not answer")
        case "storage answers":
            cluster.source.errors.clear()
        case "hold":
            cluster.held = bool(how)
        case "step node":
            cluster.node.clock.step(how)
            cluster.apart = True
        case "step owner":
            cluster.clock.step(how)
            cluster.apart = True
    cluster.deliver()
    cluster.check()


@settings(max_examples=100)
@given(st.lists(HAPPENS, min_size=5, max_size=40))
@example([("pass", 30.0), ("commit", 7 * DAY_S), ("pass", 60.0)])
@example([("pass", 30.0), ("storage hangs", 0.0), ("commit", 0.0), ("pass", 60.0)])
def test_no_lag_that_is_shown_is_below_the_truth(events: list[tuple[str, float]]) -> None:
    """Notices that are lost are commits without one."""
    cluster = Cluster()
    for what, how in events:
        play(cluster, what, how)


@settings(max_examples=60)
@given(st.lists(HAPPENS.filter(lambda each: each[0] not in ("hold", "restart node")) | STEPS, min_size=5, max_size=40))
@example([("step node", 30 * DAY_S), ("pass", 40.0), ("storage hangs", 0.0), ("commit", 0.0), ("pass", 60.0)])
def test_nor_is_it_where_clocks_are_set(events: list[tuple[str, float]]) -> None:
    cluster = Cluster()
    for what, how in events:
        play(cluster, what, how)


def test_an_idle_job_is_known_to_be_within_its_target_lag_though_nobody_notifies() -> None:
    cluster = Cluster()
    most_s = 0.0
    for _ in range(600):
        cluster.pass_s(1.0)
        most_s = max(most_s, *(cluster.lag(row).most_s for row in cluster.rows.values()))
    assert most_s < TARGET_LAG_S


def test_a_commit_that_nobody_announces_is_found_within_half_of_the_target_lag() -> None:
    cluster = Cluster()
    cluster.pass_s(300.0)
    cluster.commit(0.0)
    cluster.pass_s(TARGET_LAG_S / 2 + 1.0)
    assert cluster.node.running
    (lag, _) = (cluster.lag(row) for row in cluster.rows.values())
    assert lag.least_s == lag.most_s, "by the time of its file"


def test_the_versions_that_are_remembered_are_bounded_and_none_gains_by_it() -> None:
    behind = BehindVersions()
    for version in range(100):
        behind.note(version, 10.0 * version)
    ages = behind.ages(1_000.0)
    assert len(ages) == VERSIONS_MAX
    assert (ages[0], ages[-1]) == (VersionAge(0, 1_000.0), VersionAge(99, 10.0))
    assert all(behind.since_s(version, -inf) <= 10.0 * version for version in range(100))
    behind.forget(99)
    assert behind.ages(1_000.0) == (VersionAge(99, 10.0),)
    assert behind.since_s(98, -inf) == -inf


def test_a_time_that_no_commit_can_have_does_not_count() -> None:
    assert commit_time_s(15.0, 10.0, 20.0) == 15.0
    assert commit_time_s(25.0, 10.0, 20.0) == commit_time_s(5.0, 10.0, 20.0) == 10.0


def test_how_old_a_probe_is_says_the_clock_that_makes_it_older() -> None:
    seen = SourceSeen(SHARD, 3, 1_000.0, 0.0, reported_at_s=1_004.0)
    assert probe_age_s(seen, 1_006.0) == 6.0, "it was under way for two seconds"
    assert probe_age_s(seen, 900.0) == 4.0, "the node's clock is ahead"
    assert probe_age_s(replace(seen, reported_at_s=0.0), 900.0) == 0.0, "of a node that does not say it"


def test_a_clock_that_is_set_back_hides_only_what_is_known_by_it_alone() -> None:
    row, now_s = job("x", 7)._replace(create_at_s=DAY_S), 1_000.0
    seen = SourceSeen(SHARD, 9, now_s - 2.0, 30.0, ages=(VersionAge(7, 30.0),), reported_at_s=now_s - 1.0)
    assert lag_of(row, seen, now_s) == Lag(32.0, 32.0), "two probes have found it"
    assert lag_of(row, replace(seen, source_version=7, ages=()), now_s) == Lag(0.0, 2.0)
    by_clock = row._replace(watermark=Watermark(7, DAY_S))
    assert not lag_of(by_clock, replace(seen, ages=()), now_s).known
    assert not lag_of(row._replace(watermark=Watermark(-1)), seen, now_s).known
    doubted = row._replace(status_json=JobStatus(doubted_at_s=DAY_S).to_json())
    assert not lag_of(doubted, seen, now_s).known, "nor is the greater of what is known and what is not"


NOW_S = 1_000_000.0


def test_clocks_may_be_a_little_apart() -> None:
    assert not of_the_future(NOW_S + CLOCKS_APART_S, NOW_S)
    assert of_the_future(NOW_S + CLOCKS_APART_S + 1.0, NOW_S)


def test_of_a_clock_that_is_ahead_it_is_said_once_and_again_when_it_is_right() -> None:
    clocks = NodeClocks()
    assert clocks.note("n1", NOW_S, NOW_S) == ""
    assert "86400 s ahead" in clocks.note("n1", NOW_S + 86_400.0, NOW_S)
    assert clocks.note("n1", NOW_S + 86_401.0, NOW_S) == ""
    assert clocks.note("n2", NOW_S, NOW_S) == ""
    assert "agrees" in clocks.note("n1", NOW_S + 1.0, NOW_S)
    assert clocks.note("n1", NOW_S + 1.0, NOW_S) == ""


def test_a_clock_that_jumps_ahead_counts_once_it_has_stayed_there() -> None:
    time, day_s = SteadyTime(), 86_400.0
    assert time.read(NOW_S, 0.0) == NOW_S
    assert time.read(NOW_S + 10.0 + CLOCKS_APART_S, 10.0) == NOW_S + 10.0 + CLOCKS_APART_S, "a little is no jump"
    assert time.read(NOW_S + 20.0, 20.0) == NOW_S + 20.0
    for passed_s in (30.0, 30.0 + AHEAD_FOR_S - 1.0):
        assert time.read(NOW_S + day_s + passed_s, passed_s) == NOW_S + passed_s
    assert time.read(NOW_S + 2 * day_s + 640.0, 640.0) == NOW_S + 640.0, "it jumps again"
    late_s = 641.0 + AHEAD_FOR_S
    assert time.read(NOW_S + 2 * day_s + late_s, late_s) == NOW_S + 2 * day_s + late_s


def test_a_clock_that_is_set_back_counts_at_once() -> None:
    time = SteadyTime()
    assert time.read(NOW_S, 0.0) == NOW_S
    assert time.read(NOW_S - 1_000.0, 1.0) == NOW_S - 1_000.0
    assert time.read(NOW_S, 2.0) == NOW_S - 999.0, "and may be wrong, for all that is known"


def reading(**versions: int) -> SeveralTables:
    marks = {uri: SourceMark(uri, Watermark(version, 10.0)) for uri, version in versions.items() if version >= 0}
    return SeveralTables(tuple(versions), marks)


def test_each_table_is_probed_once_whoever_reads_it() -> None:
    tables, jobs = FurtherTables(), [reading(x=3, y=1), reading(x=2), reading(z=-1)]
    tables.keep(jobs)
    assert {query.uri for query in tables.queries()} == {"x", "y", "z"}
    assert FurtherQuery("z", None) in tables.queries()
    tables.keep([reading(y=1)])
    assert tables.queries() == (FurtherQuery("y", ProbeState(1)),)


def test_who_is_behind_shows_as_soon_as_a_table_has_moved_or_the_job_has_come_on() -> None:
    tables, jobs = FurtherTables(), [reading(x=3), reading(y=1)]
    tables.keep(jobs)
    moved = FurtherAnswer("x", ProbeState(4, b"1", 1_020.0))
    tables.note_probed([moved], ProbeTimes(sent_s=50.0, now_s=51.0, at_s=1_051.0))
    assert not tables.take([moved], jobs, ran_since_probe=False)
    assert [job.behind for job in jobs] == [True, False]
    assert tables.see(jobs, 50.0) == (FurtherSeen("x", 4, 30.0, ages=(VersionAge(3, 30.0),)), FurtherSeen("y", 1, 0.0))
    jobs[0].marks = reading(x=4).marks
    tables.compare(jobs)
    assert not jobs[0].behind
    assert {each.lag_s for each in tables.see(jobs, 60.0)} == {0.0}


def test_a_table_that_cannot_be_reached_is_as_it_was_when_it_was_probed_last() -> None:
    tables, jobs = FurtherTables(), [reading(x=3, y=1)]
    tables.keep(jobs)
    tables.note_probed([], ProbeTimes(50.0, 50.0, 1_050.0))
    gone = FurtherAnswer("x", None)
    tables.note_probed([gone], ProbeTimes(80.0, 80.0, 1_080.0))
    assert tables.take([gone], jobs, ran_since_probe=False) == {"x"}
    assert tables.see(jobs, 80.0) == (FurtherSeen("x", 3, 0.0, unseen_s=30.0), FurtherSeen("y", 1, 0.0))


def test_a_lower_version_is_a_recreated_table_unless_an_iteration_has_ended_since() -> None:
    jobs = [reading(x=3)]
    for moved in (False, True):
        tables = FurtherTables()
        tables.keep(jobs)
        doubted = tables.take([FurtherAnswer("x", ProbeState(2, b"1"))], jobs, ran_since_probe=moved)
        assert doubted == (set() if moved else {"x"})
    tables.keep(jobs)
    tables.take([FurtherAnswer("x", ProbeState(3, b"1"))], jobs, ran_since_probe=False)
    assert tables.take([FurtherAnswer("x", ProbeState(3, b"2"))], jobs, ran_since_probe=True) == {"x"}


def test_an_answer_that_comes_when_nobody_reads_the_table_any_more_counts_for_nothing() -> None:
    tables = FurtherTables()
    tables.keep([reading(x=3)])
    assert not tables.take([FurtherAnswer("y", None), FurtherAnswer("y", ProbeState(9))], [], ran_since_probe=False)
    assert tables.versions() == {"x": 3}
