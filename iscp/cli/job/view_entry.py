"""Jobs of the kind `view` in job files: what their options have to be, and local paths in them made absolute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iscp.cli.shell.arguments import absolute_table
from iscp.core.spec.view_fields import REFRESH_POLICIES
from iscp.core.values.errors import InvalidRequest


def view_options(options: Any, path: str) -> dict[str, Any]:
    """Raises InvalidRequest with the place below `path` that is at fault; the query itself is for the node to check."""
    if not isinstance(options, Mapping):
        raise InvalidRequest("is missing", field=path, remedy="Write `options: {sql: SELECT …, tables: {name: URI}}`")
    if not isinstance(sql := options.get("sql"), str) or not sql.strip():
        raise InvalidRequest("is missing", field=f"{path}.sql", remedy="Write `sql: SELECT …`")
    tables = options.get("tables")
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidRequest("is missing", field=f"{path}.tables", remedy="Write `tables: {orders: /lake/orders}`")
    for name, uri in tables.items():
        if not isinstance(name, str) or not isinstance(uri, str) or not uri:
            raise InvalidRequest("must be a text", field=f"{path}.tables.{name}", remedy="Write as in orders: /lake/o")
    if options.get("refresh", REFRESH_POLICIES[0]) not in REFRESH_POLICIES:
        raise InvalidRequest("is not known", field=f"{path}.refresh", remedy=f"Use {', '.join(REFRESH_POLICIES)}")
    return {**options, "tables": {name: absolute_table(uri) for name, uri in tables.items()}}
