"""Views of views over one table: their rows are of one version of it, or their refreshes say that they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.cli.demo.lake import read
from iscp.model.job.iteration import JobOutcome
from iscp.model.spec.spec_parsing import WAITS_FOR_S
from iscp.spark.session import SparkRuntime
from tests.fakes.clock import FakeClock
from tests.integration.views.conftest import Lake, ViewBench

BOTH = "select va.n, vb.n as m from va cross join vb"


class Views:
    """Views over the table `t`, each of which may read those before it by its name."""

    def __init__(self, root: Path, runtime: SparkRuntime) -> None:
        self.lake, self.runtime, self.clock = Lake(root, 3), runtime, FakeClock()
        self.views: dict[str, ViewBench] = {}

    def add(self, name: str, sql: str, **options: object) -> ViewBench:
        tables = [each for each in self.lake.uris if f" {each} " in f"{sql} "]
        view = ViewBench(self.lake, self.runtime, sql, tables, self.clock, target=name, **options)  # type: ignore[arg-type]
        self.views[name], self.lake.uris[name] = view, view.target
        self.run(name)
        return view

    def run(self, *names: str) -> JobOutcome:
        """Run an iteration of each; return the last one's outcome."""
        for name in names:
            outcome = self.views[name].run()
            assert outcome.ok, outcome.error_msg
        return outcome

    def insert(self) -> None:
        self.lake._insert("t")

    def row(self, name: str) -> dict[str, int]:
        row: dict[str, int]
        (row,) = read(self.views[name].target).to_pylist()
        return row

    @property
    def count(self) -> int:
        return len(read(self.lake.uris["t"]))


@pytest.fixture
def views(tmp_path: Path, spark_runtime: SparkRuntime) -> Views:
    return Views(tmp_path, spark_runtime)


@pytest.fixture
def diamond(views: Views) -> Views:
    views.add("va", "select count(*) as n from t")
    views.add("vb", "select count(*) as n from t where a is null or a is not null")
    views.add("vc", BOTH)
    return views


def test_a_view_waits_until_both_views_that_it_reads_have_come_to_one_version(diamond: Views) -> None:
    before = diamond.count
    diamond.insert()
    waiting = diamond.run("va", "vc")
    assert not waiting.committed
    place = diamond.lake.uris["t"]
    assert waiting.waits_for == f"vb (va is at version 1 of {place}, vb at version 0)"
    assert waiting.wait_s == pytest.approx(WAITS_FOR_S)
    assert diamond.row("vc") == {"n": before, "m": before}
    done = diamond.run("vb", "vc")
    assert (done.committed, done.waits_for, done.warning) == (True, "", "")
    assert diamond.row("vc") == {"n": diamond.count, "m": diamond.count}
    assert diamond.run("vc").waits_for == ""


def test_a_view_that_is_ahead_is_read_as_it_was(diamond: Views) -> None:
    diamond.insert()
    diamond.run("va", "vb")
    between = diamond.count
    diamond.insert()
    done = diamond.run("va", "vc")
    assert (done.committed, done.warning) == (True, "")
    assert done.waits_for.startswith("vb ")
    assert diamond.row("vc") == {"n": between, "m": between}
    assert not diamond.run("vc").committed
    diamond.run("vb", "vc")
    assert diamond.row("vc") == {"n": diamond.count, "m": diamond.count}
    diamond.views["vc"].assert_equal()


def test_after_its_wait_a_view_mixes_versions_and_says_so_until_it_does_not_any_more(diamond: Views) -> None:
    before = diamond.count
    diamond.insert()
    diamond.run("va", "vc")
    diamond.clock.advance(WAITS_FOR_S)
    mixed = diamond.run("vc")
    assert (mixed.committed, mixed.waits_for) == (True, "")
    assert "its rows mix versions of a table: va is at version 1 of " in mixed.warning
    assert mixed.warning in mixed.strategy_reason
    assert diamond.row("vc") == {"n": diamond.count, "m": before}
    diamond.insert()
    assert diamond.run("va", "vc").warning, "a view that is behind is waited for once"
    assert diamond.row("vc") == {"n": diamond.count, "m": before}
    diamond.views["vc"].restart()
    assert diamond.run("vb", "vc").warning == ""
    assert diamond.row("vc") == {"n": diamond.count, "m": diamond.count}


def test_views_of_views_stand_where_those_stand(diamond: Views) -> None:
    diamond.add("va2", "select n from va")
    diamond.add("vd", "select va2.n, vb.n as m from va2 cross join vb")
    before = diamond.count
    diamond.insert()
    assert diamond.run("vb", "vd").waits_for.startswith("va2 (")
    assert diamond.run("va", "vd").waits_for.startswith("va2 (")
    assert diamond.row("vd") == {"n": before, "m": before}
    assert diamond.run("va2", "vd").waits_for == ""
    assert diamond.row("vd") == {"n": diamond.count, "m": diamond.count}


def test_a_base_table_is_read_at_the_version_that_a_view_of_it_stands_at(diamond: Views) -> None:
    diamond.add("vd", "select va.n, o.m from va cross join (select count(*) as m from t ) o")
    before = diamond.count
    diamond.insert()
    assert diamond.run("vd").waits_for.startswith("va (")
    assert diamond.row("vd") == {"n": before, "m": before}
    diamond.run("va")
    between = diamond.count
    diamond.insert()
    done = diamond.run("vd")
    assert done.committed
    assert diamond.row("vd") == {"n": between, "m": between}
    assert done.watermark.version == 1 or done.sources[diamond.lake.uris["t"]].watermark.version == 1


def test_versions_of_which_the_data_is_equal_are_one(views: Views) -> None:
    views.add("va", "select count(*) as n from t where a = 99")
    views.add("va2", "select n from va")
    views.insert()
    views.run("va")
    assert not views.run("va2").committed
    DeltaTable(views.lake.uris["t"]).optimize.compact()
    views.add("vb", "select count(*) as n from t")
    views.add("vc", "select va2.n, vb.n as m from va2 cross join vb")
    assert views.run("vc").warning == ""
    views.insert()
    done = views.run("va", "va2", "vb", "vc")
    assert (done.committed, done.waits_for, done.warning) == (True, "", "")


def test_views_without_a_table_in_common_read_no_commit_more(views: Views) -> None:
    views.add("va", "select count(*) as n from t")
    views.add("vu", "select count(*) as n from u")
    view = views.add("vc", "select va.n, vu.n as m from va cross join vu")
    reads: list[str] = []

    class Counting(type(view.source)):  # type: ignore[misc]
        def origin(self, uri: str, version: int) -> object:
            reads.append(uri)
            return super().origin(uri, version)

    view.source.__class__ = Counting
    for _ in range(2):
        views.insert()
        assert views.run("va", "vc").committed
    assert reads == []
