"""Makes once, for a machine, what lets Spark start quickly: jars, trust store, archive of classes.

`python -m iscp.spark.warm_up` does it from a setup script; when all is there it costs next to nothing.
The option `--s3` fetches the jars for S3 too.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.model.values.errors import EngineError, IscpError
from iscp.model.values.untrusted_values import one_line
from iscp.spark.java import find_java, missing_delta_jars, s3_jars
from iscp.spark.session import SparkRuntime, SparkSettings, class_archive, default_cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ARCHIVE_TIMEOUT_S = 180.0
"""How long the JVM may take to write the class archive at its end, some 10 s on an idle machine; then it is killed, and
the warm-up fails.
"""


def warm(cache_dir: Path, say: Callable[[str], None] = lambda words: None) -> bool:
    """Fill the cache for this Java and these jars; return False if it was full already.

    Raises what SparkRuntime.start raises. Several processes may do this at once: one works, the others wait. `say` gets
    a line before each step that takes long.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / "warm.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that fills {cache_dir}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if missing_delta_jars(cache_dir):
            say(f"downloading Delta's jars into {cache_dir}")
        archive = class_archive(cache_dir, dict(os.environ))
        if archive.path.exists():
            return False
        say("starting once to archive its classes, which takes a minute or so")
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".warm-") as scratch:
            made = Path(scratch) / "classes.jsa"
            settings = SparkSettings(work_dir=Path(scratch), cache_dir=cache_dir, master="local[2]")
            spark = SparkRuntime.start_training(settings, made)
            try:
                _train(spark.new_session(), Path(scratch) / "tables")
            finally:
                spark.stop(ARCHIVE_TIMEOUT_S)
            if not made.exists():
                raise EngineError("the JVM wrote no archive of its classes")
            archive.publish(made)
        log.info("classes.archived", extra={"path": str(archive.path), "bytes": archive.path.stat().st_size})
        return True


def _train(spark: SparkSession, tables: Path) -> None:
    """Loads the classes that an iteration needs: changes of a table, merged into another and appended to it."""
    from pyspark.sql import functions as f

    source, target = str(tables / "source"), str(tables / "target")
    rows = spark.range(1000).select("id", f.col("id").cast("string").alias("text"), f.rand(0).alias("number"))
    rows.write.format("delta").option("delta.enableChangeDataFeed", "true").save(source)
    spark.sql(f"UPDATE delta.`{source}` SET text = 'changed' WHERE id % 10 = 0")
    spark.sql(f"DELETE FROM delta.`{source}` WHERE id % 10 = 1")
    spark.read.format("delta").option("versionAsOf", 0).load(source).write.format("delta").save(target)
    for version in (1, 2):
        changes = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", version)
            .option("endingVersion", version)
            .load(source)
            .where("_change_type != 'update_preimage'")
        )
        changes.createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO delta.`{target}` t USING changes c ON t.id <=> c.id"
            " WHEN MATCHED AND c._change_type = 'delete' THEN DELETE WHEN MATCHED THEN UPDATE SET *"
            " WHEN NOT MATCHED THEN INSERT *"
        )
    spark.read.format("delta").load(source).write.format("delta").mode("append").save(target)
    spark.read.format("delta").load(target).groupBy("text").count().orderBy("text").toArrow()
    spark.sql(f"DESCRIBE HISTORY delta.`{target}`").collect()


def main(arguments: Sequence[str]) -> int:
    cache_dir, environ = default_cache_dir(os.environ), dict(os.environ)
    try:
        made = warm(cache_dir, lambda words: print(f"Spark: {words}", flush=True))  # noqa: T201
        if "--s3" in arguments:
            s3_jars(cache_dir, find_java(environ), environ)
    except IscpError as fault:
        print(one_line(f"iscp: {fault}"), file=sys.stderr)  # noqa: T201
        return 1
    print("Spark: prepared" if made else "Spark: ready")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
