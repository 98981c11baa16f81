"""Spark's jobs of one thread are cancelled once they have taken too long; nobody else's are."""

from __future__ import annotations

import threading
import time
from math import inf

import pytest
from py4j.protocol import Py4JJavaError

from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import JobBudget

pytestmark = pytest.mark.spark

ENDLESS = "select max(hash(id)) from range(1000000000000)"
LONG = "select max(hash(id)) from range(2000000)"


def test_what_takes_longer_than_it_may_is_cancelled_and_later_jobs_are_not(spark_runtime: SparkRuntime) -> None:
    session = spark_runtime.new_session()
    with JobBudget(session, 0.2) as budget, pytest.raises(Py4JJavaError, match="cancelled"):
        session.sql(ENDLESS).collect()
    assert budget.spent
    assert session.range(10).count() == 10
    each_is_short = iter(lambda: session.range(10).count(), 0)
    with JobBudget(session, 0.2) as again, pytest.raises(Py4JJavaError, match="cancelled"):
        list(each_is_short)
    assert again.spent


def test_what_comes_after_the_end_of_a_budget_may_take_its_time_and_so_may_others(spark_runtime: SparkRuntime) -> None:
    session, done = spark_runtime.new_session(), []
    other = threading.Thread(target=lambda: done.append(spark_runtime.new_session().sql(LONG).collect()))
    other.start()
    session.range(1).schema  # noqa: B018  # no job
    with JobBudget(session, 1.0) as budget:  # longer than it takes to get to its end on a busy machine
        budget.end()
        time.sleep(1.1)
        assert session.sql(LONG).collect()
    other.join()
    assert done
    assert not budget.spent
    with JobBudget(session, inf) as endless:
        assert session.sql(LONG).collect()
    assert not endless.spent
