"""Write a query's algebra as JSON for the file beside a view's rows, and read it without trusting it.

The file lies in a tenant's directory. Whatever in it is not exactly what is written here counts as no file: another
format, another query, other tables or schemas, other versions of what has analyzed the query, and an algebra that does
not fit the tables' columns. It may be another query's: that cannot be seen from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.core.algebra.algebra import Rel
from iscp.core.algebra.algebra_codec import ALGEBRA_DEPTH_MAX, algebra_document, read_algebra_document
from iscp.core.algebra.kept_input import KeptInput
from iscp.core.values.column_identity import COLLATIONS
from iscp.core.values.untrusted_values import exact_int

QUERY_BYTES_MAX = 2 * 1024**2
"""Bytes of the file with a view's query; a larger one is neither written nor read, and Spark analyzes the query
again.
"""

_FORMAT = 3
"""Another one is written once what is read of a query, or what it means, is another."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class QueryOrigin:
    """The origin of a query's algebra: its text, the URIs of its `tables` and their schemas as their logs have them,
    both by their names in the query, and the `versions` of the programs that analyze and compute it.
    """

    sql: str
    tables: Mapping[str, str]
    versions: Mapping[str, str]
    schemas: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return what a file of this query begins with; of a schema, which may be long, it has a digest."""
        return {
            "format": _FORMAT,
            "versions": dict(self.versions),
            "sql": self.sql,
            "tables": dict(self.tables),
            "schemas": {name: hashlib.sha256(schema.encode()).hexdigest() for name, schema in self.schemas.items()},
        }


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A query as it is stored: `root`, or None if there is something in it that only Spark computes.

    `kept` is the part of it that is stored beside the target, if there is one.
    """

    root: Rel | None = None
    kept: KeptInput | None = None


def query_to_json(query: StoredQuery, origin: QueryOrigin) -> bytes | None:
    """Return the content of the file, or None if it could not be read back as this query."""
    algebra = None if query.root is None else algebra_document(query.root)
    kept = None if query.kept is None else [query.kept.depth, query.kept.summed]
    try:
        document = origin.document() | {"algebra": algebra, "kept": kept}
        content = json.dumps(document | {"digest": _digest(document)}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    read = query_from_json(content, origin)
    if read is None or (read.kept is None) != (kept is None):
        return None
    return content if (None if read.root is None else algebra_document(read.root)) == algebra else None


def query_from_json(content: bytes, origin: QueryOrigin) -> StoredQuery | None:
    """Return the query in the content of a file, or None if it is no such file, not of this query, or damaged."""
    if len(content) > QUERY_BYTES_MAX:
        return None
    try:
        document = json.loads(content)
        digest = document.pop("digest")
        if digest != _digest(document) or {**document, **origin.document()} != document:
            return None
        root = None if document["algebra"] is None else read_algebra_document(document["algebra"])
        kept = None if root is None or document["kept"] is None else _read_kept(root, *document["kept"])
        kinds = {name: _plain_kinds(schema) for name, schema in origin.schemas.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return StoredQuery(root, kept) if root is None or _is_over(root, kinds) else None


def _read_kept(root: Rel, depth: object, summed: object) -> KeptInput:
    """Raises ValueError."""
    kept = KeptInput(root, exact_int(depth, "depth", 1, ALGEBRA_DEPTH_MAX), summed is True)
    if not kept.is_sound:
        raise ValueError("has no such part")
    return kept


def _digest(document: Mapping[str, Any]) -> str:
    """Return a digest that shows damage, and nothing of who has written the file."""
    content = json.dumps(document, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _plain_kinds(schema_json: str) -> Mapping[str, str]:
    """Return the types of a table's columns that have no others within them, and whose texts compare as written.

    `schema_json` is the table's, from its log. Raises ValueError, KeyError, TypeError, AttributeError.
    """
    return {
        each["name"]: each["type"]
        for each in json.loads(schema_json)["fields"]
        if isinstance(each["type"], str) and not (each.get("metadata") or {}).get(COLLATIONS)
    }


def _is_over(root: Rel, kinds: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether the tables have the columns that a query reads, and its result has columns of different names."""
    names = [each.name.lower() for each in root.columns]
    if not names or len({*names}) < len(names):
        return False
    return all(
        kinds.get(table.name, {}).get(each.name) == each.type for table in root.tables() for each in table.fields
    )
