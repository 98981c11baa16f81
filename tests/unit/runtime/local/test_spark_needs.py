"""What the jobs of a watch needed Spark for is kept until it is taken, and once."""

from __future__ import annotations

from iscp.core.job.usage import SparkNeed
from iscp.ports.work_timer import leave_to_spark, note_spark
from iscp.runtime.local.spark_needs import SparkNeeds
from tests.fakes.clock import FakeClock


def test_needs_come_together_until_they_are_taken_once() -> None:
    needs = SparkNeeds(FakeClock())
    with needs.noting() as tally:
        leave_to_spark("its query is analyzed")
        note_spark(started=True)
    needs.add("j-1", tally.spark)
    needs.add("j-1", None)
    needs.add("j-1", SparkNeed(("all rows are computed",)))
    needs.add("j-2", None)
    assert needs.take("j-1") == SparkNeed(("its query is analyzed", "all rows are computed"), started=True)
    assert (needs.take("j-1"), needs.take("j-2")) == (None, None)
