"""A full-text index that follows its table: `python -m benchmarks.fulltext [--json]`.

The texts are drawn from a seed by Zipf's law, 60 words each (benchmarks/zipf_texts.py): no collection of real texts is
on every machine. Changes have 1,000 upserts (100 of them new) and 100 deletions. The index is maintained as its job
does it (benchmarks/fed_index.py), in this process.

- `searchable_ms`: from the beginning of a change, the analysis of its texts included, until a search that needs a word
  of it alone has found it. tantivy and SQLite's FTS5 take turns with the index in the same run (`engines`); all three
  commit durably. `update_ratio_of_build` is its median in relation to building the index.
- `maintained_ratio`: the mean of so many changes, with all maintenance that they made due, in relation to the build;
  `maintenance` says how often each kind of it came.
- `rank_errors`: queries whose best ten are not those of BM25 over the live texts, or whose scores differ by more than
  1e-4, after changes of 1 to 20 rows each.
- `search_ms`: searches by this process while another one commits such changes, one a second, and maintains the index.
- `growth`: how many times as long `searchable_ms` is in the largest table of `growth_sizes` as in the smallest;
  `--large` has one of 1,000,000 rows.
- `bytes_per_row`: all files of the index when it has just been built, and after all changes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import zipf_texts
from benchmarks.fed_index import FedIndex, LiveKeys, judged, percentile, spread, timed_ms
from benchmarks.progress import report_progress
from benchmarks.ranks import ExpectedRanks
from benchmarks.text_engines import OPTIONS, SCHEMA, Change, IscpEngine, K, SqliteEngine, TantivyEngine, TextEngine
from iscp.index.search.search_library import search

AIMS = {
    "searchable_ms": ("<=", 50.0),
    "update_ratio_of_build": ("<=", 0.02),
    "maintained_ratio": ("<=", 0.05),
    "search_p95_ms": ("<=", 10.0),
    "rank_errors": ("<=", 0),
    "growth": ("<=", 1.5),
}
LARGE_ROWS = 1_000_000
WRITER_PAUSE_S = 1.0
NEEDLES = 10**9
"""Seeds of changed texts begin here, above those of first texts."""


class Drawn:
    """Changes of one table, and its live texts if these are wanted."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.keys = LiveKeys(rows, set(), seed)
        self.live: dict[int, str] | None = None

    def next(self, upserts: int = 1_000, new: int = 100, deletions: int = 100) -> tuple[Change, str]:
        """A change, and the word that its first text alone has."""
        written, gone = self.keys.draw(upserts, new, deletions)
        needle = f"needle{self.keys.seed}"
        bodies = zipf_texts.texts(NEEDLES + self.keys.seed, len(written))
        bodies[0] += f" {needle}"
        if self.live is not None:
            self.live.update(zip(written, bodies, strict=True))
            for key in gone:
                del self.live[key]
        return Change(written, bodies, new, gone), needle


def searchable_ms(engine: TextEngine, change: Change, needle: str) -> float:
    found: list[int] = []

    def until_found() -> None:
        engine.change(change)
        found.extend(engine.search(needle))

    took_ms = timed_ms(until_found)
    assert found == change.keys[:1], f"{engine.name} has not found {needle}"
    return took_ms


def compare(
    folder: Path, drawn: Drawn, rows: int, rounds: int, queries: list[str]
) -> tuple[IscpEngine, dict[str, Any]]:
    """Build, change and search all engines by turns."""
    ours = IscpEngine(folder)
    engines: list[TextEngine] = [ours, TantivyEngine(folder), SqliteEngine(folder)]
    tables = list(zipf_texts.documents(0, rows))
    figures: dict[str, Any] = {}
    for engine in engines:
        figures[engine.name] = {"build_s": round(timed_ms(lambda e=engine: e.build(tables)) / 1000, 2)}  # type: ignore[misc]
        report_progress(f"{engine.name} was built", **figures[engine.name])
    figures["iscp"]["bytes_per_row"] = round(ours.index.bytes() / rows)
    changes: dict[str, list[float]] = {engine.name: [] for engine in engines}
    searches: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for _ in range(rounds):
        change, needle = drawn.next()
        for engine in engines:
            changes[engine.name].append(searchable_ms(engine, change, needle))
        ours.index.maintain()
        for query in queries[: max(1, len(queries) // rounds)]:
            for engine in engines:
                searches[engine.name].append(timed_ms(lambda e=engine, q=query: e.search(q)))  # type: ignore[misc]
    for name, found in figures.items():
        found |= {"searchable_ms": spread(changes[name]), "search_ms": spread(searches[name])}
        report_progress(name, **found)
    return ours, figures


def maintained(ours: IscpEngine, drawn: Drawn, updates: int) -> tuple[float, dict[str, int]]:
    """The mean time of a change with what maintenance it made due, in seconds, and which maintenance that was."""
    took_ms, kinds = 0.0, Counter[str]()
    for _ in range(updates):
        change, needle = drawn.next()
        took_ms += searchable_ms(ours, change, needle)
        began_s = time.perf_counter()
        kinds.update(each.value for each in ours.index.maintain().actions)
        took_ms += 1000 * (time.perf_counter() - began_s)
    return took_ms / updates / 1000, dict(kinds)


def rank_errors(ours: IscpEngine, drawn: Drawn, changes: int, queries: list[str]) -> list[str]:
    """What is wrong with ranks after so many random changes."""
    chance = np.random.default_rng(changes)
    for _ in range(changes):
        upserts = int(chance.integers(1, 21))
        ours.change(drawn.next(upserts, int(chance.integers(0, upserts // 4 + 1)), int(chance.integers(0, 5)))[0])
        ours.index.maintain()
    assert drawn.live is not None
    expected = ExpectedRanks(drawn.live, [word for query in queries for word in query.split()])
    faults = []
    for query in queries:
        hits = search(ours.index.uri, query, k=K, min_version=ours.version).hits
        if fault := expected.fault(query, [(hit.key["id"], hit.score) for hit in hits], K):
            faults.append(f"{query}: {fault}")
    return faults


def write_changes(uri: str, keys: LiveKeys, seconds: float) -> None:
    """What the other process does while searches are timed."""
    index, drawn = FedIndex(uri, "fulltext", OPTIONS, SCHEMA), Drawn(0)
    drawn.keys = keys
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        index.change(drawn.next()[0].net())
        index.maintain()
        time.sleep(max(0.0, WRITER_PAUSE_S - (time.monotonic() - began_s)))


def search_meanwhile(ours: IscpEngine, drawn: Drawn, seconds: float, queries: list[str]) -> tuple[list[float], int]:
    """Times of searches while another process writes, and how many changes it has committed meanwhile."""
    before, times = ours.version, list[float]()
    # Lance's threads do not survive a fork.
    arguments = (ours.index.uri, drawn.keys, seconds)
    writer = multiprocessing.get_context("spawn").Process(target=write_changes, args=arguments)
    writer.start()
    try:
        answer = search(ours.index.uri, queries[0], min_version=before + 1, wait_s=120.0)
        while writer.is_alive():
            for query in queries:
                began_s = time.perf_counter()
                answer = search(ours.index.uri, query, k=K)
                times.append(1000 * (time.perf_counter() - began_s))
    finally:
        writer.join(60.0)
        if writer.is_alive():
            writer.kill()
    assert writer.exitcode == 0, "the writer has failed"
    return times, answer.version - before


def grown(folder: Path, sizes: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """How long changes of tables of these sizes take until they are found; the tables take turns."""
    tables = {}
    for rows in sizes:
        engine = IscpEngine(folder / f"rows-{rows}")
        engine.build(zipf_texts.documents(0, rows))
        tables[rows] = engine, Drawn(rows)
        report_progress("an index to compare with was built", rows=rows)
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    for _ in range(rounds):
        for rows, (engine, drawn) in tables.items():
            times[rows].append(searchable_ms(engine, *drawn.next()))
            engine.index.maintain()
    return {rows: spread(each) for rows, each in times.items()}


def measure(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    rows, queries = options["rows"], zipf_texts.queries(1, options["queries"])
    drawn = Drawn(rows)
    ours, engines = compare(folder, drawn, rows, options["rounds"], queries)
    build_s = engines["iscp"]["build_s"]
    amortized_s, kinds = maintained(ours, drawn, options["updates"])
    report_progress("changes with their maintenance", change_s=round(amortized_s, 4), maintenance=kinds)
    drawn.live = live_texts(ours, rows, drawn)
    faults = rank_errors(ours, drawn, options["random_updates"], queries)
    report_progress("ranks", rank_errors=len(faults), faults=faults[:3])
    drawn.live = None
    times, committed = search_meanwhile(ours, drawn, options["seconds"], queries)
    report_progress("searches while another process commits", search_ms=spread(times), commits=committed)
    sizes = grown(
        folder, sorted({*options["growth_rows"], *([LARGE_ROWS] if options["large"] else [])}), options["rounds"]
    )
    least, most = min(sizes), max(sizes)
    searchable = engines["iscp"]["searchable_ms"]["p50"]
    return {
        "rows": rows,
        "searchable_ms": searchable,
        "update_ratio_of_build": round(searchable / 1000 / build_s, 4),
        "maintained_ratio": round(amortized_s / build_s, 4),
        "maintenance": kinds,
        "search_p95_ms": round(percentile(times, 95), 2),
        "search_ms": spread(times),
        "searches": len(times),
        "commits_meanwhile": committed,
        "rank_errors": len(faults),
        "ranked_queries": len(queries),
        "growth": round(sizes[most]["p50"] / sizes[least]["p50"], 2),
        "growth_sizes": {str(size): found for size, found in sizes.items()},
        "bytes_per_row": engines["iscp"].pop("bytes_per_row"),
        "bytes_per_row_changed": round(ours.index.bytes() / ours.index.store.open().head.rows),
        "engines": engines,
    }


def live_texts(ours: IscpEngine, rows: int, drawn: Drawn) -> dict[int, str]:
    """The texts that the table has by now: they are drawn again, from the seeds of all changes."""
    again = Drawn(rows)
    again.live = {}
    for table in zipf_texts.documents(0, rows):
        again.live |= zip(table["id"].to_pylist(), table["body"].to_pylist(), strict=True)
    while again.keys.seed < drawn.keys.seed:
        again.next()
    return again.live


@click.command()
@click.option("--rows", type=click.IntRange(min=2_000), default=100_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Changes of each engine.")
@click.option("--updates", type=click.IntRange(min=1), default=80, show_default=True, help="With their maintenance.")
@click.option("--random-updates", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--queries", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Of searches.")
@click.option(
    "--growth-rows", type=click.IntRange(min=2_000), multiple=True, default=(10_000, 100_000), show_default=True
)
@click.option("--large", is_flag=True, help="Compare with a table of 1,000,000 rows too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(as_json: bool, **options: Any) -> None:
    """Measure a full-text index while it follows changes."""
    with tempfile.TemporaryDirectory(prefix="iscp-fulltext-") as folder:
        figures = measure(Path(folder), options)
    result = {"benchmark": "fulltext", "cpus": os.cpu_count(), **figures, "aims": judged(AIMS, figures)}
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
