"""Frames whose rows Spark caches, each for itself alone.

Spark gives the rows that it caches of one query to every other one whose plan is the same, in all sessions of its JVM,
and two reads of what a Delta table holds have the same plan whatever was committed between them: the later one would be
given the rows of the earlier.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.system.late_imports import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def cached(frame: DataFrame) -> DataFrame:
    """Return `frame`, computed once and cached until `release` of what this returns.

    A frame that is made of it cannot be released in its place: it has another plan, under which Spark caches nothing.
    """
    with spark_faults("have Spark keep rows"):
        mark = f"'{uuid.uuid4().hex}'"
        return frame.where(F.expr(f"{mark} = {mark}")).persist()


def release(frame: DataFrame) -> None:
    with spark_faults("have Spark keep rows no longer"):
        frame.unpersist(blocking=False)
