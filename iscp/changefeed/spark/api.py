"""Changefeeds in Spark: functions for ulids, frames behind a cursor, and a streaming source (docs/changefeed.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.changefeed.model.ulid import Cursor
from iscp.changefeed.spark.functions import register_functions
from iscp.changefeed.spark.stream import frame_behind, register_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "register"]


def register(spark: SparkSession) -> None:
    """Give the session the functions `ulid_time`, `ulid_text`, `ulid_binary` and `ulid_at`, and the format
    `changefeed`. Raises EngineError."""
    register_functions(spark)
    register_source(spark)


def read(spark: SparkSession, uri: str | Path, cursor: Cursor | str | None = None) -> DataFrame:
    """Return the rows of a changefeed behind a cursor (or its text), or all that are left: as of now, in no order.

    Raises InvalidRequest for a cursor of another feed, CursorBehind where rows that come next were purged,
    TableNotFound, ConfigurationError, StorageError, EngineError.
    """
    return frame_behind(spark, os.fspath(uri), None if cursor is None else Cursor.of(cursor))
