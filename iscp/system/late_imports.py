"""Modules of libraries, imported when first used: to import them takes longer than work without changes."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb
    import obstore
    import pyarrow.compute as pc
    import pyarrow.fs as pafs
    import pyarrow.parquet as pq
    import sqlglot
    from obstore import exceptions as obstore_errors
    from pyspark import errors as E
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
    from pyspark.sql.pandas import types as A
    from sqlglot import exp

__all__ = [
    "A",
    "E",
    "F",
    "LateModule",
    "T",
    "column_of_java",
    "do_without_pandas",
    "duckdb",
    "exp",
    "frame_of_java",
    "obstore",
    "obstore_errors",
    "pafs",
    "pc",
    "pq",
    "sqlglot",
]


class LateModule:
    """The stand-in of a module, whose names are those of the module."""

    def __init__(self, name: str) -> None:
        self._late_name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who only looks what this is needs no module
            raise AttributeError(name)
        # The package comes first, whole. Its parts import each other in circles, so that threads which begin with
        # different parts would each see some of them half made (ImportError).
        import_module(self._late_name.partition(".")[0])
        found = getattr(import_module(self._late_name), name)
        setattr(self, name, found)
        return found


class _Hidden(MetaPathFinder):
    """Has a module not be found, for as long as this is the first finder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is not imported as yet", name=fullname)


def do_without_pandas() -> None:
    """Have Arrow import pandas when a frame is made of a table, and not with the first value, as it otherwise does.

    The import takes longer than all else of a small run. Arrow then knows no series of pandas as such until somebody
    has made a frame: whoever calls this must know all code of the process, and call it before there are threads.
    """
    if "pandas" in sys.modules:
        return
    hiding = _Hidden("pandas")
    sys.meta_path.insert(0, hiding)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(hiding)


def frame_of_java(dataset: Any, session: SparkSession) -> DataFrame:
    """Return the frame of a Dataset of the JVM."""
    from pyspark.sql import DataFrame

    return DataFrame(dataset, session)


def column_of_java(column: Any) -> Column:
    """Return the column of one of the JVM."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    return ClassicColumn(column)


if not TYPE_CHECKING:
    A = LateModule("pyspark.sql.pandas.types")
    E = LateModule("pyspark.errors")
    F = LateModule("pyspark.sql.functions")
    T = LateModule("pyspark.sql.types")
    exp = LateModule("sqlglot.expressions")
    obstore = LateModule("obstore")
    obstore_errors = LateModule("obstore.exceptions")
    duckdb = LateModule("duckdb")
    pafs = LateModule("pyarrow.fs")
    pc = LateModule("pyarrow.compute")
    pq = LateModule("pyarrow.parquet")
    sqlglot = LateModule("sqlglot")
