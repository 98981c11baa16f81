"""Tables are distinguished by the file system or bucket that they lie on, without touching them."""

from __future__ import annotations

import pytest

from iscp.adapters.delta.storage.mounts import mount_points, mount_types, on_local_disk, storage_place

LINES = (
    "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
    "30 22 0:5 / /proc rw - proc proc rw",
    "31 22 0:44 / /mnt/a rw - nfs server:/a rw",
    "32 31 0:45 / /mnt/a/deep rw - nfs server:/deep rw",
    r"33 22 0:46 / /mnt/with\040blank rw - nfs server:/b rw",
    "",
)


def test_file_systems_are_read_as_linux_lists_them_the_deepest_first() -> None:
    assert mount_points(LINES) == ("/mnt/with blank", "/mnt/a/deep", "/mnt/a", "/proc")


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("/proc/self", "/proc"),
        ("file:///proc/self", "/proc"),
        ("/proc", "/proc"),
        ("/procedures", "/"),
        ("s3://lake/a/b", "s3://lake"),
        ("s3a://lake/a", "s3://lake"),
        ("", "/"),
    ],
)
def test_a_table_lies_where_its_path_says(uri: str, place: str) -> None:
    assert storage_place(uri) == place


def test_only_a_file_system_that_no_other_machine_writes_to_is_a_local_disk() -> None:
    assert mount_types(LINES) == {
        "/": "ext4",
        "/proc": "proc",
        "/mnt/a": "nfs",
        "/mnt/a/deep": "nfs",
        "/mnt/with blank": "nfs",
    }
    assert not on_local_disk("/proc/self")
    assert not on_local_disk("s3://lake/a")
