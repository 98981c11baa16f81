"""Spark on executors in processes of their own, which have nothing but what is sent to them.

`local-cluster` starts a master, a worker and executors itself; nodes on a cluster that others run are in
`tests/e2e/test_spark_master.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_spark_session import child, said

pytestmark = pytest.mark.spark

PROGRAM = """
runtime = start("local-cluster[2,1,768]")
spark, table = runtime.new_session(), sys.argv[1] + "/table"
spark.range(0, 4000, numPartitions=4).selectExpr("id", "id % 5 AS five").write.format("delta").option(
    "delta.enableDeletionVectors", "true"
).save(table)
spark.sql(f"DELETE FROM delta.`{table}` WHERE five = 1")
spark.sql(
    f"MERGE INTO delta.`{table}` t USING (SELECT 5 AS id, 9L AS five) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
rows = spark.read.format("delta").load(table).groupBy("five").count().toArrow().to_pylist()
store = spark.sparkContext._jsc.sc().statusStore()
executors = store.executorList(False)
tasks = {executors.apply(n).id(): executors.apply(n).completedTasks() for n in range(executors.size())}
say(rows={row["five"]: row["count"] for row in rows}, tasks=tasks, alive=runtime.alive())
spark.sparkContext._jsc.sc().stop()
deadline_s = time.monotonic() + 30
while runtime.alive() and time.monotonic() < deadline_s:
    time.sleep(0.05)
say(alive=runtime.alive())
runtime.stop()
"""


@pytest.mark.further  # each time: tests/unit/spark/test_jvm_launch.py
def test_they_have_deltas_jars_and_do_the_work_and_their_end_is_noticed(tmp_path: Path) -> None:
    conf = {"spark.executor.memory": "768m", "spark.driver.host": "127.0.0.1"}
    running = child(tmp_path, PROGRAM, conf, SPARK_SCALA_VERSION="2.13")  # else it looks for directories of a build
    done = said(running)
    assert done["rows"] == {"0": 799, "2": 800, "3": 800, "4": 800, "9": 1}
    tasks = done["tasks"]
    assert isinstance(tasks, dict)
    assert tasks.pop("driver") == 0
    assert len(tasks) == 2
    assert all(tasks.values())
    assert done["alive"] is True
    assert said(running) == {"alive": False}, "no application, nothing to go on with"
    assert running.wait(60) == 0
