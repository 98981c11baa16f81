"""A table whose rows are taken out by deletion vectors holds, after every commit, the bag of rows that it should.

Read by deltalake, which keeps to deletion vectors; how Spark reads such a table is in tests/integration/views.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake
from pyspark.sql import types as T

from iscp.delta.rows.data_file import ROW_CACHE, RowCache
from iscp.delta.sink.bag_write import VECTORS, BagWriter
from iscp.delta.sink.target_write import create_target
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.errors import Conflict
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.replayed_states import replay_state
from tests.selection import in_full

COLUMNS = T.StructType(
    [
        T.StructField("a", T.IntegerType()),
        T.StructField("b.c", T.StringType()),
        T.StructField("d", T.DoubleType()),
        T.StructField("n", T.DecimalType(38, 2)),
        T.StructField("ok", T.BooleanType()),
    ]
)
ARROW = pa.schema(
    [("a", pa.int32()), ("b.c", pa.string()), ("d", pa.float64()), ("n", pa.decimal128(38, 2)), ("ok", pa.bool_())]
)
VALUES: list[list[Any]] = [
    [None, 1, 2, 3],
    [None, "", "p", "a text of more than thirty-two characters"],
    [None, 0.0, -0.0, float("nan"), 1.5],
    [None, Decimal("1.10"), Decimal("123456789012345678901234567890.12")],
    [None, True, False],
]
Row = tuple[Any, ...]


def tag(seq: int, base: int) -> CommitTag:
    watermark = Watermark()
    return CommitTag(
        seq=seq,
        job_id="j",
        source_id="s",
        from_version=-1,
        watermark=watermark,
        epoch=1,
        base_version=base,
        attempt=f"a{seq}",
        kind="tail",
        sources={},
    )


class Bag:
    """The table, and what it has to hold."""

    def __init__(
        self, root: Path, columns: T.StructType = COLUMNS, arrow: pa.Schema = ARROW, held: RowCache = ROW_CACHE
    ) -> None:
        self.uri, self.arrow, self.version = str(root / "t"), arrow, 0
        self.rows: Counter[Row] = Counter()
        create_target(
            self.uri, json.loads(columns.json()), {"delta.enableChangeDataFeed": "true", **VECTORS}, tag(1, -1)
        )
        self.writer = BagWriter(self.uri, held, replay_state)

    def table(self, rows: list[Row]) -> pa.Table:
        columns = [[row[place] for row in rows] for place in range(len(self.arrow))]
        arrays = [
            pa.array([_value(v) for v in each], kind.type) for each, kind in zip(columns, self.arrow, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def change(self, weights: Counter[Row]) -> None:
        rows = self.table(list(weights)).append_column(WEIGHT, pa.array(list(weights.values()), pa.int64()))
        assert self.writer.change(rows, tag(self.version + 2, self.version)) == sum(map(abs, weights.values()))
        self.version += 1
        for row, number in weights.items():
            self.rows[row] += number
        self.rows = +self.rows

    def keys(self, keys: list[Row], names: list[str]) -> pa.Table:
        kinds = [self.arrow.field(name).type for name in names]
        columns = [[_value(key[place]) for key in keys] for place in range(len(names))]
        return pa.table({n: pa.array(c, k) for n, c, k in zip(names, columns, kinds, strict=True)})

    def with_keys(self, keys: list[Row], names: list[str]) -> Counter[Row]:
        places = [self.arrow.names.index(name) for name in names]
        return Counter({r: n for r, n in self.rows.items() if tuple(r[place] for place in places) in keys})

    def assert_found(self, keys: list[Row], names: list[str]) -> None:
        found = self.writer.rows_with(self.keys(keys, names), self.version)
        assert found is not None
        rows = Counter(tuple(map(_comparable, row.values())) for row in found.to_pylist())
        assert rows == self.with_keys(keys, names)

    def replace(self, keys: list[Row], names: list[str], rows: Counter[Row]) -> int:
        table = self.keys(keys, names)
        changed = self.writer.replace_keys(
            self.table(list(rows.elements())), table, tag(self.version + 2, self.version)
        )
        assert changed is not None
        self.version += 1
        self.rows = self.rows - self.with_keys(keys, names) + rows
        return changed

    def held(self) -> Counter[Row]:
        found = QueryBuilder().register("t", DeltaTable(self.uri)).execute("SELECT * FROM t").read_all()
        return Counter(tuple(map(_comparable, row.values())) for row in pa.table(found).to_pylist())

    def files(self) -> set[str]:
        return {os.path.join(at, name) for at, _, names in os.walk(self.uri) for name in names}

    def assert_equal(self) -> None:
        assert self.held() == self.rows


def _comparable(value: Any) -> Any:
    return "NaN" if value != value else value + 0.0 if isinstance(value, float) else value


def _value(value: Any) -> Any:
    return float("nan") if value == "NaN" else value


def draw_row(draw: random.Random) -> Row:
    return tuple(_comparable(draw.choice(each) if draw.random() < 0.5 else each[1]) for each in VALUES)


@pytest.mark.parametrize("seed", in_full(range(4), but=2))
def test_after_random_changes_the_table_is_the_bag(tmp_path: Path, seed: int) -> None:
    """Rows that are equal several times, of which some go; nulls, zeros and NaN; with readers of the log that know
    nothing yet, and checkpoints by deltalake, in between."""
    draw, bag = random.Random(seed), Bag(tmp_path)
    for _ in range(25):
        weights: Counter[Row] = Counter()
        for _ in range(draw.randint(0, 20)):
            weights[draw_row(draw)] += draw.randint(1, 3)
        there = sorted(bag.rows.items(), key=repr)
        for row, number in draw.sample(there, min(len(there), draw.randint(0, 12))):
            weights[row] -= draw.randint(1, number)
        bag.change(Counter({row: number for row, number in weights.items() if number}))
        if draw.random() < 0.2:
            bag.writer = BagWriter(bag.uri, load_state=replay_state)
        if draw.random() < 0.1:
            DeltaTable(bag.uri).create_checkpoint()
        bag.assert_equal()
    assert len(DeltaTable(bag.uri).file_uris()) < 40


HOLDERS = pytest.mark.parametrize(
    "held", [ROW_CACHE, RowCache(file_bytes_max=0), RowCache(bytes_max=500)], ids=["held", "large", "dropped"]
)
"""Files whose rows are held, files that are too large for that, and files whose rows are dropped soon."""


@HOLDERS
@pytest.mark.parametrize("seed", in_full(range(3)))
@pytest.mark.parametrize("names", [["a"], ["b.c", "ok"], ["d"], ["n", "a"]])
def test_all_rows_of_keys_are_replaced(tmp_path: Path, seed: int, names: list[str], held: RowCache) -> None:
    """With checkpoints by deltalake in between, and rows that are searched before they are replaced."""
    draw, bag = random.Random(seed), Bag(tmp_path, held=held)
    places = [ARROW.names.index(name) for name in names]
    for _ in range(20):
        keys = list(
            {tuple(_comparable(draw.choice(VALUES[place])) for place in places) for _ in range(draw.randint(0, 2))}
        )
        rows: Counter[Row] = Counter()
        for _ in range(draw.randint(0, 10) if keys else 0):
            row = list(draw_row(draw))
            for place, value in zip(places, draw.choice(keys), strict=True):
                row[place] = value
            rows[tuple(_comparable(value) for value in row)] += 1
        if draw.random() < 0.7:
            bag.assert_found(keys, names)
        bag.replace(keys, names, rows)
        bag.assert_equal()
        if draw.random() < 0.2:
            DeltaTable(bag.uri).create_checkpoint()


@HOLDERS
@pytest.mark.parametrize("seed", in_full(range(3)))
def test_all_rows_are_read_and_replaced_where_they_are_few(tmp_path: Path, seed: int, held: RowCache) -> None:
    """Equal rows and rows that are marked as gone among them; rows that are to be there and are stay."""
    draw, bag = random.Random(seed), Bag(tmp_path, held=held)
    for _ in range(15):
        wanted = Counter(draw_row(draw) for _ in range(draw.randint(0, 12)))
        wanted += Counter({row: n for row, n in bag.rows.items() if draw.random() < 0.7})
        differing = (wanted - bag.rows).total() + (bag.rows - wanted).total()
        rows, there = bag.table(list(wanted.elements())), bag.rows.total()
        if there:
            assert bag.writer.few_rows(bag.version, there - 1) is None
            assert bag.writer.replace_all(rows, tag(bag.version + 2, bag.version), there - 1) is None
        assert bag.writer.replace_all(rows, tag(bag.version + 2, bag.version), there) == differing
        bag.version, bag.rows = bag.version + 1, wanted
        bag.assert_equal()
        found = bag.writer.few_rows(bag.version, wanted.total())
        assert found is not None
        assert Counter(tuple(map(_comparable, row.values())) for row in found.to_pylist()) == wanted


@HOLDERS
def test_rows_of_a_file_of_several_row_groups_are_found_where_they_are(tmp_path: Path, held: RowCache) -> None:
    """As other writers cut their files; the least that is decoded at a time."""
    bag = Bag(tmp_path, held=held)
    rows = [(number, "p", 1.5, None, True) for number in range(100)]
    cut = WriterProperties(max_row_group_size=7, write_batch_size=7)
    write_deltalake(bag.uri, bag.table(rows), mode="append", writer_properties=cut)
    (name,) = (tmp_path / "t").glob("part-*.parquet")
    assert pq.ParquetFile(name).num_row_groups > 10
    bag.version, bag.rows = 1, Counter(rows)
    bag.change(Counter({rows[number]: -1 for number in (0, 6, 7, 50, 99)}))
    bag.assert_equal()
    for _ in range(2):
        bag.assert_found([(13,), (50,), (70,)], ["a"])
    assert bag.replace([(13,), (70,)], ["a"], Counter({rows[13]: 1, rows[70]: 2})) == 1
    bag.assert_equal()
    bag.assert_found([(13,), (50,), (70,), (98,)], ["a"])
    few = bag.writer.few_rows(bag.version, 100)
    assert few is not None
    assert Counter(tuple(row.values()) for row in few.to_pylist()) == bag.rows


def test_rows_that_stay_are_not_touched(tmp_path: Path) -> None:
    bag = Bag(tmp_path)
    one, other = (1, "p", 1.5, None, True), (1, "p", 2.5, None, True)
    bag.change(Counter({one: 2, other: 1}))
    assert bag.replace([(1,)], ["a"], Counter({one: 2, other: 1})) == 0
    assert bag.replace([(1,)], ["a"], Counter({one: 3})) == 2
    bag.assert_equal()


def test_a_row_that_goes_and_is_not_there_leaves_all_as_it_was(tmp_path: Path) -> None:
    bag = Bag(tmp_path)
    row = (1, "p", 1.5, None, True)
    bag.change(Counter({row: 1}))
    before = bag.files()
    for weights in (Counter({row: -2}), Counter({(9, *row[1:]): -1})):
        with pytest.raises(ChangesUnavailableError, match="lacks rows"):
            bag.change(weights)
    assert bag.files() == before
    bag.assert_equal()


def test_the_last_digits_of_doubles_do_not_matter_where_other_columns_distinguish_rows(tmp_path: Path) -> None:
    """Sums that were added up in another order; those who follow the table are given the row that it held."""
    bag = Bag(tmp_path)
    bag.change(Counter({(1, "p", 0.1 + 0.2, None, True): 1, (2, "p", 0.3, None, True): 1}))
    bag.writer.change(
        bag.table([(1, "p", 0.3, None, True)]).append_column(WEIGHT, pa.array([-1], pa.int64())), tag(3, 1)
    )
    assert bag.held() == Counter({(2, "p", 0.3, None, True): 1})
    feed = pa.table(DeltaTable(bag.uri).load_cdf(starting_version=2, ending_version=2).read_all()).to_pylist()
    assert [(each["_change_type"], each["a"], each["d"]) for each in feed] == [("delete", 1, 0.1 + 0.2)]


def test_of_two_writers_of_one_version_one_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    bag, row = Bag(tmp_path), (1, "p", 1.5, None, True)
    bag.change(Counter({row: 1}))
    bag.writer.change(bag.table([row]).append_column(WEIGHT, pa.array([1], pa.int64())), tag(3, 1))
    before = bag.files()
    with pytest.raises(Conflict):
        BagWriter(bag.uri).change(bag.table([row]).append_column(WEIGHT, pa.array([-1], pa.int64())), tag(3, 1))
    assert bag.files() == before
    assert bag.held() == Counter({row: 2})


def test_whoever_follows_the_table_is_given_each_row_that_came_or_went(tmp_path: Path) -> None:
    bag, row = Bag(tmp_path), (1, "p", None, None, True)
    bag.change(Counter({row: 3}))
    bag.change(Counter({row: -2, (2, *row[1:]): 1}))
    feed = pa.table(DeltaTable(bag.uri).load_cdf(starting_version=2, ending_version=2).read_all()).to_pylist()
    assert Counter((each["_change_type"], each["a"]) for each in feed) == {("delete", 1): 2, ("insert", 2): 1}


@pytest.mark.parametrize("partitioned", [True, False])
def test_other_tables_are_left_to_spark(tmp_path: Path, partitioned: bool) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([("a", pa.int64()), ("p", pa.int64())])
    if partitioned:
        DeltaTable.create(uri, schema, configuration=VECTORS, partition_by=["p"])
    else:
        DeltaTable.create(uri, schema)
    writer = BagWriter(uri)
    rows = pa.table({name: pa.array([1], pa.int64()) for name in ("a", "p", WEIGHT)})
    assert writer.change(rows, tag(1, 0)) is None
    assert writer.marks_rows(0) is partitioned
    assert DeltaTable(uri).version() == 0


def test_a_table_with_columns_that_arrow_does_not_hold_has_no_vectors(tmp_path: Path) -> None:
    columns = T.StructType([T.StructField("a", T.ArrayType(T.ArrayType(T.LongType())))])
    uri = str(tmp_path / "t")
    create_target(uri, json.loads(columns.json()), dict(VECTORS), tag(1, -1))
    assert not VECTORS.keys() & DeltaTable(uri).metadata().configuration.keys()


def test_a_file_that_is_gone_is_missed_though_its_rows_are_held(tmp_path: Path) -> None:
    """So that a table that has lost one is built again before anybody merges it with others."""
    bag, row = Bag(tmp_path), (1, "p", 1.5, None, True)
    bag.change(Counter({row: 1}))
    bag.assert_found([(1,)], ["a"])
    (name,) = (tmp_path / "t").glob("part-*.parquet")
    name.unlink()
    keys = bag.keys([(1,)], ["a"])
    assert BagWriter(bag.uri).rows_with(keys, bag.version) is None
    assert BagWriter(bag.uri).replace_keys(bag.table([row]), keys, tag(3, 1)) is None


def test_a_table_without_a_change_data_feed_is_written_none(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    create_target(uri, json.loads(COLUMNS.json()), dict(VECTORS), tag(1, -1))
    rows = Bag(tmp_path / "other").table([(1, "p", 1.5, None, True)])
    assert BagWriter(uri).replace_keys(rows, rows.select(["a"]), tag(2, 0)) == 1
    assert not (tmp_path / "t" / "_change_data").exists()
    assert len(pa.table(DeltaTable(uri).scan())) == 1
