"""Try once for each kind of place whether commits of two processes exclude each other there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from iscp.adapters.delta.selftest.self_test import kind_of, self_test
from iscp.adapters.delta.spark.spark_access import SparkAccess
from iscp.adapters.delta.storage.locations import place
from iscp.core.access.account_roots import TARGET_FIELD
from iscp.core.settings.config import NodeConfig

log = logging.getLogger(__name__)


def run_self_tests(config: NodeConfig, spark: SparkAccess) -> set[str]:
    """Return the kinds of places where the self-test has passed. Raises if one does not, so that the node does not
    start.
    """
    below = {"log.uri": config.log.uri, **{f"storage.self_test.{n}": u for n, u in enumerate(config.storage.self_test)}}
    passed: set[str] = set()
    for field, uri in below.items():
        table = f"{place(uri)}/table"
        if (kind := kind_of(table, field)) not in passed:
            report = self_test(spark.root, table, field=field)
            log.info("selftest.passed", extra={"beside": report.directory, "took_s": report.took_s})
            passed.add(kind)
    return passed


def check_of_targets(spark: SparkAccess, tested: Collection[str]) -> Callable[[str], str]:
    """Lets targets pass: the first on each file system, or in each bucket, after the self-test has passed there."""
    passed = set(tested)

    def check(uri: str) -> str:
        kind = kind_of(place(uri), TARGET_FIELD)
        if kind not in passed:
            self_test(spark.root, place(uri), field=TARGET_FIELD)
            passed.add(kind)
        return uri

    return check
