"""What tables are made of is found in their commits: in few of them, and whatever lies between or is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from iscp.model.values.watermark import Position, SourceMark, Watermark
from iscp.ports.consumer import Consumed, Refreshed
from iscp.ports.source import ChangeSource, ChangesUnavailableError, CommitOrigin, SourceRange
from iscp.views.refresh.table_spans import APART_S, HARMLESS_MAX, AgreedEnd, Agreement, RefreshEnd, agree_on_end

LIMIT_S = 10.0
ROWS, NO_ROWS = CommitOrigin(), CommitOrigin(changes_data=False)


def made_of(*, changes_data: bool = True, **versions: int) -> CommitOrigin:
    marks = {f"/{name}": SourceMark(name, Watermark(version, 1.0)) for name, version in versions.items()}
    return CommitOrigin(marks, changes_data=changes_data)


@dataclass
class Tables:
    """Tables by their names, which are their ids, each at `/name`, with what their commits say; `reads` of these."""

    commits: dict[str, list[CommitOrigin | None]]
    reads: list[tuple[str, int]] = field(default_factory=list)
    gone: set[tuple[str, int]] = field(default_factory=set)
    memory: Agreement = field(default_factory=Agreement)
    now_s: float = 100.0

    def origin(self, uri: str, version: int) -> CommitOrigin | None:
        assert uri
        self.reads.append((uri, version))
        commits = self.commits[uri[1:]]
        return commits[version] if 0 <= version < len(commits) else None

    def at(self, uri: str, version: int) -> SourceRange:
        if (uri, version) in self.gone:
            raise ChangesUnavailableError("it is gone")
        found = self.commits[uri[1:]][version]
        assert found is not None
        return SourceRange(version, Watermark(version, 1.0), uri[1:], origin=found)

    def agree(self, *names: str, at: Mapping[str, int] | None = None, as_of_s: float = 0.0) -> AgreedEnd:
        """The end of a refresh of a view that reads these tables, and is `at` these versions (None: it is built)."""
        newest = {f"/{name}": self.at(f"/{name}", len(self.commits[name]) - 1) for name in names}
        marks = {f"/{name}": SourceMark(name, Watermark(version, 1.0)) for name, version in (at or {}).items()}
        position = Position(sources=marks, as_of_s=as_of_s) if at is not None else None
        source, end = cast("ChangeSource", self), RefreshEnd(newest, 5.0)
        called = {name: f"/{name}" for name in names}
        return agree_on_end(source, end, position, called, self.memory, LIMIT_S, self.now_s)


def versions(found: AgreedEnd) -> dict[str, int] | None:
    return None if found.end is None else {uri[1:]: each.to.version for uri, each in found.end.tables.items()}


def diamond() -> Tables:
    """T has three versions. A stands at the newest, B at the one before."""
    follows: list[CommitOrigin | None] = [made_of(t=version) for version in range(3)]
    return Tables({"t": [ROWS, ROWS, ROWS], "a": follows, "b": follows[:2], "u": [ROWS]})


def test_a_view_of_base_tables_reads_no_commit_for_this() -> None:
    tables = diamond()
    assert versions(tables.agree("t", "u", at={"t": 0, "u": 0})) == {"t": 2, "u": 0}
    assert tables.reads == []


def test_tables_that_agree_are_read_as_they_are() -> None:
    tables = diamond()
    tables.commits["b"].append(made_of(t=2))
    assert tables.agree("a", "b", at={"a": 0, "b": 0}) == AgreedEnd(tables.agree("a", "b").end)


def test_a_table_that_is_ahead_is_read_as_it_was_while_the_others_are_waited_for() -> None:
    found = diamond().agree("a", "b", at={"a": 0, "b": 0})
    assert versions(found) == {"a": 1, "b": 1}
    assert found.waits_for == "b (a is at version 2 of /t, b at version 1)"
    assert (found.wait_s, found.mixed) == (LIMIT_S, "")


def test_a_view_that_is_there_already_is_put_off_unless_its_rows_depend_on_the_time() -> None:
    there = {"a": 1, "b": 1}
    found = diamond().agree("a", "b", at=there)
    assert found.end is None
    put_off = found.put_off(Position(seq=3))
    assert (put_off.consumed, put_off.committed) == (Consumed(Position(seq=3), 0, 0), False)
    assert (put_off.waits_for, put_off.wait_s) == (found.waits_for, LIMIT_S)
    assert versions(diamond().agree("a", "b", at=there, as_of_s=4.0)) == there


def test_after_the_wait_it_mixes_versions_and_says_so() -> None:
    tables = diamond()
    tables.agree("a", "b", at={"a": 1, "b": 1})
    tables.now_s += LIMIT_S
    found = tables.agree("a", "b", at={"a": 1, "b": 1})
    assert versions(found) == {"a": 2, "b": 1}
    assert found.mixed == "its rows mix versions of a table: a is at version 2 of /t, b at version 1"
    done = found.noted(Refreshed(Consumed(Position(), 0, 0), "groups", "few rows", warning="it was slow"))
    assert done.reason == f"few rows; {found.mixed}"
    assert done.warning == f"it was slow; {found.mixed}"


def test_a_view_that_is_built_does_not_wait_and_says_what_it_mixes() -> None:
    found = diamond().agree("a", "b")
    assert versions(found) == {"a": 2, "b": 1}
    assert found.mixed


def test_a_version_that_is_gone_is_not_waited_at() -> None:
    tables = diamond()
    tables.gone.add(("/a", 1))
    found = tables.agree("a", "b", at={"a": 0, "b": 0})
    assert (versions(found), bool(found.mixed)) == ({"a": 2, "b": 1}, True)


def test_a_table_in_another_ones_place_is_read_as_it_is() -> None:
    tables = diamond()
    marks = {"/a": SourceMark("former", Watermark(0, 1.0)), "/b": SourceMark("b", Watermark(0, 1.0))}
    newest = RefreshEnd({uri: tables.at(uri, at) for uri, at in (("/a", 2), ("/b", 1))}, 5.0)
    source = cast("ChangeSource", tables)
    found = agree_on_end(source, newest, Position(sources=marks), {}, tables.memory, LIMIT_S, 1.0)
    assert (found.end, bool(found.waits_for)) == (None, True)


def test_commits_without_rows_change_nothing_that_a_table_is_made_of() -> None:
    tables = diamond()
    tables.commits["a"].append(NO_ROWS)  # OPTIMIZE
    assert versions(tables.agree("a", "b", at={"a": 0, "b": 0})) == {"a": 1, "b": 1}
    tables.commits["b"].append(made_of(t=2))
    assert tables.agree("a", "b", at={"a": 1, "b": 1}).waits_for == ""


@pytest.mark.parametrize("rows", [False, True])
def test_versions_of_which_the_data_is_equal_are_one(rows: bool) -> None:
    tables = diamond()
    tables.commits["t"][2] = ROWS if rows else NO_ROWS
    assert bool(tables.agree("a", "b", at={"a": 1, "b": 1}).waits_for) is rows


def test_what_did_not_change_a_view_below_is_not_waited_for_above_it() -> None:
    tables = diamond()
    tables.commits |= {"b2": [made_of(b=1)], "b": [made_of(t=0), made_of(t=1), made_of(changes_data=False, t=2)]}
    assert tables.agree("a", "b2", at={"a": 1, "b2": 0}).waits_for == ""
    tables.commits["b"][2] = made_of(t=2)
    assert tables.agree("a", "b2", at={"a": 1, "b2": 0}).waits_for.startswith("b2 (")


def test_more_commits_without_rows_than_are_read_end_the_search() -> None:
    tables = diamond()
    tables.commits["a"] += [NO_ROWS] * HARMLESS_MAX
    found = tables.agree("a", "b", at={"a": 0, "b": 0})
    assert (found.waits_for, found.mixed) == ("", "")
    assert len(tables.reads) < 2 * HARMLESS_MAX


def test_tables_with_nothing_in_common_are_not_searched_again_for_a_while() -> None:
    tables = diamond()
    tables.commits["c"] = [made_of(u=0)]
    for _ in range(3):
        tables.agree("a", "c", at={"a": 0, "c": 0})
        tables.commits["t"].append(ROWS)
        tables.commits["a"].append(made_of(t=len(tables.commits["t"]) - 1))
    assert tables.reads == [("/t", 2), ("/u", 0)]
    tables.now_s += APART_S
    tables.commits["u"].append(made_of(t=1))  # it is made of T from now on
    tables.commits["c"].append(made_of(u=1))
    assert tables.agree("a", "c", at={"a": 0, "c": 0}).waits_for.startswith("c (")


def test_a_table_below_is_common_to_it_and_to_a_view_of_it() -> None:
    found = diamond().agree("t", "b", at={"t": 0, "b": 0})
    assert versions(found) == {"t": 1, "b": 1}
    assert found.waits_for == "b (b is at version 1 of /t, t at version 2)"


def test_a_view_of_a_mixed_view_is_mixed_and_does_not_wait() -> None:
    tables = diamond()
    tables.commits["c"] = [made_of(a=0, b=0), made_of(a=2, b=1)]
    found = tables.agree("c", at={"c": 0})
    assert versions(found) == {"c": 1}
    assert found.mixed == "its rows mix versions of a table: c is at versions 1 and 2 of /t"


def test_a_commit_that_is_applied_in_part_is_at_no_version() -> None:
    tables = diamond()
    tables.commits["r"] = [CommitOrigin({"/t": SourceMark("t", Watermark(1, 1.0, 1, 4))})]
    assert "r is at versions 1 and 2 of /t, t at version 2" in tables.agree("r", "t").mixed


def test_a_replica_that_does_not_say_where_its_table_is_stands_there_all_the_same() -> None:
    tables = diamond()
    tables.commits["r"] = [CommitOrigin({"": SourceMark("t", Watermark(1, 1.0))})]
    assert tables.agree("r", "a", at={"r": 0, "a": 1}).waits_for.startswith("r (a is at version 2 of")


def test_a_place_that_is_not_followed_is_read_by_nobody() -> None:
    tables = diamond()
    marks = {"/t": SourceMark("t", Watermark(1, 1.0)), "/secret": SourceMark("s", Watermark(1, 1.0))}
    tables.commits["r"] = [CommitOrigin(marks, frozenset({"/secret"}))]
    assert tables.agree("r", "a", at={"r": 0, "a": 1}).waits_for.startswith("r (a is at version 2 of")
    assert all(uri != "/secret" for uri, _ in tables.reads)


def test_views_in_a_circle_and_cleaned_logs_end_the_search() -> None:
    tables = Tables({"a": [made_of(b=0), made_of(b=1)], "b": [made_of(a=0), made_of(a=0)]})
    found = tables.agree("a", "b", at={"a": 0, "b": 0})
    assert found.mixed or found.waits_for or versions(found) == {"a": 1, "b": 1}
    tables = diamond()
    tables.commits["x"] = [made_of(a=0)]
    tables.commits["a"][0] = None
    assert tables.agree("x", "b", at={"x": 0, "b": 0}) == AgreedEnd(tables.agree("x", "b").end)
