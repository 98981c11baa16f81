"""Reads stored groups of some keys by delta-rs, where their files are not searched here."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.ports.source import ChangesUnavailableError


def read_groups(uri: str, version: int, keys: pa.Table) -> pa.Table:
    """Return the stored groups with these keys, and others. Raises ChangesUnavailableError if a file is gone."""
    with delta_faults(f"read {uri}"):
        # By delta-rs itself: Arrow takes neither rows that are marked as deleted, nor a filter of texts that it wrote.
        batches = pa.RecordBatchReader.from_stream(open_delta(uri, version).scan())
        try:
            found = [_with_first(batch, pc.unique(keys["k0"])) for batch in batches]
        except pa.ArrowInvalid as error:  # whatever delta-rs has met on its way through the files
            raise ChangesUnavailableError(f"what is kept of the groups cannot be read: {error}") from error
        return pa.concat_tables([_plain(batches.schema).empty_table(), *found])


def _with_first(batch: pa.RecordBatch, firsts: pa.Array) -> pa.Table:
    """Return the rows whose first key is one of these."""
    rows = pa.Table.from_batches([batch]).cast(_plain(batch.schema))
    return rows.filter(pc.is_in(rows["k0"], value_set=firsts.cast(rows.schema.field("k0").type)))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(pa.string()) if each.type == pa.string_view() else each for each in schema])
