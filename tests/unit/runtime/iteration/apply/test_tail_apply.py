"""Changes that are gone from the source are read from what was kept; only where nothing was, rows are compared."""

from __future__ import annotations

import pytest

from iscp.core.job.iteration import DataType
from iscp.core.spec.spec import ChangeMode
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_as_long_as_the_source_has_its_changes_nothing_else_is_read(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.retained.retain_all_of(bench.source)
    assert bench.run(x)[0].data_type is DataType.TAIL
    assert bench.retained.reads == 0


def test_jobs_of_one_watermark_share_one_read_of_what_was_kept(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.source.commit({1: None})
    bench.retained.retain_all_of(bench.source)
    bench.source.gone = {2}
    outcomes = bench.run(*jobs)
    assert [(each.data_type, each.from_version, each.watermark.version) for each in outcomes] == [
        (DataType.TAIL, 1, 3)
    ] * 2
    assert (bench.retained.reads, bench.source.snapshots) == (1, [])
    bench.assert_fresh(*jobs)


def test_changes_that_turn_out_to_be_gone_when_they_are_read_are_those_that_were_kept(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.retained.retain_all_of(bench.source)
    bench.source.net_faults = {("id",): ChangesUnavailableError("a file is gone")}
    assert bench.retained.origin is not None
    bench.retained.origin.net_faults = {}
    assert bench.run(x)[0].data_type is DataType.TAIL
    assert bench.retained.reads == 1
    bench.assert_fresh(x)


def test_what_was_kept_goes_as_far_as_it_goes_and_the_rest_is_compared(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.retained.retain_all_of(bench.source)
    bench.source.commit({4: "d"})
    bench.source.gone = {2, 3}
    bench.source.commit({5: "e"})
    (first,) = bench.run(x)
    assert (first.data_type, first.watermark.version) == (DataType.TAIL, 2)
    (second,) = bench.run(x._replace(seq=first.seq, watermark=first.watermark))
    assert (second.data_type, second.watermark.version) == (DataType.DIFFERENCE, 4)
    bench.assert_fresh(x)


@pytest.mark.parametrize("what", ["nothing is kept", "another table", "the policy"])
def test_all_rows_are_compared_where_what_was_kept_does_not_do(bench: Bench, what: str) -> None:
    policies = {"change_source": ChangeMode.DIFF} if what == "the policy" else {}
    (x,) = bench.built("x", **policies)
    bench.source.commit({3: "c"})
    if what != "nothing is kept":
        bench.retained.retain_all_of(bench.source)
    if what == "another table":
        assert bench.retained.origin is not None
        bench.retained.origin.ids = ["t-2"] * 3
    bench.source.gone = {2}
    bench.source.commit({4: "d"})
    assert bench.run(x)[0].data_type is DataType.DIFFERENCE
    assert bench.retained.reads == 0
    bench.assert_fresh(x)
