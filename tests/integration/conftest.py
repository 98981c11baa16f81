"""One Spark for all integration tests: a JVM takes longer to start than most of them to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.system.http_exchange import free_port
from tests import quick_spark
from tests.fakes.s3 import FakeS3, asking, delete_all, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def s3_to_be(tmp_path_factory: pytest.TempPathFactory) -> FakeS3:
    """Where S3 is once `s3` has started it: Spark is configured for it before. To `stray` all go with a wrong key."""
    buckets = {"acme": "acme", "other": "other", "stray": "acme"}
    return FakeS3.with_keys(free_port(), tmp_path_factory.mktemp("keys"), buckets)


@pytest.fixture(scope="session")
def s3_up(s3_to_be: FakeS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeS3]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log", s3_to_be):
        yield s3_to_be


@pytest.fixture(scope="module")
def s3(s3_up: FakeS3) -> Iterator[FakeS3]:
    """An empty bucket, to which this process goes too."""
    with asking(s3_up):
        delete_all(s3_up.uri(""))
        yield s3_up


@pytest.fixture(scope="session")
def spark_runtime(tmp_path_factory: pytest.TempPathFactory, s3_to_be: FakeS3) -> Iterator[SparkRuntime]:
    work_dir = tmp_path_factory.mktemp("spark")
    with asking(s3_to_be):  # the JVM inherits these variables
        settings = SparkSettings(work_dir=work_dir, conf=quick_spark.QUICKER_CONF, s3=s3_to_be.config)
        runtime = SparkRuntime.start(settings)
    yield runtime
    runtime.stop()


@pytest.fixture(autouse=True)
def _nothing_stays_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark_runtime" not in request.fixturenames:
        return
    session = request.getfixturevalue("spark_runtime").root
    left = not nothing_kept(session)
    session.catalog.clearCache()  # what one test left is not the next one's fault
    assert not left, "rows that Spark goes on keeping are given to later queries"


def nothing_kept(session: SparkSession) -> bool:
    return bool(session._jsparkSession.sharedState().cacheManager().isEmpty())
