"""What runs jobs imports nothing that work without changes, or without Spark, can do without."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    *("pyspark", "pandas", "grpc", "google.protobuf", "opentelemetry", "pydantic", "lance", "cryptography"),
    *("sqlglot", "duckdb", "obstore", "prometheus_client"),
)
"""Packages whose import takes longer, or more memory, than all that an iteration without changes does."""

NOT_OF_A_RUN = (
    *("iscp.cluster.owner", "iscp.cluster.jobs", "iscp.cluster.membership", "iscp.cluster.builds"),
    *("iscp.cluster.requests.job_views", "iscp.cluster.worker_loop", "iscp.schedule"),
    *("iscp.algebra.algebra", "iscp.algebra.row_conditions", "iscp.delta.selftest"),
    *("iscp.views.analysis.query_analysis", "iscp.views.catalyst", "iscp.views.changes"),
    *("iscp.views.refresh.table_spans", "iscp.views.refresh.view_memory", "iscp.views.refresh.view_query"),
    *("iscp.spark.jvm_launch", "iscp.index.lance"),
)
"""Parts of iscp that a run without a cluster does without where it has nothing to do."""

WANTED = (
    "iscp.app.shard_parts",
    "iscp.app.local_engine",
    "iscp.consumers.replica.replica_kind",
    "iscp.consumers.changefeed.changefeed_kind",
    "iscp.consumers.view.view_kind",
    "iscp.delta.source.delta_catalog",
)

PRINT_HEAVY = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*[each for each in sys.argv[2:] if each in sys.modules])
"""


@pytest.mark.parametrize("name", WANTED)
def test_no_heavy_package_is_imported(name: str) -> None:
    command = [sys.executable, "-c", PRINT_HEAVY, name, *HEAVY]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []


def test_a_run_with_nothing_to_do_does_without_most_parts() -> None:
    """The kinds are found by their entry points, as the run finds them."""
    script = f"{PRINT_HEAVY}\nimport iscp.consumers.view.view_kind, iscp.consumers.replica.replica_kind"
    script += "\nprint(*[each for each in sys.modules if each.startswith(tuple(sys.argv[2:]))])"
    command = [sys.executable, "-c", script, "iscp.app.local_engine", *NOT_OF_A_RUN]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []
