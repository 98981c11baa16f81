"""Give tables whose names in a query have several parts, as `sales.orders`, names of one part."""

from __future__ import annotations

from collections.abc import Mapping

import sqlglot
from sqlglot import exp

from iscp.core.sql.sql_bounds import too_deep
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import first_line


def with_plain_names(sql: str, tables: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return the query and its tables; a query without such names stays as it is, to the letter.

    Raises InvalidRequest if it has some and cannot be read.
    """
    if not any("." in name for name in tables):
        return sql, tables
    plain = {name.lower(): name.replace(".", "__") for name in tables}
    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except RecursionError as error:
        raise too_deep("sql") from error
    except sqlglot.errors.SqlglotError as error:
        raise InvalidRequest(f"is not SQL: {first_line(error)}", field="sql", remedy="Correct the query") from error
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts)
        if "." in name and name.lower() in plain:
            called = table.alias or table.name  # columns go on by the last part
            table.replace(exp.alias_(exp.to_table(plain[name.lower()]), called, table=True))
    for column in tree.find_all(exp.Column):
        *qualifier, _ = column.parts
        if ".".join(part.name for part in qualifier).lower() in plain:  # not a field within a column
            column.set("db", None)
            column.set("catalog", None)
    return tree.sql(dialect="spark"), {plain[name.lower()]: uri for name, uri in tables.items()}
