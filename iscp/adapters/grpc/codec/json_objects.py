"""Columns of rows as texts of JSON in messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iscp.core.values.errors import PermanentError
from iscp.core.values.json_values import json_value


def object_json(values: Mapping[str, Any]) -> str:
    """Return the values as an object of JSON, in ASCII."""
    # Half of a surrogate pair has an escape in JSON, and no form in a message of protobuf.
    return json.dumps(json_value(dict(values)), separators=(",", ":"))


def json_object(text: str) -> dict[str, Any]:
    """Return the object of JSON in a text, which is empty for an empty one. Raises PermanentError for anything else."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise PermanentError("the answer's columns are no JSON", remedy="Is the node newer than the client?") from error
    if not isinstance(found, dict):
        raise PermanentError("the answer's columns are no object", remedy="Is the node newer than the client?")
    return found
