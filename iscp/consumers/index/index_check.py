"""Compares an index with its source's rows, and repairs it: each row's key, hash, words and vector, sums and segments.

What the index says of a row is made again from the source and compared, whatever its hash says; only vectors that an
embedder has made are believed where they are of the text's hash. The counts of words are counted again, as ranks
depend on them, and samples are searched for in Lance's segments, which must find just the rows that have them
(`searched_samples`). Segments that do not are built again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from iscp.consumers.index.index_consumer import IndexConsumer
from iscp.consumers.index.index_plan import IndexPlan
from iscp.consumers.index.index_rows import SHARED_KEY, index_tables
from iscp.consumers.index.searched_samples import sampled_faults
from iscp.consumers.shared_keys import find_shared_keys
from iscp.core.job.verification import SAMPLES_MAX, Comparison, Sample
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.untrusted_values import shown
from iscp.core.values.watermark import Watermark
from iscp.index.lance.address_lookup import rows_with_keys
from iscp.index.lance.index_columns import HEAD_KEY, KEY, VECTOR
from iscp.index.lance.index_head import IndexHead
from iscp.index.lance.index_names import VECTOR_INDEX
from iscp.index.lance.index_store import IndexStore, OpenIndex
from iscp.index.lance.index_transaction import RowSums, count_rows
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.row_encoder import row_digests
from iscp.index.lance.segments import rebuild_indexes
from iscp.index.lance.word_counts import WordCounts, merged_counts, read_table
from iscp.index.maintenance.calibration import calibrate
from iscp.ports.consumer import Check, ConsumeContext, Consumed
from iscp.ports.rows import Rows
from iscp.ports.sink import Compared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    """Compares and repairs one index."""

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
