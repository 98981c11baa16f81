"""The machine that figures come from, and the versions of what ran on it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIBRARIES = ("pyspark", "delta-spark", "deltalake", "duckdb", "pyarrow")


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to compare figures with others. `load_before` is the load average of a minute."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _value("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in LIBRARIES},
        "load_before": round(os.getloadavg()[0], 2),
    }


def _value(file: str, name: str) -> str:
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
