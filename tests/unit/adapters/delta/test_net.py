"""The net change of each key, from the rows of a change data feed, on Arrow; Spark's way is tried in the pipeline."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.adapters.delta.net import CHANGE_TYPE, COMMIT_VERSION, OP, net_by_arrow
from iscp.ports.pipeline import ChangesUnavailable

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
        # A key that came and went was never seen; one of that key that was there all the time must not be lost.
        ([(1, "insert", 7), (2, "delete", 7)], {}),
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
        [(1, BEFORE, 7), (1, AFTER, 7), (1, BEFORE, 7), (1, AFTER, 7)],
        [(1, "delete", 7), (2, "delete", 7)],
        [(1, BEFORE, 7), (1, AFTER, 8), (2, "insert", 8)],
    ],
)
def test_rows_that_share_a_key_are_left_to_a_look_at_the_source(changes: list[Change]) -> None:
    with pytest.raises(ChangesUnavailable, match="share a key"):
        net(*changes)


@given(st.lists(st.tuples(st.sampled_from(["insert", "delete", "update"]), st.integers(0, 3)), max_size=12))
def test_what_is_applied_to_the_keys_before_gives_the_keys_after(steps: list[tuple[str, int]]) -> None:
    before = {0, 1}
    after, changes = set(before), []
    for version, (kind, key) in enumerate(steps):
        if kind == "insert" and key not in after:
            after.add(key)
            changes.append((version, "insert", key))
        elif kind == "delete" and key in after:
            after.discard(key)
            changes.append((version, "delete", key))
        elif kind == "update" and key in after:
            changes += [(version, BEFORE, key), (version, AFTER, key)]
    found = net(*changes)
    kept = {key for key, op in found.items() if op != "d"}
    gone = {key for key, op in found.items() if op == "d"}
    assert (before - gone) | kept == after
    assert {key for key, op in found.items() if op == "i"} == after - before
    assert gone == before - after
