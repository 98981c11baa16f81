"""Files that lie or swell: what is decoded stays within its bound, and what is refused is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp.storage.bounded_parquet import Allowance, TooLargeError, decoded_bytes, open_parquet

LONG = 4 * 1024**2
ROWS = 100

# Reads a file in each way, and says what came of it, and how much memory it took at most beyond the libraries.
PROGRAM = """
import json, resource, sys
import pyarrow as pa
from iscp.storage.bounded_parquet import TooLargeError, open_parquet
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before, found = peak(), []
for name in sys.argv[2:]:
    try:
        with open_parquet(sys.argv[1], name, None) as file:
            for number in file.groups:
                rows = file.read_groups([number], file.schema_arrow.names, 64 * 1024**2)
            found.append("rows")
    except TooLargeError:
        found.append("too large")
    except (pa.ArrowException, OSError) as error:
        found.append(type(error).__name__)
print(json.dumps({"found": found, "mib": peak() - before}))
"""


def outcome(folder: Path, *names: str) -> tuple[list[str], int]:
    """What came of reading each of the files, and the MiB that it took at most."""
    command = [sys.executable, "-c", PROGRAM, str(folder), *names]
    said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return said["found"], said["mib"]


def write_long(path: Path, rows: int = ROWS, **options: object) -> bytes:
    """A small file whose rows have all the same long text, by a dictionary."""
    pq.write_table(pa.table({"s": pa.array(["x" * LONG] * rows)}), path, dictionary_pagesize_limit=2 * LONG, **options)
    return path.read_bytes()


def test_a_footer_that_says_plain_of_a_dictionary_takes_no_more(tmp_path: Path) -> None:
    content = write_long(tmp_path / "honest", compression="zstd")
    coded, plain = b"\x35\x00\x06\x10", b"\x35\x00\x06\x00"  # encodings: PLAIN, RLE, RLE_DICTIONARY
    assert len(content) < 8_000
    assert content.count(coded) == 1
    (tmp_path / "lying").write_bytes(content.replace(coded, plain))
    found, mib = outcome(tmp_path, "honest", "lying")
    assert found == ["rows"] * 2
    assert mib < 150, "the texts of all rows have 400 MiB"


def test_dictionaries_of_long_texts_are_references_in_each_place(tmp_path: Path) -> None:
    text, rows_written = "x" * LONG, 24  # of 96 MiB, of which 64 are allowed
    columns = {
        "field": pa.array([{"v": text}] * rows_written),
        "listed": pa.array([[text]] * rows_written),
        "mapped": pa.array([[("k", text)]] * rows_written, pa.map_(pa.string(), pa.string())),
        "bytes": pa.array([text.encode()] * rows_written),
        "large": pa.array([text] * rows_written, pa.large_string()),
    }
    for name, column in columns.items():
        table = pa.table({"c": column})
        pq.write_table(table, tmp_path / name, compression="zstd", dictionary_pagesize_limit=2 * LONG)
        with open_parquet(str(tmp_path), name, None) as file:
            rows = file.read_groups(file.groups, ["c"], 64 * 1024**2)
        assert rows.nbytes < 2 * LONG, name
        assert decoded_bytes(rows["c"]) >= rows_written * LONG, name
        assert rows.slice(0, 2).cast(table.schema).equals(table.slice(0, 2)), name


def test_what_a_page_unpacks_to_is_counted(tmp_path: Path) -> None:
    zeros = pa.table({"n": pa.array([0] * 10_000_000, pa.int64())})
    one_page = {"data_page_size": 1024**3, "max_rows_per_page": 10**9, "row_group_size": 10**9}
    pq.write_table(zeros, tmp_path / "zeros", compression="zstd", use_dictionary=False, **one_page)
    pq.write_table(zeros.slice(0, 10), tmp_path / "few")
    assert (tmp_path / "zeros").stat().st_size < 50_000
    found, mib = outcome(tmp_path, "few", "zeros")
    assert found == ["rows", "too large"]
    assert mib < 50


def varints_of(content: bytes) -> list[tuple[int, int]]:
    """Where the footer's numbers begin, and how many bytes each has."""
    end = len(content) - 8
    at, found = end - int.from_bytes(content[-8:-4], "little"), []

    def number() -> int:
        nonlocal at
        begin, value = at, 0
        while content[at] > 127:
            at += 1
        at += 1
        for byte in reversed(content[begin:at]):
            value = value << 7 | byte & 127
        found.append((begin, at - begin))
        return value

    def skip(kind: int) -> None:
        nonlocal at
        if kind in (4, 5, 6):
            number()
        elif kind == 8:
            length = number()
            at += length
        elif kind == 9:
            header = content[at]
            at += 1
            count = number() if header >> 4 == 15 else header >> 4
            for _ in range(count):
                skip(header & 15)
        elif kind == 12:
            while header := content[at]:
                at += 1
                skip(header & 15)
            at += 1
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8

    skip(12)
    assert at == end
    return found


def test_footers_that_lie_in_each_field(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "n": pa.array(range(500), pa.int64()),
            "s": pa.array([f"text {n % 7}" for n in range(500)]),
            "l": pa.array([[n, n] for n in range(500)]),
            "d": pa.array([{"a": n, "b": "b"} for n in range(500)]),
        }
    )
    pq.write_table(rows, tmp_path / "whole", row_group_size=250, store_schema=False)
    content, names = (tmp_path / "whole").read_bytes(), ["whole"]
    for begin, length in varints_of(content):
        for last in (0, 1, 2, 126, 127):  # its greatest and least, and what is next to them
            lie = bytes([255] * (length - 1) + [last]) if last > 2 else bytes([128 + last] * (length - 1) + [0])
            lie = bytes([last]) if length == 1 else lie
            names.append(f"{begin}-{last}")
            (tmp_path / names[-1]).write_bytes(content[:begin] + lie + content[begin + length :])
    found, mib = outcome(tmp_path, *names)
    assert found[0] == "rows"
    assert len(found) > 500
    assert set(found) - {"rows", "too large"} <= {"ArrowInvalid", "ArrowNotImplementedError", "OSError"}, set(found)
    assert mib < 200


def test_those_that_decode_at_once_wait_for_each_other() -> None:
    allowance, at_once, most = Allowance(100), [0], [0]

    def decode() -> None:
        with allowance.reserve(60):
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            at_once[0] -= 1

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == [1]
    with pytest.raises(TooLargeError), allowance.reserve(101):
        pass
