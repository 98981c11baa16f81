"""Write queries of other engines as Spark takes them: names in its quotes, functions and literals by its rules."""

from __future__ import annotations

import logging

from iscp.core.values.untrusted_values import error_text

SPARK_ADAPTERS = frozenset({"", "databricks", "fabricspark", "glue", "spark"})
"""The adapters of dbt whose queries Spark takes as they are; a manifest without a name is taken as one of these."""

_DIALECTS = {"fabric": "tsql", "sqlserver": "tsql", "synapse": "tsql"}
"""The dialects of adapters that are called otherwise."""


def in_spark(sql: str, adapter: str) -> str:
    """Return the query as Spark takes it. Raises ValueError with the reason if it cannot be written so.

    What orders and divides as the other engine does is written out, as NULLS LAST is. Functions that are called the
    same are taken to be the same.
    """
    if adapter in SPARK_ADAPTERS:
        return sql
    # Here, as its import takes longer than the start of the program may.
    from sqlglot import transpile
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ErrorLevel, SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it says of SQL it does not know goes on stderr
    dialect = _DIALECTS.get(adapter, adapter)
    if dialect not in Dialect.classes:
        raise ValueError(f"it is written for {adapter!r:.80}, whose SQL is not known here")
    try:
        found = transpile(sql, read=dialect, write="spark", unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError, ValueError) as error:
        raise ValueError(f"it cannot be written as Spark takes it: {error_text(error)}") from error
    if len(found) != 1:
        raise ValueError("it is more than one statement")
    return found[0]
