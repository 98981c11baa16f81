"""Tables with which tests begin, made once in a process: each test gets copies, under an id of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from deltalake import DeltaTable


class Templates:
    """Directories of tables, by what they were made from."""

    def __init__(self) -> None:
        self._root = TemporaryDirectory(prefix="iscp-templates-")
        self._kept: dict[str, tuple[Path, str]] = {}

    def source(self, made_from: str, uri: str, make: Callable[[], None]) -> None:
        """A source as `make` leaves one at `uri`; what it does may depend on `made_from` alone. On S3 it is made."""
        if "://" in uri:
            make()
        elif made_from not in self._kept:
            make()
            self._keep(made_from, Path(uri), _table_id(uri))
        else:
            self._copy(made_from, Path(uri), str(uuid4()))

    def targets(self, made_from: str, source: str, uris: list[str], make: Callable[[], None]) -> None:
        """The tables that `make` leaves at `uris`: it depends on `made_from` and on the log of `source` alone."""
        if "://" in source:
            make()
            return
        key = f"{_content(source)} {made_from}"
        if f"{key} 0" in self._kept:
            for number, uri in enumerate(uris):
                self._copy(f"{key} {number}", Path(uri), _table_id(source))
        else:
            make()
            for number, uri in enumerate(uris):
                self._keep(f"{key} {number}", Path(uri), _table_id(source))

    def _keep(self, key: str, directory: Path, table_id: str) -> None:
        place = Path(self._root.name, str(len(self._kept)))
        shutil.copytree(directory, place)
        self._kept[key] = place, table_id

    def _copy(self, key: str, directory: Path, table_id: str) -> None:
        place, kept_id = self._kept[key]
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(place, directory)
        for file in _log_files(directory):
            status = file.stat()
            file.write_bytes(file.read_bytes().replace(kept_id.encode(), table_id.encode()))
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        for beside in Path(directory, "_delta_log").glob(".*.crc"):
            beside.unlink()  # Hadoop's sums of files that are others now


def _table_id(uri: str) -> str:
    return str(DeltaTable(uri).metadata().id)


def _log_files(directory: Path) -> list[Path]:
    found = Path(directory, "_delta_log").iterdir()
    return sorted(each for each in found if each.suffix in (".json", ".crc") and not each.name.startswith("."))


def _content(uri: str) -> str:
    """What the log says, whatever the table's id: the same of two copies of one template alone."""
    seen = hashlib.sha256()
    for file in _log_files(Path(uri)):
        seen.update(file.read_bytes().replace(_table_id(uri).encode(), b"") + b"\n")
    return seen.hexdigest()
