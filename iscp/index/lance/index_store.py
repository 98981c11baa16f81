"""An index at a place: how it is made, opened and changed by transactions, and how segments of it are built."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation
from lance.bitmap import Bitmap
from lance.dataset import Index

from iscp.index.lance.index_columns import (
    BIT_DIMENSIONS_MIN,
    FINE_VECTOR_KIND,
    HEAD,
    KEY,
    KEY_INDEX,
    TEXT_OPTIONS,
    VECTOR,
    VECTOR_KIND,
    VECTOR_OPTIONS,
    IndexHead,
    parse_head,
    partitions,
    schema_fault,
    unreadable_head,
    words_column,
    words_number,
)
from iscp.index.lance.index_transaction import ADDRESS, DurableFiles, IndexTransaction, head_row, head_rows
from iscp.index.lance.lance_access import (
    NO_DATASET,
    NoIndexError,
    lance_faults,
    no_index,
    open_dataset,
    require_version,
    shared_session,
)
from iscp.index.lance.word_counts import (
    FOLDER,
    CountFile,
    LiveCounts,
    PlacedHead,
    WordCounts,
    cache_head,
    cached_counts,
    cached_head,
    found_counts,
    merged_counts,
    read_table,
    write_counts,
)
from iscp.model.values.errors import Conflict, InvalidRequest, PermanentError
from iscp.storage.dataset_manifest import guard_dataset
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import S3, place
from iscp.storage.s3_settings import table_options

if TYPE_CHECKING:
    from lance import LanceFragment

    from iscp.ports.system import Failpoints


# --- an index at a place ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenIndex:
    """An index at one version: its dataset, and the head of just that version with its row's address."""

    root: str
    dataset: LanceDataset
    head: IndexHead
    head_address: int

    @property
    def version(self) -> int:
        """Return the dataset's own version."""
        return int(self.dataset.version)

    @cached_property
    def counts(self) -> LiveCounts:
        """Return the counts of words of this version. Raises StorageError."""
        return LiveCounts([cached_counts(self.root, name) for name in self.head.count_files])


def open_index(uri: str, version: int | None = None) -> OpenIndex:
    """Return the index at a place, at its newest version or at the dataset's `version`.

    Raises InvalidRequest where there is no index, StorageError, and PermanentError for a head that cannot be read.
    """
    root = place(uri)
    try:
        dataset = open_dataset(uri, version)
        if (cached := cached_head(root, dataset.version)) is not None:
            return OpenIndex(root, dataset, *cached)
        with lance_faults(f"read {uri}"):
            schema = dataset.schema
            found = head_row(dataset, [HEAD]) if HEAD in schema.names else None
    except NoIndexError as error:
        raise no_index(uri) from error
    if found is None:
        raise no_index(uri, "it is a Lance dataset that iscp did not write")
    if len(found) != 1:
        raise no_index(uri, f"it has {len(found)} heads, and an index has one")
    head = parse_head(found[HEAD][0].as_py() or "")
    if fault := schema_fault(schema, head.key, len(head.totals)):
        raise unreadable_head(fault)
    placed = PlacedHead(head, found[ADDRESS][0].as_py())
    cache_head(root, dataset.version, placed)
    return OpenIndex(root, dataset, *placed)


def open_live(uri: str) -> OpenIndex:
    """Return the index at a place as `open_index`. Raises InvalidRequest too for one that was deleted."""
    found = open_index(uri)
    if found.head.is_deleted:
        raise no_index(uri, "it was deleted with its job")
    return found


class _Turn:
    """Whose turn it is in this process to write one index."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_turns_lock = threading.Lock()


def _turn_of(root: str) -> _Turn:
    with _turns_lock:
        return _turns.setdefault(root, _Turn())


class IndexStore:
    """The index at one place, as its writer has it."""

    def __init__(self, uri: str, failpoints: Failpoints) -> None:
        self._root = place(uri)
        self.failpoints = failpoints
        self._turn = _turn_of(self._root)

    @property
    def writing(self) -> AbstractContextManager[object]:
        """Return what an iteration enters from the base of its commit to its end.

        Maintenance that has lost against iterations enters it too: what rewrites many rows would otherwise never win
        against a writer that does not pause.
        """
        return self._turn.lock

    @contextmanager
    def writing_within(self, wait_s: float) -> Iterator[None]:
        """Enter the same. Raises Conflict if others write for longer than `wait_s` seconds."""
        if not self._turn.lock.acquire(timeout=wait_s):
            raise Conflict(f"{self._root} is being written for longer than {wait_s:.3g} s")
        try:
            yield
        finally:
            self._turn.lock.release()

    @property
    def root(self) -> str:
        return self._root

    @staticmethod
    def fault_of(uri: str) -> str:
        """Return why an index cannot be made or go on at a place, or an empty text."""
        try:
            open_index(uri)
        except InvalidRequest as error:
            return "" if error.message.endswith(NO_DATASET) else error.message.removeprefix(f"{uri} ")
        except PermanentError as error:
            return f"is an index whose head cannot be read: {error.message}"
        return ""

    def exists(self) -> bool:
        try:
            open_dataset(self._root)
        except NoIndexError:
            return False
        return True

    def open(self, version: int | None = None) -> OpenIndex:
        """Return the index at its newest version, or at the dataset's `version`; raises as `open_index`."""
        return open_index(self._root, version)

    def create(self, schema: pa.Schema, head: IndexHead) -> OpenIndex:
        """Make an index without rows. Raises Conflict where there is a dataset already, and StorageError."""
        with storage_faults(f"make the index {self._root}"):
            guard_dataset(self._root)
        try:
            with lance_faults(f"make the index {self._root}"):
                dataset = lance.write_dataset(
                    head_rows(head, schema),
                    self._root,
                    mode="create",
                    session=shared_session(),
                    storage_options=table_options(self._root),
                    data_storage_version="stable",
                )
        except Exception as error:
            if "already exists" in str(error):
                raise Conflict(f"{self._root} has been made by another writer") from error
            raise
        self._prepare(dataset)
        return self.open()

    def begin(self, at: OpenIndex | None = None) -> IndexTransaction:
        """Begin a commit on the version of `at`, or on the newest."""
        found = at or self.open()
        return IndexTransaction(self._root, found.dataset, PlacedHead(found.head, found.head_address), self.failpoints)

    def _prepare(self, dataset: LanceDataset) -> None:
        if not self._root.startswith(S3):
            os.makedirs(f"{self._root}/{FOLDER}", exist_ok=True)
        durable = DurableFiles(self._root)
        durable.sync_fragments([each.metadata for each in dataset.get_fragments()])
        durable.sync_commit(dataset)


# --- segments and their statistics ------------------------------------------------------------------------------------
# Segments are built over fragments; those of words have statistics of what they were built of. Lance gives a search its
# candidates, whose ranks follow from all rows that the present segments were built of, the deleted among them. What
# these rows were is written to a file beside the segment, before the segment is committed, and never changes
# (`word_counts` has the format). A segment that somebody else has made has no such file.

SEGMENT_PREFIX = "segment-"
"""Names of files with a segment's statistics begin so."""

BATCH_ROWS = 32_768
"""Rows whose words are counted at once."""

_NO_TEXTS = pa.chunked_array([], pa.string())


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the index `name`, as a version of the dataset has it; some of its fragments may be gone.

    `kind` is Lance's name of the kind of index.
    """

    name: str
    uuid: str
    fragments: frozenset[int]
    fields: tuple[int, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """A segment was built of so many rows with words, and so many words; `counts` has the rows of each word."""

    rows: int
    words: int
    counts: CountFile


def segments_of(dataset: LanceDataset) -> list[Segment]:
    """Return all segments of a dataset's version. Raises StorageError."""
    with lance_faults(f"read the indexes of {dataset.uri}"):
        return [
            Segment(index.name, segment.uuid, frozenset(segment.fragment_ids), tuple(index.fields), index.index_type)
            for index in dataset.describe_indices()
            for segment in index.segments
        ]


def statistics_name(uuid: str) -> str:
    """Return the name of the file with a segment's statistics."""
    return f"{SEGMENT_PREFIX}{uuid}.arrow"


def segment_statistics(root: str, uuid: str) -> SegmentStatistics | None:
    """Return what a segment of words of the dataset at `root` was built of; None where nothing says so.

    Raises StorageError. A segment never changes, so a process caches what it has read within a bound.
    """
    counts = found_counts(root, statistics_name(uuid))
    if counts is None or counts.totals is None:
        return None
    return SegmentStatistics(*counts.totals, counts)


def build_segments(at: OpenIndex, wanted: Mapping[str, Sequence[int]], metric: str) -> list[Index]:
    """Return new segments of the indexes that are named, over these fragments each; none is committed yet.

    An index whose column has no values there gets none. Raises StorageError.
    """
    built = []
    for name, fragments in wanted.items():
        with lance_faults(f"build an index of {at.root}"):
            if (segment := _built(at, name, list(fragments), metric)) is not None:
                built.append(segment)
    return built


def commit_segments(at: OpenIndex, built: Sequence[Index], replaced: Iterable[Segment] = ()) -> LanceDataset:
    """Add segments to the index, in place of others, in one commit. Raises Conflict and StorageError."""
    # Lance removes what has the UUID and nothing else of this.
    removed = [Index(each.uuid, each.name, list(each.fields), 0, Bitmap(each.fragments), 0) for each in replaced]
    durable = DurableFiles(at.root)
    for each in built:
        durable.sync_index(each.uuid)
    require_version(at.root, at.version)
    with lance_faults(f"commit to {at.root}"):
        committed = LanceDataset.commit(
            at.dataset,
            LanceOperation.CreateIndex(list(built), removed),
            read_version=at.version,
            max_retries=0,
            storage_options=table_options(at.root),
        )
    durable.sync_commit(committed)
    return committed


def rebuild_indexes(at: OpenIndex, names: Collection[str], metric: str) -> LanceDataset:
    """Replace all segments of the indexes that are named by one of each, over the same fragments. Raises as others."""
    replaced = [each for each in segments_of(at.dataset) if each.name in names]
    present = {each.fragment_id for each in at.dataset.get_fragments()}
    wanted = {
        name: sorted({number for each in replaced if each.name == name for number in each.fragments} & present)
        for name in dict.fromkeys(each.name for each in replaced)
    }
    return commit_segments(at, build_segments(at, wanted, metric), replaced)


def state_segment(at: OpenIndex, segment: Segment) -> bool:
    """Write the statistics of a segment that has none, and return whether that was possible.

    It is while none of its fragments has lost a row: then what it was built of can still be read. Raises StorageError.
    """
    number = words_number(segment.name)
    with lance_faults(f"read {at.root}"):
        fragments = [each for each in at.dataset.get_fragments() if each.fragment_id in segment.fragments]
        if number is None or len(fragments) < len(segment.fragments) or any(each.num_deletions for each in fragments):
            return False
        _write_statistics(at, segment.uuid, live_counts(at, number, sorted(segment.fragments)))
    return True


def vector_kind(at: OpenIndex) -> str:
    """Return Lance's name of the index that vectors need: that of the head, or the usual one if it fits.

    Lance packs bits of eight dimensions each; and few bits say little.
    """
    dimension = at.dataset.schema.field(VECTOR).type.list_size
    usual = FINE_VECTOR_KIND if dimension % 8 or dimension < BIT_DIMENSIONS_MIN else VECTOR_KIND
    return at.head.vector_kind if at.head.vector_kind in VECTOR_OPTIONS else usual


def _write_statistics(at: OpenIndex, uuid: str, found: tuple[pa.Table, int, int]) -> None:
    """Write what a segment has that is built now of rows with these `live_counts`. Raises StorageError."""
    table, rows, words = found
    write_counts(at.root, table, statistics_name(uuid), (rows, words))


def live_counts(at: OpenIndex, number: int, fragments: Sequence[int]) -> tuple[pa.Table, int, int]:
    """Return the counts of the words of the live rows in these fragments, how many rows have words, and how many words
    these are.

    The head's files have those of all rows. So at most half of the rows are read: these, or those that are not these.
    """
    chosen: list[LanceFragment] = []
    others: list[LanceFragment] = []
    for each in at.dataset.get_fragments():
        (chosen if each.fragment_id in set(fragments) else others).append(each)
    counts = WordCounts()
    if at.head.count_files and _row_count(others) < _row_count(chosen):
        totals = at.head.totals[number]
        stated = merged_counts([read_table(at.root, name) for name in at.head.count_files])
        counts.add_table(stated.filter(pc.equal(stated["column"], number)))
        rows, words = _count(at, number, others, lambda texts: counts.add(number, _NO_TEXTS, texts))
        return counts.table(), totals.rows + rows, totals.words + words
    rows, words = _count(at, number, chosen, lambda texts: counts.add(number, texts))
    return counts.table(), rows, words


def _count(
    at: OpenIndex,
    number: int,
    fragments: Sequence[LanceFragment],
    count: Callable[[pa.ChunkedArray], tuple[int, int]],
) -> tuple[int, int]:
    """Have the words of the live rows of fragments counted; return the sums of what `count` returns."""
    rows, words, name = 0, 0, words_column(number)
    if fragments:  # none would be all
        for batch in at.dataset.scanner(columns=[name], fragments=fragments, batch_size=BATCH_ROWS).to_batches():
            found = count(pa.chunked_array([batch[name]]))
            rows, words = rows + found[0], words + found[1]
    return rows, words


def _row_count(fragments: Sequence[LanceFragment]) -> int:
    return sum(each.count_rows() for each in fragments)


def _built(at: OpenIndex, name: str, fragments: list[int], metric: str) -> Index | None:
    number = words_number(name)
    if number is not None:
        if not _values(at, words_column(number), fragments):
            return None
        # Lance builds without the interpreter's lock, and lets nobody else use the object that it builds by.
        beside = replace(at, dataset=at.dataset.checkout_version(at.version))
        with ThreadPoolExecutor(1, "iscp-index-count") as counter:
            counting = counter.submit(live_counts, beside, number, fragments)
            staged = _build(at.dataset, words_column(number), "INVERTED", name, fragments, TEXT_OPTIONS)
            # Lance leaves the files of such a segment in a folder where no search finds them, until they are merged.
            segment: Index = at.dataset.merge_existing_index_segments([staged])
            _write_statistics(at, segment.uuid, counting.result())
        return segment
    if name == KEY_INDEX:
        return _build(at.dataset, KEY, "BTREE", name, fragments, {})
    if not (rows := _values(at, VECTOR, fragments)):
        return None
    kind = vector_kind(at)
    options = {**VECTOR_OPTIONS[kind], "metric": metric, "num_partitions": partitions(rows)}
    return _build(at.dataset, VECTOR, kind, name, fragments, options)


def _build(
    dataset: LanceDataset, column: str, kind: str, name: str, fragments: list[int], options: Mapping[str, Any]
) -> Index:
    # Without `replace` Lance refuses a second segment of a name. Nothing is replaced before a commit says so.
    return dataset.create_index_uncommitted(column, kind, name=name, fragment_ids=fragments, replace=True, **options)


def _values(at: OpenIndex, column: str, fragments: Sequence[int]) -> int:
    """Return how many live rows of fragments have a value."""
    chosen = [each for each in at.dataset.get_fragments() if each.fragment_id in set(fragments)]
    return int(
        at.dataset.scanner(columns=[], filter=f"{column} IS NOT NULL", fragments=chosen, with_row_id=True).count_rows()
    )
