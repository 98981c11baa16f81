"""What a session's optimizer does without, and how full the JVM is."""

from __future__ import annotations

import pytest

from iscp.adapters.delta.spark.session import SparkRuntime
from iscp.adapters.delta.spark.spark_engine import heap_share_of, without_rules

pytestmark = pytest.mark.spark

EXCLUDED, PREFIX = "spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer"


@pytest.mark.parametrize("users", ["", f"{PREFIX}.ConstantFolding"])
def test_rules_that_a_user_excludes_stay_excluded(spark_runtime: SparkRuntime, users: str) -> None:
    session = spark_runtime.new_session()
    if users:
        session.conf.set(EXCLUDED, users)
    with without_rules(session, ["LimitPushDown"]), without_rules(session, ["CollapseProject"]):
        found = session.conf.get(EXCLUDED)
    wanted = [*([users] if users else []), f"{PREFIX}.LimitPushDown", f"{PREFIX}.CollapseProject"]
    assert found == ",".join(wanted)
    assert session.conf.get(EXCLUDED, "") == users


def test_what_is_in_use_is_known_after_a_collection(spark_runtime: SparkRuntime) -> None:
    context = spark_runtime.root.sparkContext
    assert context._jvm is not None
    context._jvm.java.lang.System.gc()
    share = heap_share_of(context)
    assert 0 < share < 1
    assert heap_share_of(context) == share
