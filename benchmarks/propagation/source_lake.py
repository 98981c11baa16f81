"""The sources: Delta tables that delta-rs writes, for each engine a copy of its own, with the same commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.propagation.medallion import SOURCE_KEYS
from iscp.cli.demo.lake import read
from iscp.delta.log.commits import newest_version
from iscp.storage.locations import commit_name

CDF = {"delta.enableChangeDataFeed": "true"}


class Write(StrEnum):
    """How a commit changes a table."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE = "delete"
    SAME = "same"
    """Overwrite with the rows that are there."""


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """One commit to a source. `rows` has all its columns; for DELETE only its key counts. SAME has none."""

    table: str
    write: Write
    rows: pa.Table | None = None


class SourceLake:
    """The sources below a folder."""

    def __init__(self, root: Path, tables: Mapping[str, pa.Table]) -> None:
        self.uris = {name: str(root / name) for name in tables}
        for name, rows in tables.items():
            write_deltalake(self.uris[name], rows, configuration=CDF)

    def apply(self, commits: Sequence[SourceCommit]) -> float:
        """Commit them one after the other; when the last one was there (Unix seconds)."""
        for commit in commits:
            self._apply(commit)
        return committed_at_s(self.uris[commits[-1].table], newest_version(self.uris[commits[-1].table]))

    def rows(self, name: str) -> pa.Table:
        return read(self.uris[name])

    def _apply(self, commit: SourceCommit) -> None:
        uri = self.uris[commit.table]
        rows = read(uri) if commit.rows is None else commit.rows
        match commit.write:
            case Write.APPEND:
                write_deltalake(uri, rows, mode="append")
            case Write.SAME:
                write_deltalake(uri, rows, mode="overwrite")
            case Write.UPSERT | Write.DELETE:
                same = " AND ".join(f"t.{name} = s.{name}" for name in SOURCE_KEYS[commit.table])
                merge = DeltaTable(uri).merge(rows, same, source_alias="s", target_alias="t")
                if commit.write is Write.DELETE:
                    merge = merge.when_matched_delete()
                else:
                    merge = merge.when_matched_update_all().when_not_matched_insert_all()
                merge.execute()


def committed_at_s(uri: str, version: int) -> float:
    """Return when the file of a commit was there (Unix seconds), which is the same for all who write tables."""
    return Path(uri, "_delta_log", commit_name(version)).stat().st_mtime
