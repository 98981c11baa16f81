"""Every benchmark at its smallest, as a user runs it: what nobody runs for weeks would not run any more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TIMEOUT_S = 1_800

PROGRAMS = {
    "bare_node": "a node that benchmarks start",
    "feed_writer": "a process that benchmarks.changefeed starts",
    "warm_spark": "an application of Spark that benchmarks.run_once starts",
    "image": "it needs an image of this machine's; what it measures is tried by scripts/test-kubernetes",
}
"""Modules that are run, but not here."""


@dataclass(frozen=True, slots=True)
class Smallest:
    """`figures`: fields that say what was measured, none of which can be 0, wherever in the object they are.

    `zeros`: fields that may be 0 where all is well, or where there is as little to do as here.
    """

    arguments: str
    figures: str
    zeros: str = ""
    spark: bool = True
    quick: bool = False


PROPAGATION = "--few --days 1 --trips 1000 --rounds 1 --idle-s 0.5 --step append --step overwrite --step idle"
PROPAGATED = "lag_p50_s lag_p95_s settled_p50_s cpus memory_gib views derived days trips rounds"

SMALLEST = {
    "run_once": Smallest(
        "--rows 2000 --big-rows 2000 --runs 1",
        "idle_s idle_mib small_s small_mib replicas_s script_s ratio_script views_s recomputed_s ratio_dbt first_s",
    ),
    "build": Smallest(
        "--rows 300000 --ranges 2 --rounds 1 --files 4 --rows-of-file 200000 --delay-ms 1",
        "ctas_s one_piece_s ranges_s keyed_s five_jobs_s ratio_one_job ratio_five_jobs one_node_s 3_nodes_s",
    ),
    "build_tasks": Smallest(
        "--ranges 4 --nodes 2 --range-s 0.1",
        "tasks etcd_txn_per_s etcd_txn_per_s_most work_s calls bytes_per_task",
        "create_s owner_cpu_s measured",
        spark=False,
        quick=True,
    ),
    "build_views": Smallest(
        "--rows 1000 --ranges 2 --rounds 1", "rows_whole_s rows_ranges_s groups_whole_s totals_ranges_s bytes"
    ),
    "changefeed": Smallest(
        "--rows-max 100 --writers 2 --seconds 0.5 --freezes 1",
        "ratio_one_writer ratio_one_writer_in_line longest_pause_s pauses_s ulids_per_s commits_per_s append_ms",
        "lost",
        spark=False,
    ),
    "page": Smallest(
        "--jobs 100 --requests 2 --pause-s 0", "jobs first_ms answer_ms worst_ms kib", spark=False, quick=True
    ),
    "dispatch": Smallest(
        "--shards 20 --nodes 2",
        "shards_per_s bytes_per_shard growth",
        "owner_switch_s switch_all_run_s measured",
        spark=False,
    ),
    "failover": Smallest(
        "--runs 1", "crash_p50_s crash_max_s p50_s max_s runs", "sigterm_max_s longest_still_s measured", spark=False
    ),
    "fulltext": Smallest(
        "--rows 3000 --rounds 2 --updates 3 --random-updates 10 --queries 20 --seconds 2 "
        "--growth-rows 2000 --growth-rows 4000",
        "searchable_ms update_ratio_of_build maintained_ratio search_p95_ms searches commits_meanwhile growth "
        "bytes_per_row bytes_per_row_changed build_s",
        "rank_errors measured",
        spark=False,
    ),
    "idle": Smallest(
        "--tables 200 --interval-s 0.2",
        "cpu_us_per_table cpu_us_range source_probe_us target_probe_us rest_us bytes_per_table python_bytes_per_table",
        "spark_jobs etcd_writes steady_cores measured",
        spark=False,
        quick=True,
    ),
    "index_lag": Smallest(
        "--rows 200 --rounds 1",
        "lag_p95_ms fulltext vector search together_ms embedded embedded_changed",
        "reembedded measured",
    ),
    "iteration": Smallest(
        "--tables 100 --changes 10 --rounds 1",
        "ratio_mixed ratio_insert_only iscp_ms streaming_ms outside_spark_ms",
    ),
    "large": Smallest("--rows 100 --table 100 --rounds 1", "iscp_s streaming_s rows_per_s ratio"),
    "log": Smallest(
        "--clients 1 --threads 4 --batch 2 --seconds 1 --load-jobs 1000",
        "updates updates_per_s p50_ms p95_ms p99_ms single load_1k_s",
    ),
    "many_indexes": Smallest(
        "--indexes 20",
        "first_ms again_ms idle_probe_us delta_probe_us idle_first_probe_us",
        "bytes_each handles_each measured",
        spark=False,
        quick=True,
    ),
    "owner": Smallest(
        "--tables 50 --nodes 3",
        "dispatches_per_table ring_refresh_s ring_first_s settle_s tables_per_s peak_gib",
        "revoked table_bytes load_s thread_cpu_s process_cpu_s measured",
        spark=False,
    ),
    "propagation": Smallest(
        f"{PROPAGATION} --driver duckdb", PROPAGATED, "cpu_s bytes wrong_rounds load_before", spark=False, quick=True
    ),
    "ring": Smallest(
        "--shards 1000",
        "imbalance moved_over_ideal cases vnodes",
        "moved_without_need rings_built_without_change measured",
        spark=False,
        quick=True,
    ),
    "security": Smallest(
        "--shards 8 --rounds 1",
        "calls_per_s_plain calls_per_s_tls calls_per_s_guarded dispatches_per_s_plain calls_ratio_guarded_to_plain",
        "revoked_refused_s measured",
        spark=False,
    ),
    "small_tables": Smallest("--tables 21 --rows 1", "tables small_tables_per_s one_ms of_it_at_data_ms"),
    "startup": Smallest("--runs 1", "first_iteration_s first_iteration_min_s ready_s"),
    "tpcdi": Smallest(
        "--trades 100",
        "views views_refreshed views_by_changes batch2_cpu_ratio_spark batch2_clock_ratio_spark batch2_ratio_duckdb "
        "batch3_cpu_ratio_spark batch3_clock_ratio_spark batch3_ratio_duckdb view_median_ratio clock_s cpu_s",
        "slower_views views_by_spark rows_read rows",
    ),
    "vector": Smallest(
        "--rows 6000 --rounds 2 --updates 3 --queries 20 --seconds 2 --growth-rows 2000 --growth-rows 6000",
        "searchable_ms update_ratio_of_build maintained_ratio search_p95_ms searches recall_all recall_1 p95_ms_all "
        "p95_ms_1 growth bytes_per_row build_s",
        "measured",
        spark=False,
    ),
    "view": Smallest(
        "--rows 1000 --rounds 1 --case join --growth-rows 1000 2000",
        "ratio_join ratio_duckdb_join refresh_s recompute_s duckdb_s cpu_s growth growth_s",
    ),
    "view_chain": Smallest("--rounds 2", "chain_lag_s links_s range_s p50 p95"),
    "view_choice": Smallest(
        "--rows 1000 --rounds 1 --case aggregate --share 0.001",
        "refreshes worst_factor incremental_s full_s auto_s",
        "right_choice given_up aggregate measured",
    ),
    "view_share": Smallest("--suite tpch", "queries accepted incremental_share"),
    "view_tpcds": Smallest(
        "--scale 0.01 --queries 3 --rounds 1",
        "tpcds_median_ratio measured refresh_s recompute_s",
        "slower_than_full parts_s",
    ),
}

FURTHER = {
    "propagation": Smallest(
        f"{PROPAGATION} --driver iscp --driver duckdb --nodes 1",
        PROPAGATED,
        "cpu_s bytes wrong_rounds load_before",
    )
}
"""A larger run of those that run each time: with what needs Spark."""


def runnable() -> set[str]:
    """The modules and packages of the folder that `python -m` runs."""
    packages = {path.parent.name for path in FOLDER.glob("*/__main__.py")}
    return packages | {path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text()}


def cases() -> list[Any]:
    """The quick ones run each time; a benchmark of which nothing is known here runs too, and fails."""
    found = []
    for name in sorted(runnable() - PROGRAMS.keys()):
        known = SMALLEST.get(name)
        marks = [] if known is None or known.quick else [pytest.mark.full]
        marks += [pytest.mark.spark] if known and known.spark else []
        found.append(pytest.param(name, known, id=name, marks=marks))
    for name, known in FURTHER.items():
        found.append(pytest.param(name, known, id=f"{name}-further", marks=[pytest.mark.full, pytest.mark.spark]))
    return found


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each text, number, truth and None of a JSON value, with the name of the field that it is in."""
    match value:
        case dict():
            for field, each in value.items():
                yield from leaves(each, field)
        case list():
            for each in value:
                yield from leaves(each, name)
        case _:
            yield name, value


def fields(value: Any) -> set[str]:
    match value:
        case dict():
            return set(value).union(*map(fields, value.values()))
        case list():
            return set().union(*map(fields, value))
    return set()


def unmeasured(found: Any, known: Smallest) -> list[str]:
    """What is wrong with an object of figures."""
    faults = [f"{name} is missing" for name in known.figures.split() if name not in fields(found)]
    may_be_zero = {*known.zeros.split(), "round"}
    for name, value in leaves(found):
        if value is None:
            faults.append(f"{name} is None")
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0 and name not in may_be_zero:
            faults.append(f"{name} is {value}")
    return faults


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize(("name", "known"), cases())
def test_a_benchmark_measures_what_it_names(name: str, known: Smallest | None, tmp_path: Path) -> None:
    assert known is not None, f"benchmarks.{name} has no smallest run in this test"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *known.arguments.split()]
    run = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert run.returncode == 0, run.stderr[-5_000:]
    (line,) = run.stdout.splitlines()
    assert unmeasured(json.loads(line), known) == [], line
    reported = [json.loads(line) for line in run.stderr.splitlines() if line.startswith('{"measured"')]
    assert any(len(each) > 1 for each in reported), "no figure was reported before the end"


def test_every_benchmark_is_known_and_is_there() -> None:
    assert SMALLEST.keys() | PROGRAMS.keys() == runnable()


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({"ratio": 0.5, "aims": [{"measured": None}]}, ["measured is None"]),
        ({"ratio": 0}, ["ratio is 0"]),
        ({"cases": [{"ratio": 0.0, "met": False}]}, ["ratio is 0.0"]),
        ({"other": 1}, ["ratio is missing"]),
        ({"ratio": 0.5, "lost": 0}, []),
    ],
)
def test_a_figure_that_was_not_measured_is_noticed(found: dict[str, Any], fault: list[str]) -> None:
    assert unmeasured(found, Smallest("", "ratio", "lost")) == fault
