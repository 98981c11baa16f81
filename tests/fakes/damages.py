"""What becomes of a file by accident or a failing disk; a directory's other files stay as they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garble(path: Path) -> None:
    path.write_bytes(b"\xff\x00garbage")


def link_to_itself(path: Path) -> None:
    """What cannot be opened, also by a user who may do anything."""
    path.unlink()
    path.symlink_to(path.name)


def delete_directory(path: Path) -> None:
    """The one that the file lies in."""
    shutil.rmtree(path.parent)


def replaced_by(other: Path) -> Damage:
    """Another file, whole in itself, where this one belongs."""

    def replace(path: Path) -> None:
        shutil.copyfile(other, path)

    return replace


CONTENT: tuple[Damage, ...] = (truncate, empty, zero, garble)
"""The file is there, and what is in it is not what was."""
