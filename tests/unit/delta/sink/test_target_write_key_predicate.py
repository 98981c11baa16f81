"""Rows that are replaced by their keys are those that a merge would have left, also of thousands of columns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from iscp.delta.rows.row_keys import TableKeys
from iscp.delta.sink.target_write import (
    KEYS_NAMED_MAX,
    MERGED_COLUMNS_MAX,
    DirectWriter,
    key_predicate,
    names_keys,
)

FEED = {"delta.enableChangeDataFeed": "true"}
NUMBERS = [0, 1, -1, 2**63 - 1, -(2**63), 17, 300]
TEXTS = ["", "a", "'", "''; --", "a\\'b", "ä%_", "\U0001f600", "\n", "x" * 100, '"`']
COLUMNS, WIDE_S = 2_000, 3.0
"""A change of so many columns takes less processor time; of as many that are merged it is more than twice that."""


def table(keys: Sequence[tuple[int, str]], value: str) -> pa.Table:
    numbers, texts = zip(*keys, strict=True) if keys else ((), ())
    columns = {"n": pa.array(numbers, pa.int64()), "T": pa.array(texts, pa.string())}
    return pa.table(columns | {"v": pa.array([value] * len(keys), pa.string())})


def properties(seq: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction("iscp", seq)], max_commit_retries=0)


def held(uri: str) -> list[tuple[object, ...]]:
    rows = DeltaTable(uri).to_pyarrow_table().select(["n", "T", "v"])
    return sorted(zip(*[column.to_pylist() for column in rows.columns], strict=True))


def changed(uri: str, version: int) -> list[tuple[object, ...]]:
    """What its change data say of a commit: each row that went and that came."""
    feed = pa.table(DeltaTable(uri).load_cdf(version, version).read_all()).to_pylist()
    kinds = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    return sorted((row["n"], row["T"], row["v"], kinds[row["_change_type"]]) for row in feed)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_replaced_is_what_a_merge_leaves(seed: int, tmp_path: Path) -> None:
    draw = Random(seed)
    every = [(number, text) for number in NUMBERS for text in TEXTS]
    keys = draw.choice((["n"], ["t"], ["n", "t"], ["t", "n"]))
    names = {"n": 0, "t": 1}
    places = [names[key] for key in keys]
    distinct = list({tuple(each[place] for place in places): each for each in draw.sample(every, len(every))}.values())
    uris = [str(tmp_path / way) for way in ("merged", "replaced")]
    parts = [distinct[: len(distinct) // 3], distinct[len(distinct) // 3 : len(distinct) // 2]]
    for uri in uris:
        for part in parts:
            write_deltalake(uri, table(part, "old"), mode="append", configuration=FEED)
    writers = [
        DirectWriter(uri, TableKeys(uri), merged_columns_max=columns)
        for uri, columns in zip(uris, (MERGED_COLUMNS_MAX, 0), strict=True)
    ]
    for version in range(1, 5):
        chosen = draw.sample(distinct, draw.randrange(1, len(distinct)))
        ops = pa.array([draw.choice("uud") for _ in chosen], pa.string())
        rows = table(chosen, f"new {version}").append_column("_iscp_op", ops).select(["v", "T", "_iscp_op", "n"])
        assert all(each.merge(rows, keys, version, properties(version)) for each in writers)
        assert held(uris[0]) == held(uris[1])
        assert DeltaTable(uris[1]).transaction_version("iscp") == version
        assert changed(uris[0], version + 1) == changed(uris[1], version + 1)


def test_files_without_these_keys_stay_as_they_are(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for first in (0, 100, 200):
        write_deltalake(uri, table([(number, "a") for number in range(first, first + 50)], "old"), mode="append")
    before = {*DeltaTable(uri).file_uris()}
    many = [(number, "a") for number in range(100, 140)]
    rows = table(many, "new").append_column("_iscp_op", pa.array(["u"] * len(many)))
    assert DirectWriter(uri, TableKeys(uri), merged_columns_max=0).merge(rows, ["n", "t"], 2, properties(1))
    assert len(before & {*DeltaTable(uri).file_uris()}) == 2
    assert [row[2] for row in held(uri)].count("new") == 40


@pytest.mark.parametrize("names", [["n"], ["n", "T"]])
def test_as_many_keys_as_are_named_are_taken(names: list[str], tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    keys = [(number, f"'{number}") for number in range(KEYS_NAMED_MAX)]
    write_deltalake(uri, table([*keys, (-1, "left")], "old"))
    rows = table(keys, "new").append_column("_iscp_op", pa.array(["u"] * len(keys)))
    assert DirectWriter(uri, TableKeys(uri), merged_columns_max=0).merge(rows, names, 0, properties(1))
    assert [row[2] for row in held(uri)].count("new") == KEYS_NAMED_MAX
    assert not names_keys(table([*keys, (-1, "left")], "").select(names))


def test_keys_that_no_literal_says_for_certain_are_merged(tmp_path: Path) -> None:
    assert not names_keys(pa.table({"k": pa.array([1.5])}))
    assert not names_keys(pa.table({"k": pa.array([], pa.int64())}))
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"k": pa.array([1.5, 2.5]), "v": [1, 1]}))
    rows = pa.table({"k": pa.array([1.5]), "v": [2], "_iscp_op": ["u"]})
    assert DirectWriter(uri, TableKeys(uri), merged_columns_max=0).merge(rows, ["k"], 0, properties(1))
    assert DeltaTable(uri).to_pyarrow_table().sort_by("k")["v"].to_pylist() == [2, 1]


def test_a_condition_is_not_deep() -> None:
    many = key_predicate(table([(number, "a") for number in range(1_024)], "").select(["n", "T"]))
    depth = deepest = 0
    for letter in many:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        deepest = max(deepest, depth)
    assert (depth, deepest) == (0, 12)


def test_a_change_of_few_rows_costs_little_with_thousands_of_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    columns = {f"c{number}": pa.array([number] * 3, pa.int64()) for number in range(COLUMNS)}
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64()), **columns})
    write_deltalake(uri, rows)
    began_s = time.process_time()
    assert DirectWriter(uri, TableKeys(uri)).merge(
        rows.slice(1).append_column("_iscp_op", pa.array(["u", "d"])), ["n"], 0, properties(1)
    )
    assert time.process_time() - began_s < WIDE_S
    assert DeltaTable(uri).to_pyarrow_table(columns=["n"])["n"].to_pylist() == [2, 1]
