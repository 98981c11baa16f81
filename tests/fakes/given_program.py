"""A user's process with a SparkSession of its own, which iscp is given: `given_program.py DIRECTORY ORDER`.

ORDER is JSON: `master`, `launch` (the settings with which Spark starts), and `acts`, which follow on each other in one
JVM. What each has found is one line of JSON on standard output.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark import RDD
from pyspark.sql import SparkSession

import iscp
from iscp.cli.demo.lake import read
from iscp.model.values.errors import EngineError, InvalidRequest
from iscp.spark.given_spark import GivenSpark
from iscp.spark.spark_engine import SparkEngine

SQL = "SELECT g, sum(n) AS total, count(*) AS many FROM orders WHERE n > 1 GROUP BY g"
KATHMANDU = "Asia/Kathmandu"

SLEEPS_S = 2.0
WAIT_S = 60.0


def held(root: Path) -> dict[str, list[Any]]:
    copy, totals = (read(f"{root}/{name}") for name in ("copy", "totals"))
    return {
        "copy": copy.sort_by("id").select(["id", "g", "n"]).to_pylist(),
        "totals": totals.sort_by("g").select(["g", "total", "many"]).to_pylist(),
    }


def orders(ids: range, by: int) -> pa.Table:
    return pa.table({"id": list(ids), "g": [each % 3 for each in ids], "n": [each * by for each in ids]})


def users_state(spark: SparkSession) -> dict[str, Any]:
    """What is the user's own: the session, what the thread does, and what the process has of Spark."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc.sc()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    active = SparkSession.getActiveSession()
    root_logger = jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    return {
        "conf": dict(spark.conf.getAll),
        "context": sorted(spark.sparkContext.getConf().getAll()),
        "hadoop": sorted((name, hadoop.get(name)) for name in ("fs.defaultFS", "fs.s3.impl", "fs.file.impl")),
        "properties": dict(context.getLocalProperties()),
        "active": active is spark,
        "java_active": str(jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()),
        "views": sorted(table.name for table in spark.catalog.listTables()),
        "log_level": str(root_logger.getLevel()),
        "frames": str(RDD.toDF),
        "kept": bool(spark._jsparkSession.sharedState().cacheManager().isEmpty()),
    }


def follow(spark: SparkSession, root: Path) -> dict[str, Any]:
    """A replica and a view are built and brought up to date; the user's state is read before and after."""
    spark.conf.set("spark.sql.session.timeZone", KATHMANDU)
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    spark.range(3).createOrReplaceTempView("orders")  # as the view calls its table
    spark.sparkContext.setJobGroup("users-group", "what the user does")
    spark.sparkContext.addJobTag("users-tag")
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "users-pool")
    spark.createDataFrame([(1,)], "a int")  # makes the session this thread's
    uri = f"{root}/orders"
    write_deltalake(uri, orders(range(50), 1), configuration={"delta.enableChangeDataFeed": "true"})
    before = users_state(spark)
    config = root / "config.toml"
    config.write_text("[spark]\ndirect_bytes_max = 0\n")  # from that size on Spark reads changes
    lake = iscp.local(spark, config=config)
    given = users_state(spark)
    copy = lake.replica(uri, f"{root}/copy", key=["id"])
    totals = lake.view("totals", SQL, target=f"{root}/totals", tables={"orders": uri})
    copy.refresh()
    totals.refresh()
    changed = DeltaTable(uri).merge(orders(range(40, 60), 2), "t.id = s.id", source_alias="s", target_alias="t")
    changed.when_matched_update_all().when_not_matched_insert_all().execute()
    seen = [each.forecast().action for each in (copy, totals)]
    strategies = [each.refresh().strategy for each in (copy, totals)]
    equal = [each.verify().equal for each in (copy, totals)]
    totals.explain()
    source = DeltaTable(uri).to_pyarrow_table().sort_by("id")
    spark.read.format("delta").load(uri).createOrReplaceTempView("judged")
    wanted = spark.sql(SQL.replace("orders", "judged")).collect()
    spark.catalog.dropTempView("judged")
    after = users_state(spark)
    lake.close()
    return {
        "seen": seen,
        "strategies": strategies,
        "equal": equal,
        "changed_by_giving": [name for name in before if before[name] != given[name]],
        "changed": [name for name in before if before[name] != after[name]],
        "held": held(root),
        "wanted": {
            "copy": source.select(["id", "g", "n"]).to_pylist(),
            "totals": sorted((row.asDict() for row in wanted), key=lambda row: row["g"]),
        },
        "users_rows": spark.sql("SELECT count(*) AS many FROM orders").collect()[0].many,
        "stopped": bool(spark.sparkContext._jsc.sc().isStopped()),
        "written_by": DeltaTable(f"{root}/copy").history(1)[0]["engineInfo"],
    }


def kill(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Of two jobs that run, iscp's is cancelled, and the user's comes to its end."""
    spark.conf.set("spark.sql.session.timeZone", KATHMANDU)
    given = GivenSpark(spark)
    zone = given.root.conf.get("spark.sql.session.timeZone")
    engine = SparkEngine(given.root, given.new_session)
    said: dict[str, str] = {}

    def sleep(who: str, seconds: float, session: SparkSession) -> None:
        try:
            millis = int(seconds * 1000)
            session.range(1).selectExpr(f"reflect('java.lang.Thread', 'sleep', {millis}L + id)").collect()
            said[who] = "done"
        except Exception as error:  # noqa: BLE001 (what it is decides)
            said[who] = "cancelled" if "cancel" in str(error).lower() else repr(error)

    def by_iscp() -> None:
        with engine.session() as session:
            engine.label("iscp-orders-1")
            sleep("iscp", WAIT_S * 2, session)

    def by_user() -> None:
        spark.sparkContext.setJobGroup("users", "what the user does")
        sleep("user", SLEEPS_S, spark)

    threads = [threading.Thread(target=each, daemon=True) for each in (by_iscp, by_user)]
    for thread in threads:
        thread.start()
    tracker, ends_at_s = spark.sparkContext.statusTracker(), time.monotonic() + WAIT_S
    while len(tracker.getActiveJobsIds()) < len(threads) and time.monotonic() < ends_at_s:
        time.sleep(0.05)
    began_s = time.monotonic()
    given.kill()
    for thread in threads:
        thread.join(WAIT_S)
    return {
        "said": said,
        "took_s": time.monotonic() - began_s,
        "alive": given.alive(),
        "zone": zone,
        "refused": _refusal(given.new_session),
        "users": spark.range(5).count(),
    }


def give(spark: SparkSession, root: Path) -> dict[str, Any]:
    return {"refused": _refusal(lambda: GivenSpark(spark))}


def stopped(spark: SparkSession, root: Path) -> dict[str, Any]:
    spark.stop()
    return {"refused": _refusal(lambda: GivenSpark(spark))}


def _refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except (InvalidRequest, EngineError) as error:
        return str(error)
    return ""


ACTS: dict[str, Callable[[SparkSession, Path], dict[str, Any]]] = {
    "follow": follow,
    "kill": kill,
    "give": give,
    "stopped": stopped,
}


def main(root: Path, order: dict[str, Any]) -> None:
    for number, act in enumerate(order["acts"]):
        directory = root / str(number)
        directory.mkdir()
        conf = dict(order["launch"])
        if act.get("by_iscp"):
            # The jars are those with which the JVM has started: Delta's too, which its own helper would fetch.
            conf = {**conf, **iscp.spark_conf(), "spark.jars": conf["spark.jars"]}
        conf |= act.get("conf", {})
        spark = SparkSession.builder.master(order["master"]).config(map=conf).getOrCreate()
        found = ACTS[act["act"]](spark, directory)
        print(json.dumps(found), flush=True)  # noqa: T201
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
