"""Finds out how many partitions of vectors a search has to visit to find the share of nearest ones that is wanted.

Stored vectors, chosen by a hash of their places, are searched for their neighbours, and these compared with the
neighbours that all distances give. Of the numbers that are tried it is the one after the smallest that reaches the
recall with half of the rest to one in addition: the partitions were made of the rows that are samples here, and of a
query they know nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.index.lance.index_columns import VECTOR, partitions
from iscp.index.lance.index_transaction import ADDRESS
from iscp.index.lance.lance_access import lance_faults

if TYPE_CHECKING:
    from lance import LanceDataset

    from iscp.index.lance.index_store import OpenIndex

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
