"""The files of rows that commits of the job log name."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from iscp.adapters.delta.joblog.log_schema import row_count_stats
from iscp.adapters.delta.storage.locations import local_path
from iscp.adapters.delta.storage.table_files import files_of, sync
from iscp.ports.system import Clock


class DataFiles:
    """Writes the data files of one table."""

    def __init__(self, uri: str, clock: Clock) -> None:
        self._path = local_path(uri)
        self._files = files_of(uri)
        self._clock = clock

    def write(self, name: str, rows: pa.Table) -> AddAction:
        """Write a file that is durable before the commit that is to name it, and return its action.

        Raises OSError, and what Arrow raises.
        """
        with self._files.open_output_stream(name) as stream:
            pq.write_table(rows, stream, compression="zstd")
            size = stream.tell()
        if self._path is not None:
            sync(self._path / name)
            sync(self._path)
        return AddAction(name, size, {}, int(self._clock.now_s() * 1000), True, row_count_stats(len(rows)))

    def discard(self, name: str) -> None:
        """Free the space of a file that was not committed; not on an object store, where that commit may yet come."""
        if self._path is not None:
            with suppress(OSError):
                (self._path / name).unlink(missing_ok=True)
