"""Compare what an index is to hold with the columns of its source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import shown
from iscp.index.model.index_definition import IndexDefinition
from iscp.index.model.option_values import fault

VECTOR_TYPES = ("array<float>", "array<double>")
"""The types of a column of vectors, by Spark's names. Doubles are stored with the definition's precision."""

STORABLE_TYPES = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string", "date", "timestamp"),
    *("timestamp_ntz", "binary"),
)
"""The types of columns that an index stores, by Spark's names; a decimal has its precision and scale behind it."""

_SAME = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""The types that Delta's log and Spark's SQL name differently."""

_KEY_PATH = "spec.iteration.consumer.key"
_DECIMAL = re.compile(r"decimal(?:\(\d{1,2},\s*-?\d{1,2}\))?")
_TEXT = re.compile(r"string|(?:var)?char\(\d{1,10}\)")


def check_columns(
    definition: IndexDefinition, source_columns: Mapping[str, str], key: Sequence[str]
) -> IndexDefinition:
    """Return the definition with its columns spelled as the source has them.

    `source_columns` has the type of each column by Spark's name. Names match without regard to case, as in Spark.
    Raises InvalidRequest with the option's path for a column that is missing, or of a type that does not fit.
    """
    source = _Source(source_columns)
    columns = tuple(
        replace(each, name=source.required(each.name, "columns", _is_text, "string")) for each in definition.columns
    )
    vector = definition.vector
    if vector is not None and vector.column:
        wanted = " or ".join(VECTOR_TYPES)
        vector = replace(vector, column=source.required(vector.column, "column", _is_vector, wanted))
    elif vector is not None:
        vector = replace(vector, text=source.required(vector.text, "text", _is_text, "string"))
    stored = tuple(
        source.required(name, "stored", is_storable, ", ".join(STORABLE_TYPES)) for name in definition.stored
    )
    if not key:
        raise InvalidRequest(
            "is missing: an index finds rows by it", field=_KEY_PATH, remedy="Name the columns that identify a row"
        )
    for name in key:
        source.refuse_key(name)
    return replace(definition, columns=columns, vector=vector, stored=stored)


def is_storable(kind: str) -> bool:
    """Return whether an index stores columns of a type, by Spark's name."""
    lowered = _SAME.get(kind.lower(), kind.lower())
    return bool(lowered in STORABLE_TYPES or _DECIMAL.fullmatch(lowered) or _TEXT.fullmatch(lowered))


def _is_text(kind: str) -> bool:
    return _TEXT.fullmatch(kind.lower()) is not None


def _is_vector(kind: str) -> bool:
    return kind.lower() in VECTOR_TYPES


class _Source:
    """The columns of a source, found without regard to case."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._by_name = {name.lower(): name for name in columns}

    def required(self, name: str, option: str, fits: Callable[[str], bool], wanted: str) -> str:
        """Return the source's spelling of a column. Raises InvalidRequest if it is not there, or does not fit."""
        found = self._by_name.get(name.lower())
        if found is None:
            raise fault(option, f"names {shown(name)}, which the source does not have", self._remedy())
        if not fits(self._columns[found]):
            raise fault(
                option,
                f"names {shown(found)}, which has the type {shown(self._columns[found])}",
                f"Name columns of the type {wanted}",
            )
        return found

    def refuse_key(self, name: str) -> None:
        """Raise InvalidRequest for a column of the key that is not there, or cannot be stored."""
        found = self._by_name.get(name.lower())
        if found is None:
            raise InvalidRequest(
                f"names {shown(name)}, which the source does not have", field=_KEY_PATH, remedy=self._remedy()
            )
        if not is_storable(self._columns[found]):
            raise InvalidRequest(
                f"names {shown(found)}, which has the type {shown(self._columns[found])}",
                field=_KEY_PATH,
                remedy=f"Name columns of the types {', '.join(STORABLE_TYPES)}",
            )

    def _remedy(self) -> str:
        return f"Its columns are {', '.join(self._columns)}"
