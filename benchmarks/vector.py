"""An index of vectors that follows its table: `python -m benchmarks.vector [--json]`.

Vectors of 384 numbers lie in clusters, as those of texts do, and are drawn from a seed. Changes have 1,000 upserts (100
of them new) and 100 deletions. The index is maintained as its job does it (benchmarks/fed_index.py), in this process.

- `searchable_ms`: from the beginning of a change until a search for one of its vectors has found it first. usearch
  takes turns with the index in the same run (`engines`), and saves itself to a file at each change, as it has no other
  way to outlive a process. `update_ratio_of_build` is the median in relation to a rebuild of the index.
- `maintained_ratio`: the mean of so many changes, with all maintenance that they made due, in relation to a rebuild.
- `recall_*` and `p95_ms_*`: searches for the ten nearest after all changes, also by filters that keep 50, 10 and 1 % of
  the rows, compared with all distances.
- `search_ms`: searches by this process while another one commits such changes, one a second, and maintains the index.
- `growth`: how many times as long `searchable_ms` is in the largest table of `growth_sizes` as in the smallest.
- `bytes_per_row`: all files of the index when it has just been built; the numbers alone have 1,536.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from usearch.index import Index

from benchmarks.fed_index import FedIndex, LiveKeys, judged, net_changes, percentile, spread, timed_ms
from benchmarks.progress import report_progress
from iscp.index.search.search_library import search

Vectors = npt.NDArray[np.float32]

DIMENSION, K = 384, 10
CHUNK_ROWS = 25_000
CLUSTER_ROWS = 200
"""Rows for each centre of the vectors."""
DEVIATION = 0.25
"""Of each of a vector's numbers from its centre's, which are of a standard normal distribution."""
OPTIONS = {"column": "embedding", "stored": "price"}
SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.int64()), ("embedding", pa.list_(pa.float32()))])
FILTERS = {"all": "", "50": "price < 50", "10": "price < 10", "1": "price < 1"}
"""What a search keeps, in percent of the rows, and by which filter."""
WRITER_PAUSE_S = 1.0
LARGE_ROWS = 1_000_000
CHANGED = 10**9
AIMS = {
    "searchable_ms": ("<=", 50.0),
    "update_ratio_of_build": ("<=", 0.02),
    "maintained_ratio": ("<=", 0.05),
    "search_p95_ms": ("<=", 10.0),
    "growth": ("<=", 1.5),
    **{f"recall_{kept}": (">=", 0.99) for kept in FILTERS},
    **{f"p95_ms_{kept}": ("<=", 10.0) for kept in FILTERS},
}


def vectors(seed: int, count: int, clusters: int) -> Vectors:
    """Vectors around some of so many centres, which are the same for every seed."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((clusters, DIMENSION), np.float32)
    chosen = draw.integers(0, clusters, count)
    return centres[chosen] + DEVIATION * draw.standard_normal((count, DIMENSION), np.float32)


def table(keys: list[int], matrix: Vectors) -> pa.Table:
    offsets = pa.array(np.arange(len(keys) + 1) * DIMENSION, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(matrix.reshape(-1)))
    return pa.table([pa.array(keys), pa.array([key % 100 for key in keys]), lists], schema=SCHEMA)


def first_rows(rows: int) -> Iterator[pa.Table]:
    for begin in range(0, rows, CHUNK_ROWS):
        keys = list(range(begin, min(rows, begin + CHUNK_ROWS)))
        yield table(keys, vectors(1 + begin, len(keys), clusters_of(rows)))


def clusters_of(rows: int) -> int:
    return max(8, rows // CLUSTER_ROWS)


class Changing:
    """An index, its changes, and the vectors that its table has by now."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.index = FedIndex(str(folder / f"index-{rows}"), "vector", OPTIONS, SCHEMA, DIMENSION)
        self.keys = LiveKeys(rows, set())
        self.clusters = clusters_of(rows)
        self.live: dict[int, Vectors] = {}
        self.version = 0

    def build(self, rows: int) -> float:
        return self.index.build(first_rows(rows))

    def draw(self) -> tuple[list[int], Vectors, list[int]]:
        """Keys and vectors of rows to write, and keys of rows to delete."""
        written, gone = self.keys.draw()
        return written, vectors(CHANGED + self.keys.seed, len(written), self.clusters), gone

    def searchable_ms(self, written: list[int], matrix: Vectors, gone: list[int]) -> float:
        found: list[int] = []
        left = table(gone, np.zeros((len(gone), DIMENSION), np.float32))
        changes = net_changes(table(written, matrix), len(written) // 10, left)

        def until_found() -> None:
            self.version = self.index.change(changes)
            found.extend(nearest(self.index.uri, matrix[0], "", self.version))

        took_ms = timed_ms(until_found)
        assert found[0] == written[0], "the changed row was not found"
        return took_ms


def nearest(uri: str, vector: Vectors, condition: str, version: int | None = None) -> list[int]:
    answer = search(uri, vector=vector.tolist(), k=K, filter=condition, min_version=version, columns=())
    return [hit.key["id"] for hit in answer.hits]


class UsearchFile:
    """An index of usearch's, and the file that it saves itself to."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "usearch.index")
        self._index = Index(ndim=DIMENSION, metric="cos", dtype="f16")

    def build(self, rows: int) -> None:
        for each in first_rows(rows):
            matrix = each["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, DIMENSION)
            self._index.add(each["id"].to_numpy(), matrix)
        self._save()

    def change(self, written: list[int], matrix: Vectors, gone: list[int]) -> None:
        for key in (*written, *gone):
            self._index.remove(key)
        self._index.add(np.array(written, np.uint64), matrix)
        assert int(self._index.search(matrix[0], 1).keys[0]) == written[0]
        self._save()

    def _save(self) -> None:
        self._index.save(self._path)
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def search(self, vector: Vectors) -> list[int]:
        return [int(key) for key in self._index.search(vector, K).keys]


def compare(ours: Changing, folder: Path, rows: int, rounds: int, queries: Vectors) -> dict[str, Any]:
    """Build and change both by turns."""
    theirs, figures = UsearchFile(folder), dict[str, dict[str, Any]]()
    figures["iscp"] = {"build_s": round(ours.build(rows), 2)}
    report_progress("the index was built", **figures["iscp"])
    figures["usearch"] = {"build_s": round(timed_ms(lambda: theirs.build(rows)) / 1000, 2)}
    report_progress("usearch was built", **figures["usearch"])
    figures["iscp"]["bytes_per_row"] = round(ours.index.bytes() / rows)
    changes: dict[str, list[float]] = {"iscp": [], "usearch": []}
    for _ in range(rounds):
        change = ours.draw()
        changes["iscp"].append(ours.searchable_ms(*change))
        changes["usearch"].append(timed_ms(lambda c=change: theirs.change(*c)))  # type: ignore[misc]
        ours.index.maintain()
    times = [timed_ms(lambda q=query: theirs.search(q)) for query in queries]  # type: ignore[misc]
    figures["usearch"]["search_ms"] = spread(times)
    for name, found in figures.items():
        found["searchable_ms"] = spread(changes[name])
        report_progress(name, **found)
    return figures


def maintained(ours: Changing, updates: int) -> tuple[float, dict[str, int]]:
    """The mean time of a change with what maintenance it made due, in seconds, and which maintenance that was."""
    took_ms, kinds = 0.0, Counter[str]()
    for _ in range(updates):
        took_ms += ours.searchable_ms(*ours.draw())
        began_s = time.perf_counter()
        kinds.update(each.value for each in ours.index.maintain().actions)
        took_ms += 1000 * (time.perf_counter() - began_s)
    return took_ms / updates / 1000, dict(kinds)


def recalls(ours: Changing, queries: Vectors) -> dict[str, dict[str, float]]:
    """For each filter the share of the true nearest ten that searches find, and how long they take."""
    rows = ours.index.store.open().dataset.to_table(columns=["id", "price", "_vector"], filter="id IS NOT NULL")
    matrix = rows["_vector"].combine_chunks().flatten().to_numpy().reshape(-1, DIMENSION)
    units = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    keys, prices = rows["id"].to_numpy(), rows["price"].to_numpy()
    found = {}
    for kept, condition in FILTERS.items():
        passing = np.flatnonzero(prices < (100 if kept == "all" else int(kept)))
        right, wanted, times = 0, 0, list[float]()
        for query in queries:
            scores = units[passing] @ (query / np.linalg.norm(query))
            true = set(keys[passing[np.argsort(-scores)[:K]]].tolist())
            began_s = time.perf_counter()
            hits = nearest(ours.index.uri, query, condition)
            times.append(1000 * (time.perf_counter() - began_s))
            right, wanted = right + len(true.intersection(hits)), wanted + len(true)
        found[kept] = {"recall": round(right / wanted, 4), **spread(times)}
        report_progress(f"searches that keep {kept}", **found[kept])
    return found


def write_changes(folder: Path, rows: int, keys: LiveKeys, seconds: float) -> None:
    """What the other process does while searches are timed."""
    changing = Changing(folder, rows)
    changing.keys = keys
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        changing.searchable_ms(*changing.draw())
        changing.index.maintain()
        time.sleep(max(0.0, WRITER_PAUSE_S - (time.monotonic() - began_s)))


def search_meanwhile(ours: Changing, folder: Path, rows: int, seconds: float, queries: Vectors) -> list[float]:
    """Times of searches while another process writes."""
    # Lance's threads do not survive a fork.
    arguments, times = (folder, rows, ours.keys, seconds), list[float]()
    writer = multiprocessing.get_context("spawn").Process(target=write_changes, args=arguments)
    writer.start()
    try:
        search(ours.index.uri, vector=queries[0].tolist(), min_version=ours.version + 1, wait_s=120.0)
        while writer.is_alive():
            times += [timed_ms(lambda q=query: nearest(ours.index.uri, q, "")) for query in queries]  # type: ignore[misc]
    finally:
        writer.join(60.0)
        if writer.is_alive():
            writer.kill()
    assert writer.exitcode == 0, "the writer has failed"
    return times


def grown(folder: Path, sizes: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """How long changes of tables of these sizes take until they are found; the tables take turns."""
    tables = {rows: Changing(folder, rows) for rows in sizes}
    for rows, each in tables.items():
        each.build(rows)
        report_progress("an index to compare with was built", rows=rows)
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    for _ in range(rounds):
        for rows, each in tables.items():
            times[rows].append(each.searchable_ms(*each.draw()))
            each.index.maintain()
    return {rows: spread(each) for rows, each in times.items()}


def measure(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    rows = options["rows"]
    queries = vectors(2 * CHANGED, options["queries"], clusters_of(rows))
    ours = Changing(folder, rows)
    engines = compare(ours, folder, rows, options["rounds"], queries)
    amortized_s, kinds = maintained(ours, options["updates"])
    report_progress("changes with their maintenance", change_s=round(amortized_s, 4), maintenance=kinds)
    found = recalls(ours, queries)
    times = search_meanwhile(ours, folder, rows, options["seconds"], queries)
    report_progress("searches while another process commits", search_ms=spread(times))
    (folder / "growth").mkdir()
    sizes = sorted({*options["growth_rows"], *([LARGE_ROWS] if options["large"] else [])})
    growth = grown(folder / "growth", sizes, options["rounds"])
    build_s, searchable = engines["iscp"]["build_s"], engines["iscp"]["searchable_ms"]["p50"]
    return {
        "rows": rows,
        "dimension": DIMENSION,
        "searchable_ms": searchable,
        "update_ratio_of_build": round(searchable / 1000 / build_s, 4),
        "maintained_ratio": round(amortized_s / build_s, 4),
        "maintenance": kinds,
        "search_p95_ms": round(percentile(times, 95), 2),
        "search_ms": spread(times),
        "searches": len(times),
        **{f"recall_{kept}": each["recall"] for kept, each in found.items()},
        **{f"p95_ms_{kept}": each["p95"] for kept, each in found.items()},
        "filtered": found,
        "probes": ours.index.store.open().head.probes,
        "growth": round(growth[sizes[-1]]["p50"] / growth[sizes[0]]["p50"], 2),
        "growth_sizes": {str(size): each for size, each in growth.items()},
        "bytes_per_row": engines["iscp"].pop("bytes_per_row"),
        "engines": engines,
    }


@click.command()
@click.option("--rows", type=click.IntRange(min=2_000), default=100_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Changes of each engine.")
@click.option("--updates", type=click.IntRange(min=1), default=80, show_default=True, help="With their maintenance.")
@click.option("--queries", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Of searches.")
@click.option(
    "--growth-rows", type=click.IntRange(min=2_000), multiple=True, default=(10_000, 100_000), show_default=True
)
@click.option("--large", is_flag=True, help="Compare with a table of 1,000,000 rows too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(as_json: bool, **options: Any) -> None:
    """Measure an index of vectors while it follows changes."""
    with tempfile.TemporaryDirectory(prefix="iscp-vector-") as folder:
        figures = measure(Path(folder), options)
    result = {"benchmark": "vector", "cpus": os.cpu_count(), **figures, "aims": judged(AIMS, figures)}
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
