"""What runs jobs imports nothing that work without changes, or without Spark, can do without."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "pandas", "grpc", "google.protobuf", "opentelemetry", "pydantic", "lance", "cryptography")
"""Packages whose import takes longer, or more memory, than all that an iteration without changes does."""

WANTED = (
    "iscp.bootstrap.shard_parts",
    "iscp.consumers.replica.replica_kind",
    "iscp.consumers.changefeed.changefeed_kind",
    "iscp.consumers.view.view_kind",
    "iscp.adapters.delta.source.delta_catalog",
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
