"""The net change of each key, computed by Arrow, equals its definition; the integration tests compare Spark's."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, COMMIT_VERSION, OP, has_own_keys, net_by_arrow
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bags import History, histories, left
from tests.fakes.bags import net as defined

Change = tuple[int, str, int]
"""Version, type, key."""


def net(*changes: Change) -> dict[int, str]:
    versions, types, keys = zip(*changes, strict=True) if changes else ((), (), ())
    columns = [pa.array(keys, pa.int64()), pa.array(types, pa.string()), pa.array(versions, pa.int64())]
    table = net_by_arrow(pa.table(columns, names=["id", CHANGE_TYPE, COMMIT_VERSION]), ("ID",))
    return {row["id"]: row[OP] for row in table.to_pylist()}


BEFORE, AFTER = "update_preimage", "update_postimage"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {}),
        ([(1, "insert", 7)], {7: "i"}),
        ([(1, "delete", 7)], {7: "d"}),
        ([(1, AFTER, 7), (1, BEFORE, 7)], {7: "u"}),
        ([(1, "insert", 7), (2, BEFORE, 7), (2, AFTER, 7)], {7: "i"}),
        ([(1, "insert", 7), (1, "delete", 7)], {7: "u"}),
        ([(1, "delete", 7), (2, "insert", 7), (3, "delete", 7)], {7: "d"}),
        # It came and went; or one came and another went that had the key before, which only the target shows.
        ([(1, "insert", 7), (2, "delete", 7)], {7: "p"}),
        # An update that changes keys, also one for another.
        ([(1, BEFORE, 7), (1, AFTER, 8)], {7: "d", 8: "i"}),
        # Of an update that a filter lets in or out only one half is left.
        ([(1, AFTER, 7)], {7: "i"}),
        ([(1, BEFORE, 7)], {7: "d"}),
        ([(1, BEFORE, 7), (1, AFTER, 8), (1, BEFORE, 8), (1, AFTER, 7)], {7: "u", 8: "u"}),
    ],
)
def test_the_last_change_counts_and_whether_the_key_was_there(changes: list[Change], expected: dict[int, str]) -> None:
    assert net(*changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        [(1, "insert", 7), (1, "insert", 7)],
        [(1, "insert", 7), (2, "insert", 7)],
        [(1, "insert", 7), (2, "insert", 7), (3, "delete", 7)],
        [(1, "insert", 7), (2, "insert", 7), (3, "insert", 7), (4, "delete", 7), (5, "delete", 7)],
        [(1, "insert", 7), (2, "delete", 7), (2, "delete", 7), (3, "insert", 7)],
        [(1, BEFORE, 7), (1, AFTER, 7), (1, BEFORE, 7), (1, AFTER, 7)],
        [(1, "delete", 7), (2, "delete", 7)],
        [(1, BEFORE, 7), (1, AFTER, 8), (2, "insert", 8)],
    ],
)
def test_rows_that_share_a_key_are_left_to_a_read_of_the_source(changes: list[Change]) -> None:
    with pytest.raises(ChangesUnavailableError, match="share a key"):
        net(*changes)


KEYS = {
    "number": pa.array([0, None, 2], pa.int64()),
    "text": pa.array(["a", "A", None]),
    "decimal": pa.array([Decimal("0.10"), Decimal("0.01"), None]),
    "two": pa.array([0, 0, 1], pa.int8()),
}


@pytest.mark.parametrize("key", [("number",), ("text",), ("decimal",), ("two", "number"), ("text", "decimal", "two")])
@given(history=histories(), draw=st.data())
def test_arrow_finds_what_the_definition_says(key: tuple[str, ...], history: History, draw: st.DataObject) -> None:
    """For keys of all types, with nulls, in any order of rows and any chunking."""
    for begin, end in history.ranges():
        changes = draw.draw(st.permutations(history.changes(begin, end)))
        of_key = [change.key for change in changes]
        columns = {name: KEYS[name].take(pa.array(of_key, pa.int64())) for name in key}
        columns |= {
            CHANGE_TYPE: pa.array([change.kind for change in changes], pa.string()),
            COMMIT_VERSION: pa.array([change.version for change in changes], pa.int64()),
            "key": pa.array(of_key, pa.int64()),
            "value": pa.array([change.value for change in changes], pa.string()),
        }
        table = pa.table(columns)
        cut = draw.draw(st.integers(0, len(table)))
        table = pa.concat_tables([table[:cut], table[cut:]])
        expected = defined(changes)
        if expected is None:
            with pytest.raises(ChangesUnavailableError):
                net_by_arrow(table, key)
        else:
            found = net_by_arrow(table, key).to_pylist()
            assert {row["key"]: (row[OP], left(row[OP], row["value"])) for row in found} == expected
            assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("key", "own"),
    [((), True), (("A",), False), (("b",), False), (("a", "b"), True), (("b", "A"), True), (("x",), False)],
)
def test_rows_have_keys_of_their_own_where_null_equals_null(key: tuple[str, ...], own: bool) -> None:
    """Of doubles Arrow cannot say it: two that are equal may be written in two ways."""
    rows = pa.table({"a": [1, 1, None, None], "b": ["u", None, "u", None], "x": [1.0, 2.0, 3.0, 4.0]})
    assert has_own_keys(rows, key) is own
    assert has_own_keys(rows.slice(0, 1), key) is (key != ("x",))
