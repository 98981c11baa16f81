"""Enables table features that a target needs for columns of some types, as Delta does not add them by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.system.late_imports import T
from iscp.core.sql.sql_names import quoted
from iscp.core.values.errors import TableNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def enable_features(session: SparkSession, uri: str, schema: T.StructType) -> None:
    """Enable the features on the table that columns of `schema` need.

    This is a commit that changes properties alone. So the target's position stays as it is, and no harm is done if the
    commit that needs the features never comes.
    """
    features = {T.TimestampNTZType: "timestampNtz", T.VariantType: "variantType"}
    needed = {features[kind] for kind in _types(schema) if kind in features}
    if not needed:
        return
    with suppress(TableNotFound), delta_faults(f"open {uri}"):  # one that is made now gets them by itself
        missing = needed - {*(open_delta(uri).protocol().writer_features or ())}
        if missing:
            _enable(session, uri, sorted(missing))


def _enable(session: SparkSession, uri: str, features: Sequence[str]) -> None:
    properties = ", ".join(f"'delta.feature.{name}' = 'supported'" for name in features)
    with spark_faults(f"enable {', '.join(features)} on {uri}"):
        session.sql(f"ALTER TABLE delta.{quoted(uri)} SET TBLPROPERTIES ({properties})")


def _types(kind: T.DataType) -> Iterator[type[T.DataType]]:
    """Yield the types of a schema, also those within others."""
    match kind:
        case T.StructType(fields=fields):
            for field in fields:
                yield from _types(field.dataType)
        case T.ArrayType(elementType=inner):
            yield from _types(inner)
        case T.MapType(keyType=key, valueType=value):
            yield from _types(key)
            yield from _types(value)
        case _:
            yield type(kind)
