"""The demo's parts that need no node: the data cut into days, the source tables, and the comparison at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.cli.demo import lake
from iscp.cli.demo.lake import (
    ARRIVAL,
    DEPARTURE,
    KEY,
    ROUTES,
    DemoJob,
    Sources,
    Year,
    commit_times_s,
    demo_jobs,
    differences,
    lags_s,
    percentile,
    read,
    verify,
    version,
)
from iscp.cli.demo.replay import Replay, Replayed
from iscp.model.api.api_requests import JobView
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.job.start_rule import Comparison, VerifyReport
from iscp.model.values.watermark import SourceMark, Watermark


@pytest.fixture(scope="module")
def year() -> Year:
    return lake.load(365)


@pytest.fixture
def sources(tmp_path: Path, year: Year) -> Sources:
    return Sources(tmp_path / "lake", year)


def same(one: pa.Table, other: pa.Table) -> bool:
    return bool(differences(one, other).num_rows == 0)


class TestFlights:
    def test_the_year_is_whole(self, year: Year) -> None:
        assert sum(day.schedule.num_rows for day in year.days) == 336_776
        assert [(day.month, day.day) for day in (year.days[0], year.days[-1])] == [(1, 1), (12, 31)]

    def test_the_key_distinguishes_flights(self, year: Year) -> None:
        everything = pa.concat_tables(day.schedule for day in year.days)
        assert everything.group_by(list(KEY)).aggregate([]).num_rows == everything.num_rows

    def test_each_flight_departs_or_is_cancelled(self, year: Year) -> None:
        for day in year.days[:10]:
            assert day.departed.num_rows + day.cancelled.num_rows == day.schedule.num_rows
            assert day.arrived.num_rows == day.departed.num_rows

    def test_what_is_not_known_yet_is_null(self, year: Year) -> None:
        day = year.days[0]
        assert {day.schedule[name].null_count for name in (*DEPARTURE, *ARRIVAL)} == {day.schedule.num_rows}
        assert {day.departed[name].null_count for name in ARRIVAL} == {day.departed.num_rows}
        assert day.departed["dep_time"].null_count == 0
        assert day.arrived["arr_delay"].null_count < day.arrived.num_rows


class TestSources:
    def test_a_day_leaves_the_flights_that_flew(self, sources: Sources, year: Year) -> None:
        first, second = year.days[:2]
        sources.schedule(first)
        assert same(read(sources.flights), first.schedule)
        sources.depart(first)
        assert same(read(sources.flights), first.departed)
        sources.schedule(second)
        sources.arrive(first)
        assert same(read(sources.flights), pa.concat_tables([first.arrived, second.schedule]))
        assert same(read(sources.weather), first.weather)

    def test_every_commit_has_its_time(self, sources: Sources, year: Year) -> None:
        sources.schedule(year.days[0])
        times = commit_times_s(sources.flights)
        assert sorted(times) == [0, version(sources.flights)]
        assert times[1] >= times[0] > 1e9


class TestDifferences:
    ROWS = pa.table({"k": [1, 2, 3], "v": ["a", None, "c"]})

    def test_order_means_nothing(self) -> None:
        assert same(self.ROWS, self.ROWS.take([2, 0, 1]).select(["v", "k"]))

    def test_a_missing_a_surplus_and_a_changed_row(self) -> None:
        actual = pa.table({"k": [1, 3, 3, 4], "v": ["a", "x", "c", "d"]})
        found = differences(self.ROWS, actual).sort_by([("k", "ascending"), ("v", "ascending")]).to_pylist()
        assert found == [
            {"k": 2, "v": None, "_count": -1},
            {"k": 3, "v": "x", "_count": 1},
            {"k": 4, "v": "d", "_count": 1},
        ]

    def test_a_doubled_row_is_a_difference(self) -> None:
        assert not same(self.ROWS, pa.concat_tables([self.ROWS, self.ROWS.slice(0, 1)]))

    def test_a_null_is_not_an_empty_text(self) -> None:
        assert not same(self.ROWS, pa.table({"k": [1, 2, 3], "v": ["a", "", "c"]}))

    def test_other_columns_are_refused(self) -> None:
        with pytest.raises(ValueError, match="columns"):
            differences(self.ROWS, self.ROWS.select(["k"]))


class TestLags:
    def test_each_version_counts_from_its_own_commit(self) -> None:
        assert lags_s({1: 10.0, 2: 11.0, 3: 12.0}, [(0, 2, 13.0), (2, 3, 12.5)]) == [3.0, 2.0, 0.5]

    def test_the_first_arrival_counts(self) -> None:
        assert lags_s({1: 10.0}, [(0, 1, 15.0), (-1, 1, 11.0)]) == [1.0]

    def test_what_has_not_arrived_has_no_lag(self) -> None:
        assert lags_s({1: 10.0}, []) == []

    def test_percentiles(self) -> None:
        assert percentile([], 0.5) is None
        assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
        assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0


@dataclass
class History:
    """What `verify` calls of a client."""

    entries: Sequence[HistoryEntry]

    def history(self, table: str, name: str, *, limit: int) -> list[HistoryEntry]:
        return list(self.entries)


@dataclass
class ViewHistory(History):
    """Of a view that is at these versions of its tables."""

    at: Mapping[str, int]

    def status(self, table: str, name: str) -> JobView:
        marks = {uri: SourceMark("id", Watermark(version, 1.0)) for uri, version in self.at.items()}
        place = ("default", "t", table, name, "id", "{}", JobState.COMPLETED, Reason.NONE)
        return JobView(*place, 1, 1.0, 1, 1.0, 0.0, 1, JobStatus(sources=marks), 1.0)


def entry(from_version: int, to_version: int, end_s: float, error_code: int = 0) -> HistoryEntry:
    start_s = end_s - 1
    return HistoryEntry(
        *("default", "t", "j", "id", 1, from_version, to_version, start_s, end_s, start_s),
        *(error_code, "", 0, 0, "tail", "n"),
    )


class TestVerify:
    @pytest.fixture
    def jobs(self, tmp_path: Path, sources: Sources, year: Year) -> tuple[DemoJob, ...]:
        sources.schedule(year.days[0])
        sources.depart(year.days[0])
        sources.schedule(year.days[1])
        sources.arrive(year.days[0])
        jobs = tuple(
            job for job in demo_jobs(sources, str(tmp_path / "derived")) if not (job.is_feed or job.is_index or job.sql)
        )
        for job in jobs:
            write_deltalake(job.target, job.recompute(read(job.source)))
        return jobs

    def test_targets_that_are_right(self, jobs: tuple[DemoJob, ...]) -> None:
        results = [verify(job, History([]), 0) for job in jobs]  # type: ignore[arg-type]
        assert [each.equal for each in results] == [True, True, True]
        assert 0 < results[1].rows < results[0].rows

    def test_a_row_too_many_is_found(self, jobs: tuple[DemoJob, ...]) -> None:
        for job in jobs:
            write_deltalake(job.target, read(job.target).slice(0, 1), mode="append")
            result = verify(job, History([]), 0)  # type: ignore[arg-type]
            assert (result.equal, result.differences) == (False, 1)

    def test_other_types_are_found(self, jobs: tuple[DemoJob, ...]) -> None:
        rows = read(jobs[0].target)
        narrow = rows.set_column(0, "year", rows["year"].cast(pa.int32()))
        write_deltalake(jobs[0].target, narrow, mode="overwrite", schema_mode="overwrite")
        assert not verify(jobs[0], History([]), 0).equal  # type: ignore[arg-type]

    def test_iterations_and_lags_are_the_histories(self, jobs: tuple[DemoJob, ...]) -> None:
        times = commit_times_s(jobs[0].source)
        history = [entry(0, max(times), max(times.values()) + 2.0), entry(0, 1, 0.0, error_code=7)]
        result = verify(jobs[0], History(history), 0)  # type: ignore[arg-type]
        assert (result.iterations, result.failed) == (1, 1)
        assert result.lag_p50_s is not None
        assert 2.0 <= result.lag_p50_s < 60.0


@dataclass
class VerifyingHistory(History):
    """Of an index that a cluster has compared."""

    comparison: Comparison

    def verify(self, table: str, name: str) -> VerifyReport:
        return VerifyReport(0, 1, self.comparison)


class TestIndexes:
    """What a cluster says of each counts."""

    @pytest.mark.parametrize("wrong", [0, 3])
    def test_rows_that_a_comparison_has_found_wrong_are_counted(
        self, tmp_path: Path, sources: Sources, wrong: int
    ) -> None:
        jobs = [job for job in demo_jobs(sources, str(tmp_path / "derived")) if job.is_index]
        assert [job.name for job in jobs] == ["manual_words", "manual_meaning"]
        for job in jobs:
            found = Comparison(rows_source=9, rows_target=8, missing=wrong, extra=wrong, different=wrong)
            result = verify(job, VerifyingHistory([], found), 0)  # type: ignore[arg-type]
            assert (result.rows, result.differences, result.equal) == (8, 3 * wrong, wrong == 0)


class TestViews:
    """Each is compared with its query, computed by Arrow, at the versions that the view says it is at."""

    @pytest.fixture
    def views(self, tmp_path: Path, sources: Sources, year: Year) -> Mapping[str, DemoJob]:
        for day in year.days[:3]:
            sources.schedule(day)
            sources.depart(day)
            sources.arrive(day)
        return {job.name: job for job in demo_jobs(sources, str(tmp_path / "derived")) if job.sql}

    def at(self, job: DemoJob) -> ViewHistory:
        return ViewHistory([], {uri: version(uri) for uri in job.tables.values()})

    def test_delays_are_of_those_that_arrived(self, views: Mapping[str, DemoJob], year: Year) -> None:
        rows = views["delays_by_day"].recompute(year.days[0].arrived).to_pylist()
        assert sum(row["flights"] for row in rows) == year.days[0].arrived.num_rows
        (united,) = [row for row in rows if row["carrier"] == "UA"]
        delays = [each["arr_delay"] for each in year.days[0].arrived.to_pylist() if each["carrier"] == "UA"]
        known = [each for each in delays if each is not None]
        assert (united["flights"], united["arrived"]) == (len(delays), len(known))
        assert united["delay"] == sum(known) / len(known)

    def test_routes_are_those_with_most_flights_and_have_names(
        self, views: Mapping[str, DemoJob], sources: Sources, year: Year
    ) -> None:
        rows = views["busiest_routes"].recompute(year.days[0].arrived, read(sources.airports)).to_pylist()
        flown = Counter((each["origin"], each["dest"]) for each in year.days[0].arrived.to_pylist())
        assert [row["flights"] for row in rows] == [number for _, number in flown.most_common(ROUTES)]
        assert all(flown[row["origin"], row["dest"]] == row["flights"] for row in rows)
        assert {row["origin_name"] for row in rows} == {"Newark Liberty Intl", "La Guardia", "John F Kennedy Intl"}

    @pytest.mark.parametrize("name", ["delays_by_day", "busiest_routes"])
    def test_it_is_equal_at_its_own_versions_alone(
        self, views: Mapping[str, DemoJob], sources: Sources, year: Year, name: str
    ) -> None:
        job = views[name]
        at = self.at(job)
        write_deltalake(job.target, job.expected(at))  # type: ignore[arg-type]
        sources.schedule(year.days[3])
        sources.depart(year.days[3])
        assert verify(job, at, 0).equal  # type: ignore[arg-type]
        assert not verify(job, self.at(job), 0).equal  # type: ignore[arg-type]


def page(*changes: tuple[str, int, str, int]) -> pa.Table:
    """Of (ulid, shard, operation, value)."""
    ulids, shards, operations, values = zip(*changes, strict=True)
    row = pa.StructArray.from_arrays([pa.array(values, pa.int64())], names=["value"])
    return pa.table({"ulid_text": ulids, "shard": shards, "operation": operations, "row": row})


class TestReplay:
    def test_what_was_put_in_and_not_taken_out_is_left(self) -> None:
        replay = Replay()
        replay.take(page(("a", 0, "insert", 1), ("b", 1, "insert", 2)))
        replay.take(page(("b", 0, "update_preimage", 1), ("c", 0, "update_postimage", 3), ("c", 1, "delete", 2)))
        assert replay.rows().to_pylist() == [{"value": 3, "_sign": 1}]
        assert (replay.changes, replay.in_order) == (5, True)

    @pytest.mark.parametrize("ulid", ["a", "b"])
    def test_a_ulid_that_comes_again_or_late_is_out_of_order(self, ulid: str) -> None:
        for pages in (
            [page(("b", 0, "insert", 1), (ulid, 0, "insert", 2))],
            [page(("b", 0, "insert", 1)), page((ulid, 0, "insert", 2))],
        ):
            replay = Replay()
            for each in pages:
                replay.take(each)
            assert not replay.in_order

    def test_a_feed_is_equal_only_if_its_replay_is(self, sources: Sources, tmp_path: Path, year: Year) -> None:
        sources.schedule(year.days[0])
        job = next(job for job in demo_jobs(sources, str(tmp_path / "derived")) if job.is_feed)
        rows = read(job.source)
        right = rows.append_column("_sign", pa.array([1] * len(rows), pa.int64()))
        doubled = rows.append_column("_sign", pa.array([2] + [1] * (len(rows) - 1), pa.int64()))
        found = [
            verify(job, History([]), 0, Replayed(each, len(rows), in_order)).differences  # type: ignore[arg-type]
            for each, in_order in ((right, True), (right, False), (doubled, True), (right.slice(1), True))
        ]
        assert found == [0, 1, 1, 1]
