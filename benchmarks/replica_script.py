"""The script that somebody would write for some replicas: PySpark, the change data feed, and MERGE."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from iscp.spark.java import delta_jars, find_java
from iscp.spark.jvm_launch import default_cache_dir

_SCRIPT = """
import json, os
from pathlib import Path
from delta import DeltaTable
from pyspark.sql import SparkSession, Window, functions as F

JOBS = json.loads(%(jobs)r)
STATE = Path(%(state)r)
os.environ["JAVA_HOME"] = %(java)r
spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.jars", %(jars)r)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.ui.enabled", "false")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
for job in JOBS:
    columns, where = job.get("columns", ["id", "customer", "total"]), job.get("where", "true")
    done = STATE / job["name"]
    newest = DeltaTable.forPath(spark, job["table"]).history(1).first()["version"]
    if not done.exists():
        rows = spark.read.format("delta").load(job["table"]).where(where).select(*columns)
        rows.write.format("delta").mode("overwrite").save(job["target"])
    elif int(done.read_text()) < newest:
        feed = (
            spark.read.format("delta").option("readChangeFeed", "true")
            .option("startingVersion", int(done.read_text()) + 1).load(job["table"])
            .where("_change_type <> 'update_preimage'")
        )
        last = Window.partitionBy("id").orderBy(F.desc("_commit_version"))
        changes = feed.withColumn("n", F.row_number().over(last)).where("n = 1")
        keep = F.expr(f"_change_type <> 'delete' AND ({where})").alias("keep")
        changes = changes.select(*columns, keep)
        values = {name: f"s.{name}" for name in columns}
        (
            DeltaTable.forPath(spark, job["target"]).alias("t").merge(changes.alias("s"), "s.id = t.id")
            .whenMatchedDelete("NOT s.keep").whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("s.keep", values=values).execute()
        )
    done.write_text(str(newest))
spark.stop()
"""


def script_of(jobs: Sequence[Mapping[str, object]], state: Path) -> str:
    """Return the script that keeps these replicas, and remembers in `state` how far each has come."""
    environ: dict[str, str] = {}
    cache, java = default_cache_dir(environ), find_java(environ)
    jars = ",".join(str(each) for each in delta_jars(cache, java, environ))
    home = str(java.executable.parent.parent)
    return _SCRIPT % {"jobs": json.dumps(list(jobs)), "state": str(state), "jars": jars, "java": home}
