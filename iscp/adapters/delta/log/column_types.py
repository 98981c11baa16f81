"""Reads the names and types of a table's columns, for people: events and pages, nothing that decides about rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.core.values.untrusted_values import error_text

log = logging.getLogger(__name__)


def read_column_types(uri: str) -> Mapping[str, str]:
    """Return the type of each column by its name, in order; that of nested ones is `struct`, `array` or `map`.

    Return none if the table is not there, or cannot be read.
    """
    try:
        with delta_faults(f"open {uri}"):
            fields = json.loads(open_delta(uri).schema().to_json())["fields"]
        return {str(each["name"]): _named(each["type"]) for each in fields}
    except Exception as error:  # noqa: BLE001  (whoever shows columns shows none)
        log.info("columns.not_read", extra={"table": uri, "error": error_text(error)})
        return {}


def _named(kind: object) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)
