"""The versions that a refresh goes through: all changes of every table, or a reason why they cannot be followed.

The parts of a refresh add up to the whole, and rows are counted while all who read them can say how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.model.job.iteration import Bounds
from iscp.model.values.progress import UNKNOWN, SnapshotSize
from iscp.model.values.watermark import Position, SourceMark, Watermark
from iscp.ports.source import ChangeSource, ChangesUnavailableError, SourceRange
from iscp.views.refresh.table_spans import (
    Part,
    RefreshEnd,
    Spans,
    count_read,
    measured_as,
    measuring,
    resolve_spans,
    size_of_tables,
    tables_at,
)
from tests.fakes.clock import FakeClock

NEWEST = 9
APPLIED = Watermark(4, 400.0)
BOUNDLESS = 2**62


def span(**given: object) -> SourceRange:
    whole = SourceRange(4, Watermark(NEWEST, 900.0), "t", from_at_s=400.0, changes_data=True)
    return replace(whole, **given)  # type: ignore[arg-type]


@dataclass
class Tables:
    """Resolve a table's range as it is `given`; a second range, from where the first one ends, is refused if `refuses`.

    `sizes` are the rows of each table, `there` the versions that are still there.
    """

    given: Mapping[str, SourceRange] = field(default_factory=dict)
    refuses: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    there: Mapping[str, SourceRange] = field(default_factory=dict)

    def resolve(self, uri: str, since: Watermark, to_version: int | None, bounds: Bounds) -> SourceRange:
        assert to_version == NEWEST
        assert min(bounds.versions_max, bounds.bytes_max, bounds.rows_max) > BOUNDLESS
        if since == APPLIED:
            return self.given[uri]
        assert since == self.given[uri].to
        if self.refuses:
            raise ChangesUnavailableError("the log says why")
        return self.given[uri]

    def at(self, uri: str, version: int) -> SourceRange:
        if uri not in self.there:
            raise ChangesUnavailableError(f"version {version} is gone")
        return self.there[uri]

    def size(self, uri: str, version: int) -> SnapshotSize:
        return SnapshotSize(self.sizes[uri], 1, 1)


def resolve(tables: Tables, table_ids: Mapping[str, str] | None = None) -> Spans:
    """Resolve the ranges of all tables since their marks, which have these ids; one without an id has no mark."""
    ids = dict.fromkeys(tables.given, "t") if table_ids is None else table_ids
    marks = {uri: SourceMark(table_id, APPLIED) for uri, table_id in ids.items()}
    end = RefreshEnd({uri: SourceRange(NEWEST, Watermark(NEWEST, 900.0), "t") for uri in tables.given}, 0.0)
    return resolve_spans(cast("ChangeSource", tables), Position(sources=marks, as_of_s=7.0), end)


def test_the_ranges_of_all_tables_are_followed_from_their_marks() -> None:
    given_ranges = {"a": span(bytes=3), "b": span(bytes=4), "c": span(changes_data=False, bytes=100)}
    found = resolve(Tables(given_ranges))
    assert found.by_uri == given_ranges
    assert (found.as_of_s, found.changed, found.bytes) == (7.0, True, 7)
    assert not resolve(Tables({"c": given_ranges["c"]})).changed


@pytest.mark.parametrize(
    ("range_", "why"),
    [
        (span(from_at_s=401.0), "the log of b was recreated"),
        (span(new_schema=True), "the columns of b have changed"),
        (span(new_schema=True, changes_data=False), "the columns of b have changed"),
        (span(cdf_on=False), "the change data feed of b is off"),
        (span(to=Watermark(7, 700.0)), "the changes of b after version 7 are not known"),
    ],
)
def test_one_table_that_cannot_be_followed_is_named_and_why(range_: SourceRange, why: str) -> None:
    with pytest.raises(ChangesUnavailableError, match=why):
        resolve(Tables({"a": span(), "b": range_}))


def test_a_table_that_is_new_to_the_view_or_in_the_place_of_another_is_named() -> None:
    with pytest.raises(ChangesUnavailableError, match="has not read b before"):
        resolve(Tables({"a": span(), "b": span()}), {"a": "t"})
    with pytest.raises(ChangesUnavailableError, match="b was replaced"):
        resolve(Tables({"a": span(), "b": span()}), {"a": "t", "b": "former"})


def test_a_range_that_ends_too_early_has_the_reason_of_the_commit_after_it() -> None:
    with pytest.raises(ChangesUnavailableError, match="the log says why"):
        resolve(Tables({"a": span(to=Watermark(7, 700.0))}, refuses=True))


@settings(max_examples=60)
@given(
    st.builds(
        span,
        to=st.sampled_from([Watermark(NEWEST, 900.0), Watermark(8, 800.0)]),
        from_at_s=st.sampled_from([0.0, 400.0, 400.0005, 399.0]),
        changes_data=st.booleans(),
        inserts_only=st.booleans(),
        cdf_on=st.booleans(),
        new_schema=st.booleans(),
    )
)
def test_no_change_is_passed_over(range_: SourceRange) -> None:
    """The rows of a commit are known if it has change data, or takes no row away, or has no rows."""
    known = not range_.changes_data or range_.cdf_on or range_.inserts_only
    same_log = range_.from_at_s != 399.0
    if known and same_log and not range_.new_schema and range_.to.version == NEWEST:
        assert resolve(Tables({"a": range_})).by_uri == {"a": range_}
    else:
        with pytest.raises(ChangesUnavailableError, match="a"):
            resolve(Tables({"a": range_}))


def test_tables_are_read_again_only_as_they_were() -> None:
    marks = {"a": SourceMark("t", APPLIED)}
    table = SourceRange(4, APPLIED, "t")
    assert tables_at(cast("ChangeSource", Tables(there={"a": table})), marks) == {"a": table}
    for other in (replace(table, table_id="u"), replace(table, to=Watermark(4, 500.0))):
        with pytest.raises(ChangesUnavailableError, match="a was replaced, or its log recreated"):
            tables_at(cast("ChangeSource", Tables(there={"a": other})), marks)
    with pytest.raises(ChangesUnavailableError, match="gone"):
        tables_at(cast("ChangeSource", Tables()), marks)


@pytest.mark.parametrize(("rows", "sum_"), [((3, 4), 7), ((0, 0), 0), ((3, UNKNOWN), -1), ((UNKNOWN, UNKNOWN), -1)])
def test_rows_are_added_up_if_every_log_has_their_number(rows: tuple[int, int], sum_: int) -> None:
    marks = {uri: SourceMark("t", APPLIED) for uri in ("a", "b")}
    tables = Tables(sizes=dict(zip(marks, rows, strict=True)))
    assert size_of_tables(cast("ChangeSource", tables), marks).rows == sum_


def test_parts_add_up_and_one_within_another_counts_once() -> None:
    clock = FakeClock()

    @measured_as(Part.STATE)
    def keep() -> None:
        clock.advance(4.0)

    @measured_as(Part.CHANGES)
    def read() -> str:
        clock.advance(1.0)
        keep()
        clock.advance(2.0)
        return "read"

    with measuring(clock) as parts:
        clock.advance(0.5)
        assert read() == "read"
        keep()
    assert parts.parts_s == {"changes": 3.0, "state": 8.0, "rows": 0.5}


def test_a_part_that_fails_is_measured_as_well() -> None:
    clock = FakeClock()

    @measured_as(Part.PLAN)
    def plan() -> None:
        clock.advance(2.0)
        raise ValueError("no plan")

    with measuring(clock) as parts, pytest.raises(ValueError, match="no plan"):
        plan()
    assert parts.parts_s == {"plan": 2.0, "rows": 0.0}


def test_rows_are_not_known_once_some_were_not_counted() -> None:
    with measuring(FakeClock()) as parts:
        count_read(3)
        count_read(4)
        assert parts.rows_in == 7
        count_read(None)
        count_read(5)
        assert parts.rows_in == -1


def test_outside_of_a_refresh_nothing_is_measured() -> None:
    count_read(3)
    assert measured_as(Part.PLAN)(lambda: "planned")() == "planned"
