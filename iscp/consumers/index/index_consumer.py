"""Maintains one index: commits what an iteration hands it, and stages the rows of a build."""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from lance.fragment import FragmentMetadata

from iscp.consumers.index.index_plan import IndexPlan, vectors_among, vectors_of
from iscp.consumers.source_rows import ROWS_MAX, rows_passing, split_by_key
from iscp.delta.sink.staging import FileStagedRanges
from iscp.index.embedding.embedder_registry import Known
from iscp.index.lance.index_columns import FAULT, HEAD_KEY, KEY, ROW_HASH, FieldTotals, IndexHead
from iscp.index.lance.index_store import IndexStore, OpenIndex
from iscp.index.lance.index_transaction import DurableFiles, IndexTransaction, RowSums, count_rows, write_rows
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.row_encoder import RowEncoder, key_texts
from iscp.index.lance.word_counts import (
    FOLDER,
    KEYS_PREFIX,
    WordCounts,
    find_rows,
    merged_counts,
    read_table,
    write_counts,
)
from iscp.model.build.build_task import BuildId
from iscp.model.job.iteration import DataType, UsagePart
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import WatermarkRecord, position_of, record_key
from iscp.model.rows.key_ranges import Op
from iscp.model.sql.sql_names import OP
from iscp.model.values.errors import Conflict, StorageError
from iscp.model.values.watermark import NOTHING_APPLIED, DeadLetters, Position, Watermark
from iscp.ports.consumer import ConsumeContext, Consumed, Consumer, Retriever
from iscp.ports.engine import charged_as
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.source import ChangesUnavailableError, KeysSharedError, Rows
from iscp.spark.spark_engine import arrow_batches
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.system.late_imports import A, pc

if TYPE_CHECKING:
    from lance import LanceDataset
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


# --- tables of a bounded size -----------------------------------------------------------------------------------------
# Rows on their way to an index are cut into them.

BATCH_ROWS_MAX = 50_000
"""Rows that are analysed and written at once; their vectors are in memory too."""

SHARED_KEY = "its key is shared by several rows"
"""The fault of a row whose key others have too."""


def index_tables(rows: Rows, rows_max: int = BATCH_ROWS_MAX) -> Iterator[pa.Table]:
    """Yield rows in tables of about so many, as Spark's batches are small."""
    if rows.table is not None:
        for start in range(0, len(rows.table), rows_max):
            yield rows.table.slice(start, rows_max)
        return
    gathered: list[pa.Table] = []
    count = 0
    for table in arrow_batches(rows.frame, rows_max):
        gathered.append(table)
        count += len(table)
        if count >= rows_max:
            yield pa.concat_tables(gathered)
            gathered, count = [], 0
    if count:
        yield pa.concat_tables(gathered)


# --- staged rows ------------------------------------------------------------------------------------------------------

_KEY_SCHEMA = pa.schema([pa.field(KEY, pa.string(), nullable=False)])
_FRAGMENTS, _COUNTS, _KEYS, _SUMS = "fragments", "counts", "keys", "sums"


class IndexRowStager:
    """Stages rows of a build's ranges as files of the index's dataset, which no version names yet (port RowStager).

    A manifest has the files, the sums of their rows, the file with the counts of their words, and one with their keys:
    whether two ranges have a key in common shows only when all are there. `encoder` is for the columns that `dataset`
    has.
    """

    def __init__(self, root: str, dataset: LanceDataset, encoder: RowEncoder) -> None:
        self._root = root
        self._dataset = dataset
        self._encoder = encoder

    def stage(self, rows: Rows, folder: str) -> Manifest:
        counts, keys, sums = WordCounts(), [], []
        written: list[FragmentMetadata] = []
        for table in self._encoder.portions(index_tables(rows)):
            encoded = self._encoder.encode(table)
            sums.append(count_rows([encoded], counts))
            keys.append(encoded.select([KEY]))
            written += write_rows(self._root, self._dataset, encoded)
        if not written:
            return Manifest(0, 0)
        DurableFiles(self._root).sync_fragments(written)
        total = _summed(sums)
        found = {
            _FRAGMENTS: [json.dumps(each.to_json()) for each in written],
            _COUNTS: write_counts(self._root, counts.table()),
            _KEYS: self._write_keys(pa.concat_tables(keys)),
            _SUMS: list(total),
        }
        size = sum(file.file_size_bytes or 0 for each in written for file in each.files)
        return Manifest(total.rows, size, files=found)

    def are_there(self, manifests: Sequence[Manifest], folder: str) -> bool:
        there = {*files.names(f"{self._root}/data")}
        beside = {*files.names(f"{self._root}/{FOLDER}")}
        for manifest in manifests:
            if not {manifest.files[_COUNTS], manifest.files[_KEYS]} <= beside:
                return False
            if not all(file.path in there for each in _fragments(manifest) for file in each.files):
                return False
        return True

    def have_own_keys(self, manifests: Sequence[Manifest]) -> bool:
        """Return whether no two staged rows share a key. Raises StorageError."""
        tables = [self._read_keys(str(manifest.files[_KEYS])) for manifest in manifests]
        keys = pa.chunked_array([chunk for each in tables for chunk in each[KEY].chunks], pa.string())
        return int(pc.count_distinct(keys).as_py()) == len(keys) if len(keys) else True

    def publish(self, commit: IndexTransaction, manifests: Sequence[Manifest]) -> None:
        """Have a transaction add all that is staged."""
        tables = [read_table(self._root, str(manifest.files[_COUNTS])) for manifest in manifests]
        if manifests:
            fragments = [fragment for manifest in manifests for fragment in _fragments(manifest)]
            sums = _summed([_read_sums(manifest.files[_SUMS]) for manifest in manifests])
            commit.add_fragments(fragments, sums, merged_counts(tables))

    def _write_keys(self, table: pa.Table) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(table)
        name = f"{KEYS_PREFIX}{uuid.uuid4().hex}.arrow"
        with storage_faults(f"write {self._root}/{FOLDER}/{name}"):
            files.create(f"{self._root}/{FOLDER}/{name}", sink.getvalue().to_pybytes())
        return name

    def _read_keys(self, name: str) -> pa.Table:
        found = find_rows(self._root, name, _KEY_SCHEMA)
        if found is None:
            raise StorageError(f"{self._root}/{FOLDER}/{name} is gone, which a build has staged")
        return found


def _fragments(manifest: Manifest) -> list[FragmentMetadata]:
    return [FragmentMetadata.from_json(each) for each in manifest.files[_FRAGMENTS]]


def _summed(sums: Sequence[RowSums]) -> RowSums:
    totals = zip(*(each.totals for each in sums), strict=True)
    return RowSums(
        rows=sum(each.rows for each in sums),
        faults=sum(each.faults for each in sums),
        vectors=sum(each.vectors for each in sums),
        totals=tuple((sum(rows for rows, _ in column), sum(words for _, words in column)) for column in totals),
    )


def _read_sums(found: Sequence[object]) -> RowSums:
    rows, faults, vectors, totals = found
    return RowSums(rows, faults, vectors, tuple((each[0], each[1]) for each in totals))  # type: ignore[arg-type, attr-defined]


# --- the consumer -----------------------------------------------------------------------------------------------------

_THERE, _WRITES = (Op.UPDATE, Op.DELETE), (Op.INSERT, Op.UPDATE)


class IndexConsumer(Consumer):
    """Maintains one index (also port RangeBuilt). `maintain` is called after commits.

    What an iteration hands it is committed, with the watermark, as one version of the dataset.
    """

    def __init__(self, row: JobRow, store: IndexStore, plan: IndexPlan, maintain: Callable[[], None]) -> None:
        self._row = row
        self._spec = row.spec.consumer
        self._store = store
        self._plan = plan
        self._maintain = maintain
        self._record = record_key(row.key, self._spec.target)

    def position(self, row: JobRow) -> Position:
        if not self._store.exists():
            return Position()
        index = self._store.open()
        found = position_of(index.head.records.get(self._record))
        return replace(
            found,
            void=self._plan.misfit(index.head) if found.watermark.version >= 0 else "",
            dead=DeadLetters(found.seq, index.head.faults),
            column_ids=index.head.column_ids,
        )

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        """Take over the index for this registration, and make it if it is not there. The rows that it has stay.

        Rows of another source are searched by nobody any more: its versions say nothing of this one. What a deletion
        has left is gone on from: so whatever is late for the former index is for this one too.
        """
        if self._store.exists():
            with self._store.writing:
                commit = self._store.begin()
                if commit.head.is_deleted:
                    commit.replace_all(self._schema_of(source), self._head())
                elif position_of(commit.get(self._record)).source_id != context.source_id:
                    commit.apply(NOTHING_APPLIED, 0.0)
                return self.commit_record(context, commit, Watermark())
        record = self._next_record(context, Watermark())
        context.guard.check()
        self._store.create(self._schema_of(source), replace(self._head(), records={self._record: record.to_json()}))
        return record.position

    def _schema_of(self, source: DataFrame) -> pa.Schema:
        return self._plan.schema(A.to_arrow_schema(source.schema), self._plan.dimension)

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """Commit the watermark of versions that have changed no row, so that whoever waits for one is answered."""
        position = context.position
        if watermark.version <= position.watermark.version and watermark.at_s <= position.watermark.at_s:
            return position
        with self._store.writing:
            commit = self._store.begin()
            commit.apply(watermark.version, watermark.at_s)
            return self.commit_record(context, commit, watermark)

    def go_on_from(self, context: ConsumeContext) -> Position:
        with self._store.writing:
            return self.commit_record(context, self._store.begin(), context.position.watermark)

    @charged_as(UsagePart.COMMIT)
    def commit_record(self, context: ConsumeContext, commit: IndexTransaction, watermark: Watermark) -> Position:
        """Commit what a transaction has gathered under the next seq, and return the position after it.

        Raises Conflict if another writer won the seq.
        """
        position = context.position
        if position_of(commit.get(self._record)).base_version != position.base_version:
            raise Conflict(f"{self._store.root} has moved: another writer has committed")
        record = self._next_record(context, watermark)
        commit.put(self._record, record.to_json())
        context.guard.check()
        commit.commit()
        dead = DeadLetters(record.seq, commit.head.faults)
        return replace(record.position, dead=dead, column_ids=commit.head.column_ids)

    def _next_record(self, context: ConsumeContext, watermark: Watermark) -> WatermarkRecord:
        return WatermarkRecord(
            seq=context.position.seq + 1,
            watermark=watermark,
            job_id=context.row.job_id,
            source_id=context.source_id,
            from_version=context.position.watermark.version,
            epoch=context.epoch,
            attempt=uuid.uuid4().hex[:12],
            origin=context.row.origin,
        )

    def stored_vectors(self, index: OpenIndex) -> Known | None:
        """Return what finds the vectors that the index has of this job's embedder; None where it has none."""
        return vectors_of(index) if self._plan.embeds and self._plan.same_embedder(index.head) else None

    @property
    def range_built(self) -> IndexConsumer:
        return self

    def takes_ranges(self, context: ConsumeContext, source: DataFrame) -> bool:
        """Return whether ranges may be staged, once the index has the columns that their rows are to have."""
        rows = Rows(lambda: source)
        dimension = self._plan.dimension or self._plan.dimension_in_rows(rows)
        schema = self._plan.schema(A.to_arrow_schema(source.schema), dimension)
        index = self._store.open()
        if index.dataset.schema.equals(schema):
            return True
        if index.head.rows:
            return False  # they are seen until the others are there
        commit = self._store.begin(index)
        commit.replace_all(schema, self._head())
        context.guard.check()
        commit.commit()
        return True

    def ranges(self, build: BuildId) -> StagedRanges:
        return FileStagedRanges(self._store.root, build, self._store.failpoints, self._stager())

    def _stager(self) -> IndexRowStager:
        dataset = self._store.open().dataset
        return IndexRowStager(self._store.root, dataset, self._plan.encoder(dataset.schema))

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        stager = self._stager()
        if not stager.have_own_keys(manifests):
            return None
        with self._store.writing:
            commit = self._store.begin()
            commit.replace_all(commit.dataset.schema, self._head())
            stager.publish(commit, manifests)
            return self._commit(context, commit, retriever, commit.head.rows)

    def tidy(self) -> None:
        self._maintain()

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        with self._store.writing:
            index = self._store.open()
            commit = self._store.begin(index)
            if retriever.data_type is DataType.TAIL:
                try:
                    rows = self._tail(commit, retriever, context)
                except KeysSharedError as shared:
                    log.info("keys.shared", extra={"target": self._store.root, "reason": str(shared)})
                    commit = self._store.begin(index)
                    rows = self._replace_keys(index, commit, retriever, context)
            else:
                rows = self._whole(index, commit, retriever, context)
            return self._commit(context, commit, retriever, rows)

    def _commit(self, context: ConsumeContext, commit: IndexTransaction, retriever: Retriever, rows: int) -> Consumed:
        """Commit what a transaction has gathered, and the iteration's record with it."""
        commit.name_columns(context.column_ids)
        commit.apply(retriever.to.version, retriever.to.at_s, partly=retriever.to.steps > 0)
        retriever.update_watermark(commit)
        commit.commit()
        position = retriever.record.position
        dead = DeadLetters(position.seq, commit.head.faults)
        return Consumed(replace(position, dead=dead, column_ids=context.column_ids), rows, 0)

    def _head(self) -> IndexHead:
        return IndexHead(
            self._plan.definition,
            self._spec.key,
            totals=(FieldTotals(),) * len(self._plan.texts),
            fingerprint=self._plan.fingerprint,
        )

    # --- changes -------------------------------------------------------------------------------------------------

    def _tail(self, commit: IndexTransaction, retriever: Retriever, context: ConsumeContext) -> int:
        changes = retriever.changes(self._spec.key, self._spec.where)
        net, rows, sizes = changes.net, 0, Counter[int]()
        encoder = self._plan.encoder(commit.dataset.schema, context.guard)
        with ThreadPoolExecutor(1, "iscp-index-seek") as seeker:
            few = net.table if changes.with_arrays is None else changes.with_arrays
            tables = [few] if few is not None else arrow_batches(net.frame, BATCH_ROWS_MAX)
            for table in encoder.portions(tables):
                self._apply(commit, encoder, table, seeker)
                sizes += self._plan.vector_sizes(table)
                rows += len(table)
        self._require_dimension(commit, sizes)
        return rows

    def _replace_keys(
        self, index: OpenIndex, commit: IndexTransaction, retriever: Retriever, context: ConsumeContext
    ) -> int:
        """Make the index have what the source has of the keys that have changed; return how many rows went or came."""
        keyed, known, changed = retriever.rows_of_changed_keys(), self.stored_vectors(index), 0
        encoder = self._plan.encoder(commit.dataset.schema, context.guard)
        with split_by_key(context.session, self.wanted(keyed.rows), self._row.spec) as split:
            for table in index_tables(keyed.keys):
                found = commit.seek(pc.unique(key_texts(table, self._spec.key)).to_pylist())
                commit.remove(found)
                changed += len(found)
            for table in index_tables(split.own):
                self._require_columns(commit, table)
                added = encoder.encode(table, known)
                commit.add(added)
                changed += len(added)
            for table in () if split.letters is None else index_tables(split.letters, ROWS_MAX):
                commit.add(encoder.faulty(table, SHARED_KEY))
        if commit.head.faults > ROWS_MAX:
            raise ChangesUnavailableError("rows that cannot be indexed are so many that all rows have to show why")
        return changed

    def _apply(
        self, commit: IndexTransaction, encoder: RowEncoder, changes: pa.Table, seeker: ThreadPoolExecutor
    ) -> None:
        self._require_columns(commit, changes)
        keys = key_texts(changes, self._spec.key)
        # Lance looks them up while the words of the new rows are found.
        seeking = seeker.submit(commit.seek, keys.to_pylist(), with_vectors=self._plan.embeds)
        writes = changes.filter(pc.is_in(changes[OP], value_set=pa.array(_WRITES))).drop_columns([OP])
        known = (lambda hashes: vectors_among(seeking.result(), hashes)) if self._plan.embeds else None
        added = encoder.encode(writes, known)
        found = seeking.result()
        _require_fit(found, keys, changes[OP])
        added, found = _without_equal(added, found)
        commit.add(added)  # first, as its files are written while words are counted
        commit.remove(found)

    def _require_columns(self, commit: IndexTransaction, changes: pa.Table) -> None:
        """Raise ChangesUnavailableError if changed rows do not fit the dataset's columns."""
        if fault := self._plan.rows_misfit(changes.schema, commit.dataset.schema):
            raise ChangesUnavailableError(fault)

    def _require_dimension(self, commit: IndexTransaction, sizes: Mapping[int, int]) -> None:
        """Raise ChangesUnavailableError if an index is left without vectors, and changed rows have others.

        These are the first ones, or those of another model, of which all rows have come. `sizes` are those of rows.
        """
        if sizes and not commit.head.vectors:
            size = self._plan.usual_size(sizes)
            if size not in (0, self._plan.dimension_of(commit.dataset.schema)):
                raise ChangesUnavailableError(f"the vectors that have come have {size} numbers, and no others are left")

    # --- all rows ------------------------------------------------------------------------------------------------

    def _whole(self, index: OpenIndex, commit: IndexTransaction, retriever: Retriever, context: ConsumeContext) -> int:
        rows = self.wanted(retriever.snapshot_rows)
        with split_by_key(context.session, rows, self._row.spec) as split:
            rows, letters = split.own, split.letters
            arrow_schema = A.to_arrow_schema(rows.frame.schema) if rows.table is None else rows.table.schema
            dimension = self._plan.dimension or self._plan.dimension_in_rows(rows)
            schema = self._plan.schema(arrow_schema, dimension)
            known = self.stored_vectors(index)
            encoder = self._plan.encoder(schema, context.guard)
            fits = index.dataset.schema.equals(schema) and not self._plan.misfit(index.head)
            if retriever.data_type is DataType.DIFFERENCE and fits:
                return self._differences(commit, encoder, rows, letters, known)
            return self._replace(commit, encoder, schema, rows, letters, known)

    def wanted(self, rows: Rows) -> Rows:
        """Return what the index has of rows of the source: those that pass the filter."""
        return rows_passing(rows, self._spec.where)

    def _replace(
        self,
        commit: IndexTransaction,
        encoder: RowEncoder,
        schema: pa.Schema,
        rows: Rows,
        letters: Rows | None,
        known: Known | None,
    ) -> int:
        commit.replace_all(schema, self._head())
        for table in encoder.portions(index_tables(rows)):
            commit.add(encoder.encode(table, known))
        # All of them at once, as there is one row for each key.
        for table in () if letters is None else index_tables(letters, ROWS_MAX):
            commit.add(encoder.faulty(table, SHARED_KEY))
        return commit.head.rows

    def _differences(
        self,
        commit: IndexTransaction,
        encoder: RowEncoder,
        rows: Rows,
        letters: Rows | None,
        known: Known | None,
    ) -> int:
        """Commit what the index lacks, has too much, or has otherwise than the source."""
        with lance_faults(f"read {self._store.root}"):
            there = commit.dataset.to_table(columns=[KEY, ROW_HASH])
        there = there.filter(pc.not_equal(there[KEY], HEAD_KEY))
        keys, hashes = there[KEY].combine_chunks(), there[ROW_HASH].combine_chunks()
        seen: list[pa.ChunkedArray] = []
        changed = 0

        def take(table: pa.Table, encode: Callable[[pa.Table], pa.Table], *, shared: bool = False) -> None:
            nonlocal changed
            keyed = encoder.keyed(table)
            seen.append(keyed[KEY])
            places = pc.index_in(keyed[KEY], value_set=keys).combine_chunks()
            stored = hashes.take(places)
            # A row whose key is shared has no hash, also where one of those that share it has been there before.
            unhashed = pc.and_(pc.is_valid(places), pc.is_null(stored))
            other = pc.invert(unhashed if shared else pc.fill_null(pc.equal(stored, keyed[ROW_HASH]), False))
            added = encode(table.filter(other))
            commit.remove(commit.seek(pc.unique(keyed[KEY].filter(other)).to_pylist()))
            commit.add(added)
            changed += len(added)

        for table in encoder.portions(index_tables(rows)):
            take(table, lambda some: encoder.encode(some, known))
        for table in () if letters is None else index_tables(letters, ROWS_MAX):
            take(table, lambda some: encoder.faulty(some, SHARED_KEY), shared=True)
        gone = keys.filter(pc.invert(pc.is_in(keys, value_set=pa.chunked_array(_chunks(seen), pa.string()))))
        commit.remove(commit.seek(gone.to_pylist()))
        return changed + len(gone)


def _chunks(arrays: Sequence[pa.ChunkedArray]) -> list[pa.Array]:
    return [chunk for each in arrays for chunk in each.chunks]


def _require_fit(found: pa.Table, keys: pa.ChunkedArray, ops: pa.ChunkedArray) -> None:
    """Raise ChangesUnavailableError unless net changes fit the rows that the index has: each says whether its key was
    there. Raise KeysSharedError if rows share a changed key, or did.
    """
    if any(fault == SHARED_KEY for fault in found[FAULT].to_pylist()):
        raise KeysSharedError("a key has changed that rows shared")
    there = pc.is_in(keys, value_set=found[KEY].combine_chunks())
    expected = pc.is_in(ops, value_set=pa.array(_THERE))
    if pc.any(pc.and_not(there, expected), min_count=0).as_py():
        raise KeysSharedError("a key that is new is in the index already")
    if not pc.all(pc.equal(there, expected), min_count=0).as_py() or len(found) != pc.sum(there, min_count=0).as_py():
        raise ChangesUnavailableError("the index has not the rows that the changes speak of")


def _without_equal(added: pa.Table, found: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that come and those that go, without rows that have not changed, as after an overwrite."""
    before = dict(zip(found[KEY].to_pylist(), found[ROW_HASH].to_pylist(), strict=True))
    keys, hashes = added[KEY].to_pylist(), added[ROW_HASH].to_pylist()
    equal = {key for key, found_hash in zip(keys, hashes, strict=True) if before.get(key) == found_hash}
    if not equal:
        return added, found
    some = pa.array(equal, pa.string())
    come, go = (each.filter(pc.invert(pc.is_in(each[KEY], value_set=some))) for each in (added, found))
    return come, go
