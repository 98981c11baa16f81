"""Local files of somebody else: regular ones are opened, all others refused by name, without waiting.

Paths in logs: below the table or refused, absolute ones as far as all may go, nothing said of files.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from iscp.model.values.errors import ErrorCode, PermanentError, StorageError
from iscp.storage import files
from iscp.storage.regular_files import (
    Reach,
    RefusedFileError,
    is_below,
    lies_elsewhere,
    open_regular,
    place_of_file,
    require_files,
)


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
