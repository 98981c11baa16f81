"""Many small indexes in one process: `python -m benchmarks.many_indexes [--json]`.

One index of 100 texts is made as its job makes it, with a change after the first rows, and its folder is copied. A
process of its own searches some of the copies until all that is loaded once is there. Then it searches each of the
others, for the first time and once more.

- `first_ms`: opening an index and searching it for the first time. `again_ms`: the next search of it, which opens it
  again.
- `bytes_each`: growth of the resident set over all first searches, for each index; `handles_each`: open files likewise.
- `idle_probe_us`: CPU of a probe of an index that has not changed, by the real probes of targets; `delta_probe_us` of a
  Delta table. The two take turns. `idle_first_probe_us` is the first probe of an index.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import zipf_texts
from benchmarks.fed_index import judged, spread, timed_ms
from benchmarks.idle import make_tables, row, rss_bytes
from benchmarks.progress import report_progress
from benchmarks.text_engines import Change, IscpEngine
from iscp.app.registry import ConsumerRegistry
from iscp.app.shard_parts import LOG_PROBES
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.engine.iteration_ports import SinkPool
from iscp.index.search.search_library import search
from iscp.model.job.start_rule import TargetLog, TargetSeen, seen_target
from iscp.model.spec.spec_parsing import target_of
from iscp.schedule.probe_pool import TargetProbes
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

AIMS = {
    "bytes_each": ("<=", 32 * 1024),
    "handles_each": ("<=", 1.0),
    "first_p95_ms": ("<=", 10.0),
    "idle_probe_us": ("<=", 20.0),
}
TEXTS = 100
WARM = 50
"""Indexes that are searched before anything is measured."""
PASSES = 9


def make_indexes(folder: Path, count: int) -> list[str]:
    made = IscpEngine(folder)
    made.build(zipf_texts.documents(0, TEXTS))
    made.change(Change([*range(10), TEXTS], zipf_texts.texts(1_000, 11), 1, [20]))
    places = [folder / f"copy-{number:06d}" for number in range(count)]
    for place in places:
        shutil.copytree(made.index.uri, place)
    return [str(place) for place in places]


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def searched(uris: list[str]) -> dict[str, Any]:
    """What searches of all of them take, after those of some that do not count."""
    # A word that every copy has, and others of each query's own: nothing is found that was sought before.
    queries = zipf_texts.queries(7, len(uris))
    common = zipf_texts.vocabulary()[0]
    times: dict[str, list[float]] = {}
    for uri, query in zip(uris[:WARM], queries, strict=False):
        assert search(uri, f"{common} {query}").hits
    gc.collect()
    before, files = rss_bytes(), handles()
    pairs = list(zip(uris, queries, strict=True))[WARM:]
    times["first"] = [timed_ms(lambda u=uri, q=query: search(u, f"{common} {q}")) for uri, query in pairs]  # type: ignore[misc]
    gc.collect()
    grown, opened = rss_bytes() - before, handles() - files
    times["again"] = [timed_ms(lambda u=uri, q=query: search(u, f"{common} {q}")) for uri, query in pairs]  # type: ignore[misc]
    return {
        "bytes_each": round(grown / len(pairs)),
        "handles_each": round(opened / len(pairs), 3),
        **{f"{name}_ms": spread(each) for name, each in times.items()},
    }


def probed(uris: list[str], tables: Path) -> dict[str, float]:
    """CPU times of probes of targets, in microseconds each: of these indexes, and of as many Delta tables."""
    make_tables(tables, len(uris))
    clock, failpoints = SystemClock(), EnvironmentFailpoints({})
    sinks = SinkPool(lambda uri: DeltaSink(uri, failpoints), str, clock, failpoints, DeltaChangeSource(), cached_max=0)
    targets = TargetProbes(LOG_PROBES, ConsumerRegistry().kind, sinks)
    rows = [row(tables, number) for number in range(len(uris))]

    def seen(log: TargetLog, places: list[str]) -> tuple[list[TargetSeen], float]:
        began_ns = time.process_time_ns()
        states = [LOG_PROBES[log].first_probe(place) for place in places]
        took_us = (time.process_time_ns() - began_ns) / 1e3 / len(places)
        return [seen_target(log, place, state) for place, state in zip(places, states, strict=True)], took_us

    indexes, first_us = seen(TargetLog.LANCE, uris)
    deltas, _ = seen(TargetLog.DELTA, [target_of(each.spec_json) for each in rows])
    times: dict[str, list[float]] = {"idle": [], "delta": []}
    for _ in range(PASSES):
        for name, states in (("idle", indexes), ("delta", deltas)):
            began_ns = time.process_time_ns()
            for job, state in zip(rows, states, strict=True):
                assert targets.probe(job, state) is state
            times[name].append((time.process_time_ns() - began_ns) / 1e3 / len(uris))
    found = {f"{name}_probe_us": round(statistics.median(each), 2) for name, each in times.items()}
    return {**found, "idle_first_probe_us": round(first_us, 2)}


def measured_apart(what: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.many_indexes", "--measure", what, "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    report_progress(what, **found)
    return found


def run(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="iscp-indexes-") as made:
        make_indexes(Path(made), count + WARM)
        report_progress("the indexes", indexes=count)
        figures = {
            "benchmark": "many_indexes",
            "indexes": count,
            "texts": TEXTS,
            **measured_apart("searches", Path(made)),
            **measured_apart("probes", Path(made)),
        }
    figures["first_p95_ms"] = figures["first_ms"]["p95"]
    return {**figures, "aims": judged(AIMS, figures)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What many small indexes cost a process.")
    parser.add_argument("--indexes", type=int, default=1_000)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--measure", choices=("searches", "probes"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        uris = sorted(str(each) for each in options.folder.glob("copy-*"))
        print(json.dumps(searched(uris) if options.measure == "searches" else probed(uris, options.folder / "tables")))
        return
    figures = run(options.indexes)
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
