"""Local files of somebody else: regular ones are opened, all others refused by name, without waiting.

Paths in logs: below the table or refused, absolute ones as far as all may go, nothing said of files.

Footers of Parquet: those of any writer pass, and what nests or lists without bound is refused, whatever it is.
"""

from __future__ import annotations

import io
import os
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp.model.values.errors import ErrorCode, PermanentError, StorageError
from iscp.storage import files
from iscp.storage.regular_files import (
    COLUMNS_DEPTH_MAX,
    FOOTER_BYTES_MAX,
    LISTED_MAX,
    OddFooterError,
    Reach,
    RefusedFileError,
    check_footer,
    is_below,
    lies_elsewhere,
    open_regular,
    place_of_file,
    require_files,
)
from tests.fakes.poisoned_tables import LEVELS, nested_parquet


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to(path.with_name("whole")),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a directory": Path.mkdir,
    "a socket": bind,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_refused_by_each_way_of_reading(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    (tmp_path / "whole").write_bytes(b"whole")
    ODD[kind](path)
    for read in (files.read, lambda at: files.read_head(at, 10), lambda at: files.read_part(at, 1, 10)):
        with pytest.raises(RefusedFileError, match=f"{path} is {kind[:6]}"):
            read(str(path))
    assert files.stamp(str(path)), "that there is something is seen, without following it"
    assert files.exists(str(path))


def test_a_device_is_refused() -> None:
    with pytest.raises(RefusedFileError, match="is a device"):
        files.read("/dev/zero")


def test_a_larger_file_is_refused_and_its_parts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 6 << 30)
    with pytest.raises(RefusedFileError, match="has 6442450944 bytes, more than the 134217728 that are read"):
        files.read(str(path))
    assert files.read_part(str(path), 5 << 30, 10) == bytes(10)
    assert files.read_part(str(path), (6 << 30) - 5, 10) == bytes(5)
    assert files.read_part(str(path), 7 << 30, 10) == b""


def test_a_listing_refuses_what_is_neither_a_file_nor_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "d").mkdir()
    assert files.stamps(str(tmp_path)) == {"a": (), "d": ()}
    (tmp_path / "l").symlink_to(tmp_path / "a")
    with pytest.raises(RefusedFileError, match="/l is a link"):
        files.stamps(str(tmp_path))
    assert files.stamps(str(tmp_path / "nothing")) == {}


def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(b"whole")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with open_regular(str(tmp_path / "whole")) as (handle, about):
            assert os.read(handle, 9) == b"whole"
            assert about.st_size == len(b"whole")
        with pytest.raises(RefusedFileError), open_regular(str(tmp_path / "pipe")):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


BELOW = {
    "a.parquet": "a.parquet",
    "p=1/a%20b": "p=1/a b",
    "ts=10%3A00/x": "ts=10:00/x",
    "p=a:b/c": "p=a:b/c",
    "...": "...",
}
OUT = (
    "../a",
    "p=1/../../a",
    "..%2Fa",
    "%2e%2E/a",
    "a/%2E%2E/%2e%2e/b",
    "a/./b",
    "a//b",
    "a/",
    "",
    ".",
    "%2Fetc/passwd",
    "file%3A///etc/passwd",
    "a%00b",
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("evil/t/part", "evil/base", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "other" / "secret").write_text("secret")
    return tmp_path


@pytest.mark.parametrize("path", BELOW)
def test_a_path_below_the_table_is_decoded_once(lake: Path, path: str) -> None:
    uri = str(lake / "evil" / "t")
    assert place_of_file(uri, path) == f"{uri}/{BELOW[path]}"
    require_files(uri, [path])


@pytest.mark.parametrize("path", OUT)
def test_a_path_that_leads_out_is_refused_before_anything_is_opened(lake: Path, path: str) -> None:
    assert not is_below(path)
    for refused in (lambda: place_of_file(str(lake / "evil" / "t"), path), lambda: require_files(str(lake), [path])):
        with pytest.raises(StorageError, match="leads out of the table") as raised:
            refused()
        assert raised.value.code is ErrorCode.LOG_CORRUPT


def test_absolute_paths_are_known_as_such() -> None:
    assert [lies_elsewhere(path) for path in ("a:b", "/a", "s3://b/a", "p=a:b/c", "a")] == [True] * 3 + [False] * 2


def test_a_link_between_the_table_and_a_file_is_refused_whether_there_is_a_file_or_not(lake: Path) -> None:
    uri = str(lake / "evil" / "t")
    (lake / "evil" / "t" / "out").symlink_to(lake / "other")
    (lake / "evil" / "t" / "in").symlink_to(lake / "evil" / "t" / "part")
    said = set()
    for name in ("secret", "nothing"):
        for refused in (lambda path: place_of_file(uri, path), lambda path: require_files(uri, [path])):
            with pytest.raises(StorageError, match="by a link") as raised:
                refused(f"out/{name}")
            said.add(str(raised.value).replace(name, ""))
    assert len(said) == 1
    assert place_of_file(uri, "in/x") == f"{uri}/in/x"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir])
@pytest.mark.parametrize("name", ["x.parquet", ".x.parquet.crc"])
def test_what_is_no_file_is_refused_before_others_open_it(lake: Path, make: object, name: str) -> None:
    uri = str(lake / "evil" / "t")
    (lake / "evil" / "t" / "x.parquet").touch()
    (lake / "evil" / "t" / name).unlink(missing_ok=True)
    make(lake / "evil" / "t" / name)  # type: ignore[operator]
    with pytest.raises(StorageError, match="where a regular file belongs") as raised:
        require_files(uri, ["x.parquet"])
    assert raised.value.code is ErrorCode.LOG_CORRUPT


def test_a_sparse_data_file_with_a_footer_without_bounds_is_refused(lake: Path) -> None:
    path = lake / "evil" / "t" / "x.parquet"
    with path.open("wb") as file:
        file.seek(6 << 30)
        file.write((2**31 - 1).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(StorageError, match="its footer has 2147483647 bytes"):
        require_files(str(lake / "evil" / "t"), ["x.parquet"])


def test_absolute_paths_go_as_far_as_all_who_may_have_the_table(lake: Path) -> None:
    uri, secret, base = str(lake / "evil" / "t"), str(lake / "other" / "secret"), str(lake / "evil" / "base" / "x")
    reach = Reach([[str(lake / "evil")], [str(lake)], [str(lake / "other")]])
    for spelled in (base, f"file://{base}", f"file:{base}", base.replace("base", "b%61se")):
        assert reach.follow(uri, spelled) == os.path.realpath(base)
    said = set()
    for path in (secret, f"file://{secret}", str(lake / "other" / "nothing"), "/etc/shadow", "s3://bucket/key"):
        with pytest.raises(PermanentError, match="does not lie below a root") as raised:
            reach.follow(uri, path)
        assert raised.value.code is ErrorCode.OUTSIDE_ROOTS
        said.add(str(raised.value).replace(path, ""))
    assert len(said) == 1, "whether there is a file is not said"
    (lake / "evil" / "base" / "out").symlink_to(lake / "other")
    with pytest.raises(PermanentError):
        reach.follow(uri, f"{lake}/evil/base/out/secret")
    assert Reach().follow(uri, secret) == os.path.realpath(secret)


@pytest.mark.parametrize(
    "path", ["hdfs://host/x", "http://169.254.169.254/x", "file://host/x", "/a/../b", "/a//b", "s3://"]
)
def test_other_stores_and_odd_spellings_are_never_followed(lake: Path, path: str) -> None:
    with pytest.raises(StorageError, match="is no place that is read here"):
        Reach().follow(str(lake / "evil" / "t"), path)


def check(content: bytes) -> None:
    check_footer(lambda begin, length: content[begin : begin + length], len(content))


def file_of(footer: bytes) -> bytes:
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def written(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


TABLES = {
    "plain": pa.table({"a": [1, None], "b": ["x", "y"], "c": [True, False], "d": [1.5, 2.5]}),
    "nested": pa.table({"s": [{"a": [{"b": {"c": [1, 2]}}]}], "m": pa.array([[("k", 1)]], pa.map_("string", "int32"))}),
    "wide": pa.table({f"c{number}": [number] for number in range(300)}),
    "no columns": pa.table({}),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "options",
    [{}, {"row_group_size": 1}, {"write_page_index": True, "use_dictionary": False, "version": "1.0"}],
    ids=["plain", "many groups", "with indexes"],
)
def test_what_is_written_passes(name: str, options: dict[str, object]) -> None:
    check(written(TABLES[name].replace_schema_metadata({"k": "v" * 100_000}), **options))


def test_nesting_up_to_a_bound_passes() -> None:
    check(nested_parquet(COLUMNS_DEPTH_MAX - 1))
    for levels in (COLUMNS_DEPTH_MAX, LEVELS, 40 * LEVELS):
        with pytest.raises(OddFooterError, match="levels deep"):
            check(nested_parquet(levels))


STRUCTS = b"\x1c"
"""A field that is a struct, one after the last."""

ODD_OF_FOOTER = {
    "structs within structs": (STRUCTS * 10_000 + b"\x00" * 10_001, "nests structs"),
    "structs within a list of them": (b"\x19\x1c" * 10_000, "nests structs"),
    "more entries than bytes": (b"\x49\xfc\xff\xff\xff\xff\x07\x00", "lists more than"),
    "many entries": (b"\x49\xfc" + b"\xa1\xc2\x1e" + b"\x00" * LISTED_MAX * 2, "lists more than"),
    "a number without an end": (b"\x16" + b"\xff" * 20, "without an end"),
    "a text that is longer than the footer": (b"\x18\xff\xff\xff\xff\x07", "ends within a field"),
    "a map": (b"\x1b\x01\x88", "does not have"),
}


@pytest.mark.parametrize("name", ODD_OF_FOOTER)
def test_what_no_writer_writes_is_refused(name: str) -> None:
    footer, why = ODD_OF_FOOTER[name]
    with pytest.raises(OddFooterError, match=why):
        check(file_of(footer))


def test_a_footer_that_is_encrypted_or_too_long_is_not_even_read() -> None:
    with pytest.raises(OddFooterError, match="encrypted"):
        check(b"PAR1" + b"\x00" * 20 + b"PARE")
    with pytest.raises(OddFooterError, match="bytes, more than"):
        check(b"\x00" * 20 + struct.pack("<I", FOOTER_BYTES_MAX + 1) + b"PAR1")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"garbage" * 100, b"\x00" * 8 + b"\xff\x00\x00\x00PAR1"])
def test_what_is_no_parquet_file_is_for_its_readers_to_name(content: bytes) -> None:
    check(content)


def test_damage_of_any_kind_is_refused_or_passes() -> None:
    whole, draw = written(TABLES["nested"]), random.Random(7)
    for _ in range(2_000):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content) - 8)] = draw.randrange(256)
        with suppress(OddFooterError):
            check(bytes(content))
