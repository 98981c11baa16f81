"""The answer of a search: rows by their keys, and the version of the source that they are of."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from math import isfinite
from typing import Any

from iscp.index.model.bm25 import Explanation


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that was found. `columns` has the stored columns that were requested, `highlights` fragments by column.

    A higher `score` is better, whatever was searched. `explanation` is there if it was requested.
    """

    key: Mapping[str, Any]
    score: float
    columns: Mapping[str, Any] = field(default_factory=dict)
    highlights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    explanation: Explanation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as values that JSON has; see `json_value`."""
        shown: dict[str, Any] = {
            "key": {name: json_value(value) for name, value in self.key.items()},
            "score": json_value(self.score),
            "columns": {name: json_value(value) for name, value in self.columns.items()},
            "highlights": {name: list(fragments) for name, fragments in self.highlights.items()},
        }
        return shown if self.explanation is None else {**shown, "explanation": self.explanation.to_dict()}


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The hits of a search, the best first, and the state of the index that gave them.

    `version` is the version of the source that the hits are of, `version_at_s` its commit's time in seconds since 1970,
    `index_version` the version of the index itself. `total` is the number of all rows that the query finds, None if
    they were not counted. `cut` has the prefixes and fuzzy words that stand for more words than were searched for.
    """

    hits: tuple[Hit, ...]
    version: int
    version_at_s: float
    index_version: int
    took_ms: float
    total: int | None = None
    cut: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as values that JSON has."""
        return {
            "hits": [hit.to_dict() for hit in self.hits],
            "version": self.version,
            "version_at_s": self.version_at_s,
            "index_version": self.index_version,
            "took_ms": self.took_ms,
            "total": self.total,
            "cut": list(self.cut),
        }


def json_value(value: Any) -> Any:
    """Return a column's value as JSON has it.

    Dates and times are texts of ISO 8601, decimals their digits, bytes base64, and numbers that JSON lacks their names.
    """
    match value:
        case float() if not isfinite(value):
            return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return f"{value:f}"
        case date():  # also a time, which is a date in Python
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode("ascii")
        case list() | tuple():
            return [json_value(each) for each in value]
        case _:
            return str(value)
