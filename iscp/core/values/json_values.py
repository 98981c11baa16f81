"""Makes JSON's values of those that rows have."""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time
from typing import Any


def json_value(value: Any) -> Any:
    """Return the value as JSON has it: bytes in base64, times as ISO 8601, decimals and numbers that are none as
    text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(name): json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [json_value(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return str(value)
