"""What is known of further tables: who is behind them, and since when."""

from __future__ import annotations

from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.messages import FurtherSeen, VersionAge
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.schedule.further_tables import FurtherAnswer, FurtherQuery, FurtherTables, SeveralTables
from iscp.schedule.lag import ProbeTimes


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
