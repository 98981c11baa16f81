"""Writes rows into a target by Spark, each time in one commit that carries the job's seq and its tag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from iscp.adapters.delta.log.commits import APP_ID
from iscp.adapters.delta.log.log_guard import guard_log
from iscp.adapters.delta.rows.net_changes import OP
from iscp.adapters.delta.sink.arrow_write import KEY_TAKEN
from iscp.adapters.delta.sink.sink_position import tag_json
from iscp.adapters.delta.source.spark_read import require_files_of
from iscp.adapters.delta.spark.spark_engine import settings_for
from iscp.adapters.delta.spark.spark_errors import naming_lost_changes, spark_faults
from iscp.adapters.system.late_imports import F
from iscp.core.rows.netting import ABSENT_AFTER, ABSENT_BEFORE, Op
from iscp.core.sql.sql_names import quoted
from iscp.core.values.errors import EngineError
from iscp.ports.sink import CommitTag
from iscp.ports.source import KeysSharedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Delta keeps what it merges, since it reads twice and cannot know that it will see the same.
_AS_IT_IS = {"spark.databricks.delta.merge.materializeSource": "none"}
_ABSENT_BEFORE, _ABSENT_AFTER = (f"('{first}', '{second}')" for first, second in (ABSENT_BEFORE, ABSENT_AFTER))


def append_by_spark(frame: DataFrame, uri: str, tag: CommitTag, reread: bool, *, widen: bool = False) -> None:
    """Append the rows. Raises ChangesUnavailableError if they are gone before they are read.

    `reread`: they are read from the source only now. `widen`: the target gets the columns that it lacks.
    """
    guard_log(uri)
    with _reading(reread), spark_faults(f"append to {uri}"):
        _tagged(frame, "append", tag).option("mergeSchema", widen).save(uri)


def overwrite_by_spark(frame: DataFrame, uri: str, tag: CommitTag) -> None:
    """Replace all rows and all columns, whatever they were."""
    guard_log(uri)
    with spark_faults(f"overwrite {uri}"):
        writer = _tagged(frame, "overwrite", tag).option("overwriteSchema", "true")
        writer.option("partitionOverwriteMode", "static").save(uri)


def merge_by_spark(
    session: SparkSession,
    uri: str,
    frame: DataFrame,
    key: Sequence[str],
    tag: CommitTag,
    reread: bool = False,
    only_where: str = "",
) -> None:
    """Upsert and delete by key; null equals null. `only_where` is what else has to hold for a match.

    The commit's tag is in settings of `session` meanwhile, which nobody else may use then: not always the frame's own.

    Raises KeysSharedError where a key of op `i` or `p` is there already.
    """
    from delta.tables import DeltaTable

    settings = {_TXN_APP: APP_ID, _TXN_VERSION: str(tag.seq), _USER_METADATA: tag_json(tag)}
    if reread:
        settings |= _AS_IT_IS
    matches = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key) + only_where
    values = {quoted(name): F.col(f"s.{quoted(name)}") for name in frame.columns if name != OP}
    # Either rows of the source share the key, or the target is not what it seems: a difference will show.
    taken = {quoted(key[0]): F.raise_error(F.lit(KEY_TAKEN))}
    require_files_of(session, uri)
    with _reading(reread), _merging(uri), settings_for(session, settings):
        (
            DeltaTable.forPath(session, uri)
            .alias("t")
            .merge(frame.alias("s"), matches)
            .whenMatchedDelete(f"s.{OP} = '{Op.DELETE}'")
            .whenMatchedUpdate(f"s.{OP} IN {_ABSENT_BEFORE}", set=taken)  # type: ignore[arg-type]
            .whenMatchedUpdate(set=values)  # type: ignore[arg-type]
            .whenNotMatchedInsert(f"s.{OP} NOT IN {_ABSENT_AFTER}", values=values)  # type: ignore[arg-type]
            .execute()
        )


def _tagged(frame: DataFrame, mode: str, tag: CommitTag) -> DataFrameWriter:
    writer = frame.write.format("delta").mode(mode).option("txnAppId", APP_ID).option("txnVersion", tag.seq)
    return writer.option("userMetadata", tag_json(tag))


def _reading(reread: bool) -> AbstractContextManager[None]:
    """Raise ChangesUnavailableError if changes that are read only now are gone while they are written."""
    return naming_lost_changes() if reread else nullcontext()


@contextmanager
def _merging(uri: str) -> Iterator[None]:
    try:
        with spark_faults(f"merge into {uri}"):
            yield
    except EngineError as error:
        if KEY_TAKEN in str(error.__cause__):  # its message is cut before that
            raise KeysSharedError(KEY_TAKEN) from error
        raise
