"""The memory that the rows of a file take: a file is read exactly where its rows fit into the bound."""

from __future__ import annotations

import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.delta.rows.data_file import ParquetRows, part_of
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.bounded_parquet import Allowance, TooLargeError

ENCODINGS: list[dict[str, object]] = [
    {},
    {"use_dictionary": False},
    *(
        {"use_dictionary": False, "column_encoding": {"text": encoding}}
        for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
    ),
]


def written(folder: Path, table: pa.Table, **options: object) -> ParquetRows:
    pq.write_table(table, folder / "part 1.parquet", **options)
    return ParquetRows(str(folder), "part%201.parquet", (folder / "part 1.parquet").stat().st_size)


@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=4), st.sampled_from(["x" * 1_000, "y" * 3_000])), max_size=60),
    options=st.sampled_from(ENCODINGS),
    group_rows=st.sampled_from([7, 1_000]),
    share=st.floats(0, 10),
)
def test_rows_are_read_only_where_they_fit_and_always_where_they_do_with_the_file(
    texts: list[str | None],
    options: dict[str, object],
    group_rows: int,
    share: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = pa.table({"text": pa.array(texts, pa.string()), "n": pa.array(range(len(texts)), pa.int64())})
    rows = written(tmp_path_factory.mktemp("rows"), table, row_group_size=group_rows, **options)
    texts_bytes = sum(len((text or "").encode()) for text in texts)
    allowed = round(share * (texts_bytes + 12 * len(texts)))
    try:
        found = rows.read(["text", "n"], Allowance(allowed))
    except TooLargeError:
        copied = options.get("column_encoding") == {"text": "DELTA_BYTE_ARRAY"}
        assert copied or allowed < texts_bytes + 60 * len(texts) + 4 * written_out(texts, group_rows) + 1_000
    else:
        assert found.cast(table.schema).equals(table)
        assert texts_bytes + 8 * len(texts) <= allowed


def written_out(texts: list[str | None], group_rows: int) -> int:
    """What the texts take in the file, whose chunks have a dictionary each; their statistics may repeat some."""
    groups = [texts[at : at + group_rows] for at in range(0, len(texts), group_rows)]
    return sum(len((text or "").encode()) for group in groups for text in set(group)) + 100 * len(groups)


@pytest.mark.parametrize("name", ["text", "as.a.field"])
def test_a_text_that_repeats_itself_is_refused_before_it_is_decoded(tmp_path: Path, name: str) -> None:
    """Half a MiB of file, 4 GiB of rows: reading them would double this process many times over."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * 4_096]))
    rows = written(tmp_path, pa.table({name: text}), store_schema=False)
    assert (tmp_path / "part 1.parquet").stat().st_size < 500_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLargeError):
        rows.read([name], Allowance(64 * 1024**2))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


def test_so_are_bytes_of_a_fixed_length(tmp_path: Path) -> None:
    class OfNothingRead(Allowance):
        def take(self, size: int) -> None:
            raise AssertionError(f"{size} bytes were decoded")

    value = pa.array([b"x" * 4_096], pa.binary(4_096))
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), value)
    rows = written(tmp_path, pa.table({"hash": values}), store_schema=False)
    with pytest.raises(TooLargeError):
        rows.read(["hash"], OfNothingRead(1024**2))


@pytest.mark.parametrize("names", [["s"], ["s.f"], ["s", "s.f"]])
def test_a_column_and_a_field_of_the_same_path_are_both_counted(tmp_path: Path, names: list[str]) -> None:
    """pyarrow reads both where one is wanted."""
    structs = pa.array([{"f": n} for n in range(1_000)], pa.struct([("f", pa.int64())]))
    rows = written(tmp_path, pa.table({"s": structs, "s.f": pa.array(range(1_000), pa.int64())}))
    with pytest.raises(TooLargeError):
        rows.read(names, Allowance(8_000 - 1))
    found = rows.read(names, Allowance(2 * 20_000))
    assert {*names} <= {*found.column_names}


def test_so_are_numbers_that_repeat_themselves(tmp_path: Path) -> None:
    rows = written(tmp_path, pa.table({"n": pa.array([7] * 5_000_000, pa.int64())}))
    assert (tmp_path / "part 1.parquet").stat().st_size < 500_000
    with pytest.raises(TooLargeError):
        rows.read(["n"], Allowance(64 * 1024**2))


def test_what_several_files_take_adds_up(tmp_path: Path) -> None:
    rows = written(tmp_path, pa.table({"n": pa.array(range(1_000), pa.int64())}), use_dictionary=False)
    allowance = Allowance(5 * 8_000 + 10_000)
    for _ in range(5):
        assert rows.read(["N"], allowance).column_names == ["n"]
    with pytest.raises(TooLargeError):
        rows.read(["n"], allowance)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ChangesUnavailableError):
        ParquetRows(str(tmp_path), "nothing.parquet", 1)


KIND = pa.struct([("x", pa.string()), ("s", pa.struct([("y", pa.int64())]))])
STRUCTS = pa.array([{"x": "p", "s": {"y": 1}}, None, {"x": None, "s": None}, {"x": "p", "s": {"y": None}}], KIND)


def test_a_field_is_null_where_a_struct_around_it_is(tmp_path: Path) -> None:
    file = written(tmp_path, pa.table({"V": STRUCTS, "k": [1, 2, 3, 4]}))
    rows = file.read(("`v`.`x`", "k", "`v`.`s`.`y`", "`w`.`x`"), Allowance(10**6))
    assert rows.column_names == ["`v`.`x`", "k", "`v`.`s`.`y`"], "a column that the file lacks is left out"
    assert rows["`v`.`x`"].to_pylist() == ["p", None, None, "p"]
    assert rows["`v`.`s`.`y`"].to_pylist() == [1, None, None, None]


def test_a_field_of_texts_that_repeat_themselves_is_read_as_a_dictionary(tmp_path: Path) -> None:
    long = pa.array([{"x": "p" * 1_000, "s": None}, None] * 100, KIND)
    rows = written(tmp_path, pa.table({"v": long})).read(("`v`.`x`",), Allowance(120_000))
    assert pa.types.is_dictionary(rows.schema.types[0])
    assert rows["`v`.`x`"].cast(pa.string()).to_pylist() == ["p" * 1_000, None] * 100


@pytest.mark.parametrize("path", [["X"], ["z"], ["x", "y"], ["s", "y", "y"]])
def test_a_field_of_another_name_is_none(path: list[str]) -> None:
    """Older files have fewer: Spark knows what they mean."""
    with pytest.raises(pa.ArrowInvalid, match="no field"):
        part_of(pa.chunked_array([STRUCTS]), path)
