"""One Spark for all integration tests: a JVM takes longer to start than most of them to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iscp.adapters.delta.session import SparkRuntime, SparkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRuntime]:
    # Within a few minutes neither the optimizing compiler nor fused operators give back what they cost
    # (docs/adr/0001-starting-spark.md); the demo's tests run with both.
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.codegen.wholeStage": "false"}
    runtime = SparkRuntime.start(SparkSettings(work_dir=tmp_path_factory.mktemp("spark"), conf=conf))
    yield runtime
    runtime.stop()
