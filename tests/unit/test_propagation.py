"""The benchmark of propagation compares by itself: what it calls right has to be, and what is wrong has to be seen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.propagation.contest import figures_of, p95
from benchmarks.propagation.driver import Driver, Place
from benchmarks.propagation.history import History, Step
from benchmarks.propagation.measuring import Bench, Round
from benchmarks.propagation.medallion import FEW, MEDALLION, SOURCE_KEYS, Kind, below, chosen
from benchmarks.propagation.results import Results, read_derived
from benchmarks.propagation.source_lake import SourceLake
from benchmarks.propagation.table import BEGIN, END, place_into, render
from iscp.cli.demo.lake import read

COPY = chosen(("trips_copy",))
PATIENCE_S = 0.2


class CopyingDriver(Driver):
    """Copies trips at once, in this process; `loses` rows of them."""

    name: ClassVar[str] = "copying"
    warm: ClassVar[str] = "It has nothing to start."
    cannot: ClassVar[Mapping[str, str]] = {"failover": "nothing of it can be killed"}
    loses = 0

    @property
    def pid(self) -> int:
        return os.getpid()

    def start(self) -> None:
        self.place.targets.mkdir()

    def create(self) -> None:
        self.notify(())

    def notify(self, tables: Iterable[str]) -> None:
        rows = read(self.place.uri("trips"))
        write_deltalake(self.place.target("trips_copy"), rows.slice(self.loses), mode="overwrite")

    def settle(self) -> None:
        """Everything is done at once."""

    def fail(self) -> None:
        raise AssertionError("it has no such step")

    def stop(self) -> None:
        """Nothing runs."""


class Copied:
    """A history, its reference, and a bench of the driver above."""

    def __init__(self, root: Path) -> None:
        self.history = History.draw(days=1, trips=1_000, rounds=2, seed=7)
        self.results = Results(COPY)
        self.reference = SourceLake(root / "reference", self.history.first())
        (root / "own").mkdir()
        lake = SourceLake(root / "sources", self.history.first())
        self.driver = CopyingDriver(Place(root / "own", lake, COPY))
        self.driver.start()
        self.bench = Bench(self.driver, self.results, PATIENCE_S)

    def play(self, step: Step, number: int = 0) -> Round:
        commits = self.history.changes(step, number)
        if commits:
            self.reference.apply(commits)
        self.results.advance(self.reference)
        return self.bench.play(step, commits, idle_s=0.01)


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def test_a_driver_that_is_right_has_a_lag_and_what_it_wrote(copied: Copied) -> None:
    copied.play(Step.FIRST)
    for step in (Step.APPEND, Step.UPDATE, Step.DELETE):
        found = copied.play(step)
        assert found.wrong == {}, step
        assert 0 < found.lag_s <= found.settled_s, step
        assert found.bytes > 0, step


def test_an_overwrite_with_the_same_rows_is_no_lag_though_it_is_written(copied: Copied) -> None:
    copied.play(Step.FIRST)
    found = copied.play(Step.OVERWRITE)
    assert (found.lag_s, found.wrong) == (0.0, {})
    assert found.bytes > 0


def test_rows_that_are_lost_are_seen_and_counted_and_so_is_that_they_are_there_again(copied: Copied) -> None:
    copied.play(Step.FIRST)
    copied.driver.loses = 3
    found = copied.play(Step.APPEND)
    assert found.wrong == {"trips_copy": 3}
    assert found.lag_s >= PATIENCE_S
    copied.driver.loses = 0
    assert copied.play(Step.UPDATE).wrong == {}


def test_rows_that_are_there_twice_are_differences(copied: Copied) -> None:
    copied.play(Step.FIRST)
    write_deltalake(copied.driver.place.target("trips_copy"), copied.reference.rows("trips").slice(0, 2), mode="append")
    assert copied.play(Step.IDLE).wrong == {"trips_copy": 2}


def test_a_feed_is_compared_by_what_its_changes_come_to(tmp_path: Path) -> None:
    history = History.draw(days=1, trips=1_000, rounds=1, seed=7)
    lake, derived = SourceLake(tmp_path / "sources", history.first()), chosen(("trips_feed",))
    results = Results(derived)
    lake.apply(history.changes(Step.UPDATE, 0))
    results.advance(lake)
    changes = pa.table(DeltaTable(lake.uris["trips"]).load_cdf(starting_version=0))
    columns = [name for name in changes.column_names if not name.startswith("_")]
    row = pa.StructArray.from_arrays([changes[name].combine_chunks() for name in columns], columns)
    feed = pa.table({"operation": changes["_change_type"], "row": row})
    for rows, missing in ((feed, 0), (feed.slice(1), 1)):
        write_deltalake(tmp_path / "feed", rows, mode="overwrite")
        version = DeltaTable(tmp_path / "feed").version()
        found = read_derived(derived[0], str(tmp_path / "feed"), version)
        assert results.differences("trips_feed", found) == missing
        assert (results.bag(found) == results.expected["trips_feed"]) is (missing == 0)


def test_every_step_changes_every_layer_that_it_is_to_change(tmp_path: Path) -> None:
    history = History.draw(days=3, trips=1_000, rounds=2, seed=7)
    lake, results = SourceLake(tmp_path, history.first()), Results(MEDALLION)
    results.advance(lake)
    for step in (Step.APPEND, Step.UPDATE, Step.DELETE, Step.DIMENSION, Step.FAILOVER):
        for number in range(2):
            before = dict(results.expected)
            lake.apply(history.changes(step, number))
            results.advance(lake)
            changed = {each.layer for each in MEDALLION if results.expected[each.name] != before[each.name]}
            of_dimensions = step is Step.DIMENSION
            wanted = {"silver", "gold"} if of_dimensions else {"bronze", "silver", "gold", "replica", "feed"}
            assert changed >= wanted, step


def test_an_overwrite_leaves_all_results_as_they_are(tmp_path: Path) -> None:
    history = History.draw(days=1, trips=1_000, rounds=1, seed=7)
    lake, results = SourceLake(tmp_path, history.first()), Results(MEDALLION)
    results.advance(lake)
    before = dict(results.expected)
    lake.apply(history.changes(Step.OVERWRITE, 0))
    results.advance(lake)
    assert results.expected == before


def test_keys_identify_rows_and_each_table_stands_after_its_inputs() -> None:
    assert sum(each.kind is Kind.VIEW for each in MEDALLION) == 15
    there = set(SOURCE_KEYS)
    for each in MEDALLION:
        assert there.issuperset(each.inputs), each.name
        assert set(each.parts) <= set(each.inputs), each.name
        assert not each.row_wise or (len(each.inputs) == 1 and not each.parts), each.name
        there.add(each.name)
    assert [each.name for each in chosen(FEW)] == list(FEW)
    with pytest.raises(ValueError, match="trips_clean"):
        chosen(("trips_once",))


def test_only_what_is_below_a_change_is_computed_again() -> None:
    assert [each.name for each in below(("zones",), MEDALLION)] == ["trips_zoned", "zone_revenue"]
    assert [each.name for each in below(("airports",), MEDALLION)] == ["flights_named", "busiest_routes"]


def found_by(played: Mapping[str, Mapping[Step, list[Round]]]) -> dict[str, Any]:
    steps = figures_of(played)
    return {
        "at": "2026-01-02",
        "machine": {
            "cpus": 2,
            "cpu": "one",
            "memory_gib": 8.0,
            "system": "Linux",
            "python": "3.11",
            "load_before": 0.1,
            "versions": {"duckdb": "1"},
        },
        "size": {"days": 1, "trips": 1_000, "rounds": 2, "batch_interval_s": 1.0, "nodes": 2, "idle_s": 1.0},
        "views": 15,
        "derived": 18,
        "drivers": {name: {"warm": "", "cannot": CopyingDriver.cannot, "steps": each} for name, each in steps.items()},
    }


def test_the_table_has_each_step_and_says_what_is_wrong_and_what_a_driver_cannot_do(tmp_path: Path) -> None:
    good, bad = Round(1.0, 1.5, 2.0, 3_000_000, {}), Round(3.0, 3.5, 4.0, 5_000_000, {"trips_copy": 7})
    rounds = {Step.APPEND: [good, good], Step.OVERWRITE: [good], Step.FAILOVER: [good]}
    table = render(found_by({"one": rounds, "other": {Step.APPEND: [good, bad], Step.OVERWRITE: [good]}}))
    lines = table.splitlines()
    assert "| append | 1.00; 1.00 | 2.00; 2.90 |" in lines
    assert "| overwrite | – | – |" in lines
    assert "| failover | 1.00; 1.00 | cannot |" in lines
    assert "| append | yes | no: trips_copy |" in lines
    assert "| append | 3.00 | 4.00 |" in lines
    assert (
        "- `other` cannot do `failover`: nothing of it can be killed. It has no part in the engine's figures." in lines
    )
    document = tmp_path / "document.md"
    document.write_text(f"above\n{BEGIN}\nformer\n{END}\nbelow\n")
    found = found_by({"one": rounds})
    place_into(document, [found, {**found, "size": {**found["size"], "trips": 5_000_000}}])
    assert "\n### 5,000,000 trips, " in document.read_text()
    assert document.read_text().count("\n### ") == 2
    assert "former" not in document.read_text()
    assert document.read_text().startswith("above\n")
    assert document.read_text().endswith("\nbelow\n")
    document.write_text("empty")
    with pytest.raises(ValueError, match="has no lines"):
        place_into(document, [found])


def test_a_share_of_few_values_lies_between_them() -> None:
    assert p95([1.0, 3.0]) == pytest.approx(2.9)
    assert p95([4.0]) == 4.0
