"""One Spark for all integration tests: a JVM takes longer to start than most of them to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iscp.adapters.delta.session import SparkRuntime, SparkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRuntime]:
    # Within a few minutes the optimizing compiler costs more than it gives (docs/adr/0001-starting-spark.md).
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    runtime = SparkRuntime.start(SparkSettings(work_dir=tmp_path_factory.mktemp("spark"), conf=conf))
    yield runtime
    runtime.stop()
