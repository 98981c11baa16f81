"""Keeps an index fast and small: carries out what the policy says is due, one commit after another, and calibrates how
many partitions of vectors a search has to visit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.optimize import Compaction, CompactionOptions

from iscp.index.lance.index_columns import FINE_VECTOR_KIND, VECTOR, partitions, words_number
from iscp.index.lance.index_store import (
    OpenIndex,
    Segment,
    build_segments,
    commit_segments,
    open_index,
    segment_statistics,
    segments_of,
    state_segment,
    vector_kind,
)
from iscp.index.lance.index_transaction import ADDRESS, DurableFiles
from iscp.index.lance.lance_access import lance_faults, require_version
from iscp.index.lance.word_counts import merged_counts, read_table, write_counts
from iscp.index.maintenance.index_shape import IN_FLIGHT_S, clean_up, fragments_of, read_shape
from iscp.index.model.index_definition import Upkeep, UpkeepAction, largest, next_action, next_due_s
from iscp.model.values.errors import Conflict, StorageError

if TYPE_CHECKING:
    from lance import LanceDataset

    from iscp.index.lance.index_columns import IndexHead
    from iscp.index.lance.index_store import IndexStore, OpenIndex
    from iscp.ports.system import Clock, Failpoints

# --- actions ----------------------------------------------------------------------------------------------------------
# No action changes a row, so searches and commits go on meanwhile. An action that loses against another commit has done
# nothing, and is due again at the next time. A process may be killed at any place: each action is one commit, and the
# files that it has written before mean nothing without the commit. The one exception is a compaction, which Lance
# commits with segments of its own making. The statistics of these segments are written right after: until then a search
# takes all matches, and if the statistics are never written, the next maintenance writes them or builds these segments
# again.

KEEP_S = 600.0
"""Seconds for which a version that is no longer the newest may be read, unless a setting says otherwise."""

ACTIONS_MAX = 64
"""Actions of one call; what is due then still is done by the next."""

TURN_S = 10.0
"""Seconds for which an action waits for an iteration of this process to end. All indexes of a node are maintained one
after another, and an iteration that writes a whole index may take hours.
"""

HEAD_ATTEMPTS = 5
"""Commits of a head that are tried; then the action has lost, and is due again."""

_CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class MaintenanceLimits:
    """An index's definition and the node's settings limit this. `metric` is that of vectors: cosine, l2 or dot."""

    keep_s: float = KEEP_S
    """Seconds for which a version that is no longer the newest is kept: longer than the longest reader reads."""
    metric: str = "cosine"
    recall: float = 0.99
    """The share of the nearest vectors that a search finds; a calibration takes as many partitions as that needs."""
    in_flight_s: float = IN_FLIGHT_S
    """Seconds for which a file that no version names is left alone."""
    turn_s: float = TURN_S
    """Seconds for which an action waits for an iteration to end."""


@dataclass(frozen=True, slots=True)
class MaintenanceDone:
    """A call committed `actions`, and `lost` were overtaken by other commits. `next_due_s` seconds from now something
    is due though nothing changes; None for never.
    """

    actions: tuple[Upkeep, ...] = ()
    lost: tuple[Upkeep, ...] = ()
    next_due_s: float | None = None


def maintain(
    store: IndexStore, limits: MaintenanceLimits, clock: Clock, failpoints: Failpoints, budget_s: float
) -> MaintenanceDone:
    """Carry out what is due, until nothing is or `budget_s` seconds are over; the action that runs then is finished.

    Raises InvalidRequest where there is no index, StorageError, and PermanentError for a head that cannot be read.
    """
    began_s = clock.monotonic_s()
    done: list[Upkeep] = []
    lost: list[Upkeep] = []
    idle: set[Upkeep] = set()
    while True:
        at = store.open()
        if at.head.is_deleted:
            return MaintenanceDone(tuple(done), tuple(lost))
        shape = read_shape(at, limits.keep_s, clock.now_s())
        action = next_action(shape, idle)
        if action is None:
            due_s = next_due_s(shape)
            if due_s is not None and Upkeep.CLEAN_UP in idle:  # what it has left, as for a build, stays for a while
                due_s = max(due_s, limits.keep_s)
            return MaintenanceDone(tuple(done), tuple(lost), 0.0 if lost else due_s)
        if len(done) >= ACTIONS_MAX or (done and clock.monotonic_s() - began_s >= budget_s):
            return MaintenanceDone(tuple(done), tuple(lost), 0.0)
        failpoints.reach(f"maintain.{action.kind.value}.before")
        try:
            effective = _Upkeeper(store, at, limits, failpoints).carry_out(action)
        except Conflict:
            lost.append(action.kind)
            effective = _carry_out_alone(store, action.kind, limits, failpoints, clock)
        if effective:
            failpoints.reach(f"maintain.{action.kind.value}.after")
            done.append(action.kind)
        if not effective or action.kind is Upkeep.CLEAN_UP:
            idle.add(action.kind)  # not again in this call: it would have the same effect


def _carry_out_alone(
    store: IndexStore, kind: Upkeep, limits: MaintenanceLimits, failpoints: Failpoints, clock: Clock
) -> bool:
    """Do again what has lost, while this process commits nothing else; return whether anything has changed.

    Iterations win as a rule. But one that rewrites many rows takes longer than a busy writer pauses, and what is
    deleted would grow for ever.
    """
    try:
        with store.writing_within(limits.turn_s):
            at = store.open()
            if at.head.is_deleted:
                return False
            shape = read_shape(at, limits.keep_s, clock.now_s())
            action = next_action(shape, set(Upkeep) - {kind})
            return action is not None and _Upkeeper(store, at, limits, failpoints).carry_out(action)
    except Conflict:  # a writer of another process, or a long iteration
        return False


@contextmanager
def _conflicts(what: str) -> Iterator[None]:
    """Turn what Lance raises where a compaction has lost into Conflict."""
    try:
        with lance_faults(what):
            yield
    except StorageError as error:
        if _CONFLICT in str(error).lower():
            raise Conflict(str(error)) from error
        raise


class _Upkeeper:
    """Carries out one action on one version. Each method returns whether anything has changed."""

    def __init__(self, store: IndexStore, at: OpenIndex, limits: MaintenanceLimits, failpoints: Failpoints) -> None:
        self._store = store
        self._at = at
        self._limits = limits
        self._failpoints = failpoints

    def carry_out(self, action: UpkeepAction) -> bool:
        match action.kind:
            case Upkeep.SEGMENTS:
                return self._cover()
            case Upkeep.STATE:
                return self._state(action.segments)
            case Upkeep.MERGE:
                return self._build_again(action.segments)
            case Upkeep.COMPACT:
                return self._compact(action.fragments)
            case Upkeep.CALIBRATE:
                return self._calibrate()
            case Upkeep.COUNTS:
                return self._merge_counts(action.files)
            case Upkeep.CLEAN_UP:
                done = clean_up(self._at, self._limits.keep_s, self._failpoints, self._limits.in_flight_s)
                return bool(done.versions or done.files)
            case _ as never:
                assert_never(never)

    def _cover(self) -> bool:
        shape = read_shape(self._at, self._limits.keep_s, 0.0)
        fragments, segments = set(fragments_of(self._at)), segments_of(self._at.dataset)
        wanted = {}
        for part in shape.parts:
            covered = {number for each in segments if each.name == part.name for number in each.fragments}
            if part.wanted and (fresh := sorted(fragments - covered)):
                wanted[part.name] = fresh
        return self._replace(wanted, ())

    def _build_again(self, uuids: Iterable[str]) -> bool:
        """Replace segments by one segment for each index that has several of them."""
        chosen = [each for each in segments_of(self._at.dataset) if each.uuid in set(uuids)]
        present = set(fragments_of(self._at))
        wanted = {
            name: sorted({number for each in chosen if each.name == name for number in each.fragments} & present)
            for name in dict.fromkeys(each.name for each in chosen)
        }
        return self._replace(wanted, chosen)

    def _replace(self, wanted: Mapping[str, list[int]], replaced: Iterable[Segment]) -> bool:
        built = build_segments(self._at, {name: each for name, each in wanted.items() if each}, self._limits.metric)
        gone = list(replaced)
        if not built and not gone:
            return False
        self._failpoints.reach("maintain.segments.built")
        commit_segments(self._at, built, gone)
        return True

    def _state(self, uuids: Iterable[str]) -> bool:
        segments = [each for each in segments_of(self._at.dataset) if each.uuid in set(uuids)]
        unstated = [each.uuid for each in segments if not state_segment(self._at, each)]
        return self._build_again(unstated) if unstated else bool(segments)

    def _compact(self, fragments: tuple[int, ...]) -> bool:
        others = [each.fragment_id for each in self._at.dataset.get_fragments() if each.fragment_id not in fragments]
        # All rows that are deleted go, so that what the new segments are built of can be read from their fragments.
        options: CompactionOptions = {"excluded_fragment_ids": others, "materialize_deletions_threshold": 0.0}
        durable, before = DurableFiles(self._at.root), {each.uuid for each in segments_of(self._at.dataset)}
        with _conflicts(f"compact {self._at.root}"):
            plan = Compaction.plan(self._at.dataset, options)
            written = [task.execute(self._at.dataset) for task in plan.tasks]
            if not written:
                return False
            durable.sync_fragments([fragment for each in written for fragment in each.new_fragments])
            self._failpoints.reach("maintain.compact.written")
            require_version(self._at.root, self._at.version)
            Compaction.commit(self._at.dataset, written, options)
            committed = self._at.dataset.version
            for segment in segments_of(self._at.dataset):
                if segment.uuid not in before:
                    durable.sync_index(segment.uuid)
        self._failpoints.reach("maintain.compact.committed")
        # At the compaction's own version, as a later one may have deleted rows again.
        compacted = open_index(self._at.root, committed)
        for segment in segments_of(compacted.dataset):
            if words_number(segment.name) is not None and segment_statistics(compacted.root, segment.uuid) is None:
                state_segment(compacted, segment)
        durable.sync_commit(compacted.dataset)
        return True

    def _calibrate(self) -> bool:
        shape = read_shape(self._at, self._limits.keep_s, 0.0)
        if shape.vector is None or not shape.vector.segments:
            return False
        segment = largest(shape.vector)
        found = calibrate(self._at, self._limits.metric, self._limits.recall, segment.rows)
        if found is None:
            return False
        self._failpoints.reach("maintain.calibrate.found")
        if found.is_reached or vector_kind(self._at) == FINE_VECTOR_KIND:
            rows = max(1, segment.rows)
            return self._change_head(
                lambda head: replace(head, probes=found.probes, refine=found.refine, calibrated_rows=rows)
            )
        # All segments are built again, and then probes are found for these.
        return self._change_head(lambda head: replace(head, vector_kind=FINE_VECTOR_KIND, calibrated_rows=0))

    def _merge_counts(self, numbers: tuple[int, ...]) -> bool:
        names = self._at.head.count_files
        merged = [names[each] for each in numbers]
        table = merged_counts([read_table(self._at.root, name) for name in merged])
        written = [write_counts(self._at.root, table)] if len(table) else []
        self._failpoints.reach("maintain.counts.written")
        return self._change_head(
            lambda head: (
                replace(head, count_files=(*(name for name in head.count_files if name not in merged), *written))
                if set(merged) <= set(head.count_files)
                else None
            )
        )

    def _change_head(self, change: Callable[[IndexHead], IndexHead | None]) -> bool:
        """Commit a head that was changed; if another commit was first, change that one's.

        What was found for the head may have taken long, and is as good for the next version. `change` returns None
        where it is not.
        """
        # Each commit writes the head, so that an iteration which has begun would be in vain.
        with self._store.writing_within(self._limits.turn_s):
            for attempts_left in reversed(range(HEAD_ATTEMPTS)):
                changes = self._store.begin()
                if changes.head.is_deleted or (head := change(changes.head)) is None:
                    return False
                changes.head = head
                try:
                    changes.commit("maintain the index")
                    return True
                except Conflict:
                    if not attempts_left:
                        raise
            return False


# --- calibration ------------------------------------------------------------------------------------------------------
# Stored vectors, chosen by a hash of their places, are searched for their neighbours, and the neighbours that are found
# are compared with those that all distances give. So it is known how many partitions a search has to visit to find the
# share of nearest vectors that is wanted. Of the numbers that are tried the one after the smallest that reaches the
# recall is taken. The recall to reach lies halfway between 1 and the recall that searches are to have, as the
# partitions were made of the rows that are samples here, and of a query they know nothing.

SAMPLES = 200
"""Stored vectors that are searched for."""

NEIGHBOURS = 10
"""Neighbours of each that are compared."""

REFINES = (10, 20, 40)
"""How many times as many candidates as hits get exact distances: the first that reaches the recall is taken."""

PROBES_STEP = 1.4
"""Each number of partitions that is tried is so many times the one before."""

BATCH_ROWS = 16_384
"""Rows whose distances are computed at once."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A search needs so many partitions (`probes`), and `refine` times as many candidates as hits, to reach `recall`.
    The share that was `wanted` may be more.
    """

    probes: int
    refine: int
    recall: float
    wanted: float

    @property
    def is_reached(self) -> bool:
        return self.recall >= self.wanted


def calibrate(at: OpenIndex, metric: str, recall: float, largest_rows: int) -> Calibration | None:
    """Return what reaches `recall` with an index whose largest segment has so many rows; None without vectors.

    If nothing reaches it, the most that there is. Raises StorageError.
    """
    with lance_faults(f"calibrate {at.root}"):
        addresses, queries = sampled_vectors(at.dataset)
        if not len(addresses):
            return None
        truth = _neighbours(at.dataset, addresses, queries, metric)
        wanted = recall + (1 - recall) / 2
        most = partitions(largest_rows)
        tried = Calibration(most, REFINES[-1], 0.0, wanted)
        for refine in REFINES:
            # First with all partitions: if these do not reach it, more candidates have to.
            tried = Calibration(most, refine, _recall(at.dataset, queries, truth, metric, most, refine), wanted)
            if tried.is_reached:
                return _fewest(at.dataset, queries, truth, metric, tried)
        return tried


def _fewest(
    dataset: LanceDataset, queries: Floats, truth: list[set[int]], metric: str, most: Calibration
) -> Calibration:
    # More partitions never find less, but for chance, so that the number is searched for by halves.
    steps = _steps(most.probes)
    low, high, recalls = 0, len(steps), {most.probes: most.recall}
    while low < high:
        middle = (low + high) // 2
        recalls[steps[middle]] = _recall(dataset, queries, truth, metric, steps[middle], most.refine)
        if recalls[steps[middle]] >= most.wanted:
            high = middle
        else:
            low = middle + 1
    fewest = steps[high] if high < len(steps) else most.probes
    return replace(most, probes=min(most.probes, math.ceil(fewest * PROBES_STEP)), recall=recalls[fewest])


def _steps(most: int) -> list[int]:
    """Return the numbers of partitions below `most` that are tried."""
    steps, probes = [], 1.0
    while round(probes) < most:
        steps.append(round(probes))
        probes = max(probes + 1, probes * PROBES_STEP)
    return steps


def _recall(
    dataset: LanceDataset, queries: Floats, truth: list[set[int]], metric: str, probes: int, refine: int
) -> float:
    found = 0
    for query, nearest in zip(queries, truth, strict=True):
        rows = dataset.scanner(
            columns=["_distance"],
            nearest={
                "column": VECTOR,
                "q": query,
                "k": NEIGHBOURS + 1,
                "metric": metric,
                "nprobes": probes,
                "refine_factor": refine,
            },
            with_row_address=True,
        ).to_table()
        # The vector itself is found at any number of partitions, and is among none of its neighbours.
        found += len(nearest.intersection(rows[ADDRESS].to_pylist()))
    return found / max(1, sum(map(len, truth)))


def sampled_vectors(dataset: LanceDataset, count: int = SAMPLES) -> tuple[list[int], Floats]:
    """Return places and vectors of `count` rows that have a vector: those whose places have the smallest hashes."""
    found = dataset.scanner(columns=[], filter=f"{VECTOR} IS NOT NULL", with_row_address=True).to_table()
    addresses = found[ADDRESS].to_numpy().astype(np.uint64)
    with np.errstate(over="ignore"):
        hashed = addresses * np.uint64(_GOLDEN % _WORD)
    hashed ^= hashed >> np.uint64(29)
    chosen = addresses[np.argsort(hashed, kind="stable")[:count]].tolist()
    if not chosen:
        return [], np.empty((0, 0), np.float32)
    return chosen, matrix_of(dataset._take_rows(chosen, columns=[VECTOR])[VECTOR].combine_chunks())


def matrix_of(vectors: pa.FixedSizeListArray) -> Floats:
    """Return vectors as the rows of a matrix."""
    flat: Floats = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return flat.reshape(len(vectors), vectors.type.list_size)


def _neighbours(dataset: LanceDataset, own_addresses: list[int], queries: Floats, metric: str) -> list[set[int]]:
    """Return the addresses of the nearest rows of each query but for itself, by all distances."""
    places = np.array(own_addresses, np.uint64)
    addresses = np.empty((len(queries), 0), np.uint64)
    scores = np.empty((len(queries), 0), np.float32)
    scanned = dataset.scanner(
        columns=[VECTOR], filter=f"{VECTOR} IS NOT NULL", with_row_address=True, batch_size=BATCH_ROWS
    )
    for batch in scanned.to_batches():
        if not len(batch):
            continue
        own = batch[ADDRESS].to_numpy().astype(np.uint64)
        near = nearness(queries, matrix_of(batch[VECTOR]), metric)
        near[places[:, np.newaxis] == own] = -np.inf
        scores = np.concatenate([scores, near], axis=1)
        addresses = np.concatenate([addresses, np.broadcast_to(own, (len(queries), len(own)))], axis=1)
        if scores.shape[1] > NEIGHBOURS:
            kept = np.argpartition(-scores, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
            scores, addresses = np.take_along_axis(scores, kept, 1), np.take_along_axis(addresses, kept, 1)
    # With few rows a query may be among its own neighbours still.
    return [set(each.tolist()) - {own} for each, own in zip(addresses, own_addresses, strict=True)]


def nearness(queries: Floats, rows: Floats, metric: str) -> Floats:
    """Return numbers that are the larger the nearer a row is to a query."""
    if metric == "cosine":
        queries, rows = _unit(queries), _unit(rows)
    products: Floats = queries @ rows.T
    if metric == "l2":
        products -= (rows * rows).sum(axis=1) / 2
    return products


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    units: Floats = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return units
