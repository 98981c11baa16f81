"""Compares an index with its source's rows, and repairs it: each row's key, hash, words and vector, and the sums and
segments of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance.query import MatchQuery

from iscp.consumers.index.index_consumer import SHARED_KEY, IndexConsumer, index_tables
from iscp.consumers.index.index_plan import IndexPlan
from iscp.consumers.source_rows import find_shared_keys
from iscp.index.lance.index_columns import (
    HEAD_KEY,
    KEY,
    KEY_INDEX,
    VECTOR,
    VECTOR_INDEX,
    IndexHead,
    words_column,
    words_index,
)
from iscp.index.lance.index_store import IndexStore, OpenIndex, live_counts, rebuild_indexes, segments_of
from iscp.index.lance.index_transaction import ADDRESS, RowSums, count_rows, rows_with_keys
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.row_encoder import row_digests
from iscp.index.lance.word_counts import WordCounts, merged_counts, read_table
from iscp.index.maintenance.index_maintenance import NEIGHBOURS, Floats, calibrate, matrix_of, nearness, sampled_vectors
from iscp.index.model.definition_parsing import definition_from_json
from iscp.index.search.searched_index import SearchedIndex
from iscp.index.search.vector_search import VectorSearch
from iscp.model.job.start_rule import SAMPLES_MAX, Comparison, Sample
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.untrusted_values import shown
from iscp.model.values.watermark import Watermark
from iscp.ports.consumer import Check, ConsumeContext, Consumed
from iscp.ports.sink import Compared
from iscp.ports.source import Rows
from iscp.system.late_imports import pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from iscp.index.model.index_definition import VectorOptions
    from iscp.index.search.searched_index import RankedRow


# --- samples ----------------------------------------------------------------------------------------------------------
# The parts of an index are proved by searching: samples of its keys, words and vectors, against what its rows have.
# Lance's segments are files of their own, built of rows at some time. That the rows are right says nothing of the
# segments: one that was built of other rows, or is damaged, finds rows that lack a word, or misses some that have it.
# So each sampled word has to be found in just the rows that have it, each sampled key in its row, and vectors that are
# searched for have to reach the recall of the index's definition against the distances of all rows. Samples follow from
# the rows alone. Rows that no segment covers are read by each search, and need no proof.

WORDS_OF_EACH_SORT = 8
"""Words of a text column that are searched for: so many rare ones, middling ones and common ones."""

KEYS_SAMPLED = 64
"""Keys that are looked up."""

VECTORS_SAMPLED = 64
"""Stored vectors that are searched for."""

ROWS_AT_ONCE = 16_384
"""Rows that are read at once."""

CHANCE = 3.0
"""Standard deviations by which the recall of a sample may lie below that of the definition, by chance alone."""

ROUNDING = 1e-5
"""Relative difference of two distances with 32 bits that counts as none, as with rows that have the same vector."""


@dataclass(frozen=True, slots=True)
class SampledFault:
    """A part that does not find what the rows have: the index by its name in the dataset, and what was searched for."""

    index: str
    text: str


def sampled_faults(at: OpenIndex) -> list[SampledFault]:
    """Return what searches of samples find wrongly. Raises StorageError, and what a search raises."""
    definition = definition_from_json(at.head.definition)
    covered = _covered(at)
    found = list(_key_faults(at, covered.get(KEY_INDEX, frozenset())))
    for number, name in enumerate(definition.text_names()):
        found += _word_faults(at, number, name, covered.get(words_index(number), frozenset()))
    if definition.vector is not None and covered.get(VECTOR_INDEX):
        found += _vector_faults(at, definition.vector)
    return found


def _covered(at: OpenIndex) -> dict[str, frozenset[int]]:
    """Return the fragments that are there, and that the segments of each index cover."""
    present = {each.fragment_id for each in at.dataset.get_fragments()}
    found: dict[str, frozenset[int]] = {}
    for segment in segments_of(at.dataset):
        found[segment.name] = found.get(segment.name, frozenset()) | (segment.fragments & present)
    return {name: fragments for name, fragments in found.items() if fragments}


def _scanned(at: OpenIndex, column: str, fragments: frozenset[int]) -> Iterator[pa.RecordBatch]:
    chosen = [each for each in at.dataset.get_fragments() if each.fragment_id in fragments]
    yield from at.dataset.scanner(
        columns=[column], fragments=chosen, with_row_address=True, batch_size=ROWS_AT_ONCE
    ).to_batches()


def _key_faults(at: OpenIndex, fragments: frozenset[int]) -> Iterator[SampledFault]:
    if not fragments:
        return
    with lance_faults(f"read {at.root}"):
        batches = list(_scanned(at, KEY, fragments))
        if not batches:
            return
        rows = pa.Table.from_batches(batches)
        rows = rows.filter(pc.not_equal(rows[KEY], HEAD_KEY))
        step = max(1, len(rows) // KEYS_SAMPLED)
        sampled = rows.take(pa.array(range(0, len(rows), step), pa.int64()))
        there = rows_with_keys(at.dataset, sampled[KEY].to_pylist(), [])
    found = dict(zip(there[ADDRESS].to_pylist(), there[KEY].to_pylist(), strict=True))
    for key, address in zip(sampled[KEY].to_pylist(), sampled[ADDRESS].to_pylist(), strict=True):
        if found.get(address) != key:
            yield SampledFault(KEY_INDEX, f"the key {shown(key)}")


def _word_faults(at: OpenIndex, number: int, column: str, fragments: frozenset[int]) -> Iterator[SampledFault]:
    if not fragments:
        return
    name = words_column(number)
    with lance_faults(f"search {at.root}"):
        words = sampled_words(live_counts(at, number, sorted(fragments))[0])
        having: dict[str, list[pa.Array]] = {word: [] for word in words}
        for batch in _scanned(at, name, fragments):
            for word in words:
                there = pc.fill_null(pc.match_substring(batch[name], f" {word} "), False)
                having[word].append(batch[ADDRESS].filter(there))
        for word in words:
            expected = {address for part in having[word] for address in part.to_pylist()}
            rows = at.dataset.scanner(
                columns=["_score"],
                full_text_query=MatchQuery(word, name),
                fast_search=True,
                limit=at.head.rows + 1,
                with_row_address=True,
            ).to_table()
            if expected != set(rows[ADDRESS].to_pylist()):
                yield SampledFault(words_index(number), f"the word {shown(word)} of {column}")


def sampled_words(counts: pa.Table) -> list[str]:
    """Return words of a table of counts: rare ones, middling ones and common ones, each sort evenly spread."""
    ordered = counts.take(pc.sort_indices(counts, [("rows", "ascending"), ("word", "ascending")]))
    words = ordered["word"].to_pylist()
    bounds = [0, len(words) // 3, 2 * len(words) // 3, max(0, len(words) - WORDS_OF_EACH_SORT)]
    chosen: set[int] = set()
    for begin, end in ((bounds[0], bounds[1]), (bounds[1], bounds[2]), (bounds[3], len(words))):
        step = max(1, (end - begin) // WORDS_OF_EACH_SORT)
        chosen.update(range(begin, end, step)[:WORDS_OF_EACH_SORT])
    return [words[each] for each in sorted(chosen)]


def _vector_faults(at: OpenIndex, options: VectorOptions) -> Iterator[SampledFault]:
    with lance_faults(f"search {at.root}"):
        queries = sampled_vectors(at.dataset, VECTORS_SAMPLED)[1]
        queries = queries[queries.any(axis=1)]  # nothing is searched for by zeros
        if not len(queries):
            return
        metric = options.metric.value
        least = _least_nearness(at, queries, metric)
        search = VectorSearch(SearchedIndex(at))
        reached = sum(
            _reached(at, query, search.nearest(query.tolist(), NEIGHBOURS).rows, metric, bound)
            for query, bound in zip(queries, least, strict=True)
        )
    count = len(queries) * min(NEIGHBOURS, at.head.vectors)
    recall, wanted = reached / count, options.recall
    if recall < wanted - CHANCE * math.sqrt(wanted * (1 - wanted) / count):
        yield SampledFault(VECTOR_INDEX, f"vectors at a recall of {recall:.3f}, and not {wanted:g}")


def _least_nearness(at: OpenIndex, queries: Floats, metric: str) -> list[float]:
    """Return how near the last of each query's neighbours is, by the distances of all rows."""
    scores = np.empty((len(queries), 0), np.float32)
    scanned = at.dataset.scanner(columns=[VECTOR], filter=f"{VECTOR} IS NOT NULL", batch_size=ROWS_AT_ONCE)
    for batch in scanned.to_batches():
        if len(batch):
            scores = np.concatenate([scores, nearness(queries, matrix_of(batch[VECTOR]), metric)], axis=1)
            if scores.shape[1] > NEIGHBOURS:
                scores = -np.partition(-scores, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
    return [float(each) for each in scores.min(axis=1)]


def _reached(at: OpenIndex, query: Floats, rows: Sequence[RankedRow], metric: str, bound: float) -> int:
    """Return how many rows are as near as the last neighbour, whichever of equal rows they are."""
    if not rows:
        return 0
    vectors = matrix_of(at.dataset._take_rows([row.address for row in rows], columns=[VECTOR])[VECTOR].combine_chunks())
    near = nearness(query[np.newaxis], vectors, metric)[0]
    slack = ROUNDING * max(abs(bound), float(np.square(query, dtype=np.float64).sum()) if metric == "l2" else 1.0)
    return int((near >= bound - slack).sum())


# --- the comparison and the repair ------------------------------------------------------------------------------------

REPAIRED_ROWS_MAX = 1_000_000
"""Rows that a repair writes; an index of which more are wrong is to be rebuilt."""

COMPARED_ROWS = 10_000
"""Rows that are compared at once."""

_SUMS = "the sums and the counts of words"


@dataclass(frozen=True, slots=True)
class IndexCompared(Compared):
    """Says what is wrong with an index: `rows` are to be there instead of those with their keys, `gone` not at all.

    The segments of the indexes that `parts` names are to be built again. All rows that are to be there have these
    `sums` and `counts` of words together.
    """

    sums: RowSums = field(kw_only=True)
    counts: pa.Table = field(kw_only=True)
    rows: tuple[pa.Table, ...] = ()
    gone: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Findings:
    comparison: Comparison = field(default_factory=Comparison)
    rows: list[pa.Table] = field(default_factory=list)
    seen: list[pa.Array] = field(default_factory=list)
    sums: RowSums
    counts: WordCounts = field(default_factory=WordCounts)

    def note(self, fault: str, keys: list[str], columns: tuple[str, ...] = ()) -> None:
        room = SAMPLES_MAX - len(self.comparison.samples)
        samples = tuple(Sample(fault, shown(key), columns) for key in keys[: max(0, room)])
        count = getattr(self.comparison, fault) + len(keys)
        self.comparison = replace(self.comparison, **{fault: count}, samples=(*self.comparison.samples, *samples))


class IndexCheck(Check):
    """Compares and repairs one index.

    What the index says of a row is made again from the source and compared, whatever its hash says; only vectors that
    an embedder has made are believed where they are of the text's hash. The counts of words are counted again, as ranks
    depend on them, and samples are searched for in Lance's segments, which must find just the rows that have them
    (`sampled_faults`). Segments that do not are built again.
    """

    def __init__(self, consumer: IndexConsumer, store: IndexStore, plan: IndexPlan) -> None:
        self._consumer = consumer
        self._store = store
        self._plan = plan

    @contextmanager
    def compare(self, context: ConsumeContext, source: DataFrame) -> Iterator[Compared]:
        index = self._store.open()
        if self._plan.misfit(index.head):
            raise PermanentError(
                f"the index cannot be compared: {self._plan.misfit(index.head)}",
                remedy="`iscp-admin notify` has it brought to the job's definition",
                code=ErrorCode.SCHEMA_CHANGED,
            )
        encoder = self._plan.encoder(index.dataset.schema, context.guard)
        rows = self._consumer.wanted(Rows(lambda: source.selectExpr(*self._plan.quoted_columns(source.columns))))
        shared = find_shared_keys(rows.frame, self._plan.key)
        found = _Findings(sums=RowSums(0, 0, 0, ((0, 0),) * len(index.head.totals)))
        try:
            letters = None
            if shared is not None:
                own, letters = shared.split(rows.frame, self._plan.key)
                rows = Rows(lambda: own)
            for table in encoder.portions(index_tables(rows, COMPARED_ROWS)):
                self._compare(index, found, encoder.encode(table, self._consumer.stored_vectors(index)))
            for table in () if letters is None else index_tables(Rows(lambda: letters), COMPARED_ROWS):
                self._compare(index, found, encoder.faulty(table, SHARED_KEY))
        finally:
            if shared is not None:
                shared.release()
        gone = self._surplus(index, found)
        sums_wrong = not found.comparison.different and not found.comparison.missing and not gone
        counts = found.counts.table()
        if sums_wrong and not sums_right(index, found.sums, counts):
            found.note("different", [_SUMS])
        faults = sampled_faults(index)
        found.note("different", [fault.text for fault in faults])
        found.comparison = replace(found.comparison, rows_target=index.head.rows)
        parts = tuple(dict.fromkeys(fault.index for fault in faults))
        yield IndexCompared(
            found.comparison, sums=found.sums, counts=counts, rows=tuple(found.rows), gone=gone, parts=parts
        )

    def _compare(self, index: OpenIndex, found: _Findings, expected: pa.Table) -> None:
        """Compare rows as they should be with those of their keys."""
        keys = expected[KEY].combine_chunks()
        found.seen.append(keys)
        found.sums = found.sums.plus(count_rows([expected], found.counts))
        there = rows_with_keys(index.dataset, keys.to_pylist(), expected.schema.names)
        compared = self._compared_columns(expected)
        doubled = there.group_by([KEY]).aggregate([([], "count_all")]).filter(pc.greater(pc.field("count_all"), 1))
        by_key = dict(zip(there[KEY].to_pylist(), row_digests(there, compared), strict=True))
        faults: dict[str, list[str]] = {"missing": [], "different": [*doubled[KEY].to_pylist()]}
        wrong = []
        twice = set(faults["different"])
        for number, (key, digest) in enumerate(zip(keys.to_pylist(), row_digests(expected, compared), strict=True)):
            fault = "missing" if key not in by_key else "different" if by_key[key] != digest else ""
            if fault and key not in twice:
                faults[fault].append(key)
            if fault or key in twice:
                wrong.append(number)
        for fault, names in faults.items():
            found.note(fault, names)
        if wrong:
            found.rows.append(expected.take(pa.array(wrong, pa.int64())))
        found.comparison = replace(found.comparison, rows_source=found.comparison.rows_source + len(expected))

    def _compared_columns(self, rows: pa.Table) -> list[str]:
        """Return the columns that are compared: not the vectors that an embedder has made, which have their hash."""
        return [name for name in rows.schema.names if name != VECTOR or not self._plan.embeds]

    def _surplus(self, index: OpenIndex, found: _Findings) -> tuple[str, ...]:
        with lance_faults(f"read {index.root}"):
            keys = index.dataset.to_table(columns=[KEY])[KEY].combine_chunks()
        keys = keys.filter(pc.not_equal(keys, HEAD_KEY))
        seen = pa.chunked_array(found.seen, pa.string())
        extra = keys.filter(pc.invert(pc.is_in(keys, value_set=seen.combine_chunks()))).to_pylist()
        found.note("extra", extra)
        return tuple(extra)

    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        assert isinstance(compared, IndexCompared)
        rows = sum(map(len, compared.rows)) + len(compared.gone)
        if rows > REPAIRED_ROWS_MAX:
            raise PermanentError(
                f"{rows} rows are wrong, and at most {REPAIRED_ROWS_MAX} are repaired",
                about="repair",
                remedy="Have the index rebuilt with `iscp-admin job resync`",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        if compared.parts:  # before keys are looked up
            self._rebuild(compared.parts, context)
        commit = self._store.begin()
        for table in compared.rows:
            commit.remove(commit.seek(table[KEY].to_pylist()))
            commit.add(table)
        commit.remove(commit.seek(list(compared.gone)))
        # The changes take away from the sums what the wrong rows said of themselves.
        commit.state_sums(compared.sums, compared.counts)
        if VECTOR_INDEX in compared.parts:
            commit.head = self._calibrated(commit.head)
        return Consumed(self._consumer.commit_record(context, commit, watermark), rows, 0)

    def _rebuild(self, parts: Sequence[str], context: ConsumeContext) -> None:
        vector = self._plan.options.vector
        with self._store.writing:
            context.guard.check()
            rebuild_indexes(self._store.open(), parts, "cosine" if vector is None else vector.metric.value)

    def _calibrated(self, head: IndexHead) -> IndexHead:
        """Return a head that says how the vectors of its index, built again, are searched for.

        Where nothing reaches the recall, the next maintenance builds a finer index.
        """
        vector, index = self._plan.options.vector, self._store.open()
        assert vector is not None
        found = calibrate(index, vector.metric.value, vector.recall, index.head.vectors)
        if found is None or not found.is_reached:
            return replace(head, calibrated_rows=0)
        rows = max(1, index.head.vectors)
        return replace(head, probes=found.probes, refine=found.refine, calibrated_rows=rows)


def sums_right(index: OpenIndex, sums: RowSums, counts: pa.Table) -> bool:
    """Return whether an index's sums and counts of words, on which ranks depend, are these."""
    head = index.head
    stated = RowSums(head.rows, head.faults, head.vectors, tuple((each.rows, each.words) for each in head.totals))
    stored = merged_counts([read_table(index.root, name) for name in head.count_files]) if head.count_files else None
    same = stored.equals(counts) if stored is not None else not len(counts)
    return stated == sums and bool(same)
