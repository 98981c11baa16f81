"""Local files of somebody else: regular ones are opened, all others refused by name, without waiting."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.regular_files import RefusedFileError, open_regular


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
