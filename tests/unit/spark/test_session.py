"""What is refused before a JVM is started."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from iscp.model.values.errors import ConfigurationError
from iscp.spark.session import SparkRuntime, SparkSettings


def test_a_work_directory_in_use_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "spark" / "kept"
    kept.mkdir(parents=True)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="in use by another Spark"):
            SparkRuntime.start(SparkSettings(work_dir=tmp_path))
    assert kept.exists()


def test_a_work_directory_that_cannot_be_made_is_a_fault_of_its_setting() -> None:
    with pytest.raises(ConfigurationError, match="/proc/foo cannot be written") as refused:
        SparkRuntime.start(SparkSettings(work_dir=Path("/proc/foo")))
    assert refused.value.field == "data_dir"
