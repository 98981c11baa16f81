"""Sets properties of a user's table, by Spark: deltalake unsets none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SetProperties = Callable[[str, Mapping[str, str | None]], None]
"""Sets properties of the table at a URI; None unsets one."""


def property_setter(session: SparkSession) -> SetProperties:
    return lambda uri, values: set_properties(session, uri, values)


def set_properties(session: SparkSession, uri: str, values: Mapping[str, str | None]) -> None:
    """Set the properties, then unset others: each is a commit of its own, and after the first nothing is lost yet.

    Raises Conflict where another writer was first.
    """
    given = [f"{_text(name)} = {_text(value)}" for name, value in values.items() if value is not None]
    gone = [_text(name) for name, value in values.items() if value is None]
    table = f"delta.{quoted(uri)}"
    with spark_faults(f"set properties of {uri}"):
        if given:
            session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({', '.join(given)})")
        if gone:
            session.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({', '.join(gone)})")


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
