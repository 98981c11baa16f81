"""The rows that commits have written, against a model: the multiset of rows after each commit minus the one before."""

from __future__ import annotations

import datetime
from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from iscp.delta.rows.net_changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, OP
from iscp.delta.source.spark_read import written_by_arrow

Row = tuple[int | None, str | None]
Change = tuple[str, Row]

ROWS = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a"]))
COMMITS = st.lists(
    st.lists(
        st.tuples(st.just("insert"), ROWS)
        | st.tuples(st.just("delete"), ROWS)
        | st.tuples(st.just("update"), ROWS, ROWS),
        max_size=5,
    ),
    max_size=4,
)
AT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


def changes(commit: list[tuple[str, ...] | tuple[str, Row, Row]]) -> list[Change]:
    each: list[Change] = []
    for kind, *rows in commit:
        if kind == "update":
            each += [("update_preimage", rows[0]), ("update_postimage", rows[1])]  # type: ignore[list-item]
        else:
            each.append((kind, rows[0]))  # type: ignore[arg-type]
    return each


def raw(commits: list[list[Change]]) -> pa.Table:
    rows = [(kind, row, version) for version, commit in enumerate(commits) for kind, row in commit]
    return pa.table(
        {
            "a": pa.array([row[0] for _, row, _ in rows], pa.int64()),
            "b": pa.array([row[1] for _, row, _ in rows], pa.string()),
            CHANGE_TYPE: pa.array([kind for kind, _, _ in rows], pa.string()),
            COMMIT_VERSION: pa.array([version for _, _, version in rows], pa.int64()),
            COMMIT_TIMESTAMP: pa.array([AT] * len(rows), pa.timestamp("us", "UTC")),
        }
    )


def written(commits: list[list[Change]], columns: int) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for version, commit in enumerate(commits):
        kept = [(kind, row[:columns]) for kind, row in commit]
        more = Counter((*row, version) for kind, row in kept if kind in ("insert", "update_postimage"))
        less = Counter((*row, version) for kind, row in kept if kind in ("delete", "update_preimage"))
        found += more - less
    return found


@given(COMMITS)
def test_every_row_counts_as_often_as_a_commit_has_left_more_of_it(
    commits: list[list[tuple[str, ...] | tuple[str, Row, Row]]],
) -> None:
    told = [changes(commit) for commit in commits]
    for names in (["a", "b"], ["a"]):
        table = written_by_arrow(raw(told), names)
        assert set(table.column_names) == {*names, COMMIT_VERSION, COMMIT_TIMESTAMP, OP}
        rows = zip(*[table[name].to_pylist() for name in (*names, COMMIT_VERSION)], strict=True)
        assert Counter(rows) == written(told, len(names))
        assert {*table[OP].to_pylist()} <= {"i"}
