"""Reads the rows of the files that commits added, whether or not the table has a change data feed.

Delta has no public way to read chosen files with all that a table may have (names mapped, types widened, deletion
vectors, partitions); its streams go the same way as this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from iscp.adapters.delta.commits import added_files
from iscp.ports.pipeline import ChangesUnavailable, SourceRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def added_rows(session: SparkSession, uri: str, span: SourceRange) -> DataFrame:
    """All rows that the commits of `span` added, with the columns of its last version."""
    jvm: Any = session._jvm
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(session._jsparkSession, uri)
    snapshot = log.getSnapshotAt(span.last_version, *_defaults(log, "getSnapshotAt", range(2, 5)))
    files = jvm.java.util.ArrayList()
    for version in range(span.from_version + 1, span.last_version + 1):
        lines = added_files(uri, version)
        if lines is None:
            raise ChangesUnavailable(f"version {version} is not in the log any more")
        for line in lines:
            files.add(delta.actions.Action.fromJson(line))
    chosen = jvm.scala.jdk.javaapi.CollectionConverters.asScala(files).toSeq()
    return DataFrame(log.createDataFrame(snapshot, chosen, *_defaults(log, "createDataFrame", range(3, 5))), session)


def _defaults(log: Any, method: str, places: range) -> list[Any]:
    return [getattr(log, f"{method}$default${place}")() for place in places]
