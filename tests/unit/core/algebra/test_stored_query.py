"""The file with a view's query is read back as it was written, and else counts as none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from iscp.core.algebra.algebra import Expr, Group, Limit, Rel, Sort, Table, TypedColumn
from iscp.core.algebra.algebra_codec import algebra_document
from iscp.core.algebra.kept_input import KeptInput
from iscp.core.algebra.stored_query import QUERY_BYTES_MAX, QueryOrigin, StoredQuery, query_from_json, query_to_json
from tests.fakes.algebras import total
from tests.fakes.forged_queries import forged

K, N = TypedColumn(1, "k", "string"), TypedColumn(2, "n", "long")
SUMMED = Expr("Alias", (total(N.value),), "long", (3, "s"))
GROUPS = Group((Table((), (K, N), "t"),), (K.value,), (K.value, SUMMED))
ROOT = Limit((Sort((GROUPS,), (Expr("SortOrder", (K.value,), "string", (True, True)),)),), 3)
QUERY = StoredQuery(ROOT, KeptInput(ROOT, 2, True))


def schema(**kinds: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


ORIGIN = QueryOrigin("SELECT …", {"t": "/lake/t"}, {"iscp": "1", "duckdb": "2"}, {"t": schema(k="string", n="long")})


def content_of(query: StoredQuery, origin: QueryOrigin = ORIGIN) -> bytes:
    content = query_to_json(query, origin)
    assert content is not None
    return content


def document_of(root: Rel | None) -> Any:
    return None if root is None else algebra_document(root)


@pytest.mark.parametrize("query", [QUERY, StoredQuery(ROOT), StoredQuery()], ids=["kept", "plain", "by Spark"])
def test_a_query_is_read_back(query: StoredQuery) -> None:
    found = query_from_json(content_of(query), ORIGIN)
    assert found is not None
    assert document_of(found.root) == document_of(query.root)
    assert (found.kept is None) == (query.kept is None)
    if found.kept is not None:
        assert (found.kept.depth, found.kept.summed, found.kept.is_sound) == (2, True, True)


@pytest.mark.parametrize(
    "origin",
    [
        replace(ORIGIN, sql="SELECT 1"),
        replace(ORIGIN, tables={"t": "/elsewhere"}),
        replace(ORIGIN, versions={"iscp": "1", "duckdb": "3"}),
        replace(ORIGIN, schemas={"t": schema(k="string", n="long", more="long")}),
    ],
    ids=["query", "tables", "versions", "schemas"],
)
def test_that_of_another_origin_is_none(origin: QueryOrigin) -> None:
    assert query_from_json(content_of(QUERY), origin) is None


def table(document: dict[str, Any]) -> dict[str, Any]:
    found = document["algebra"]
    while found["operator"] != "Table":
        (found,) = found["inputs"]
    assert isinstance(found, dict)
    return found


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a table that is not of the view": lambda document: table(document).update(name="u"),
    "a column that is not there": lambda document: table(document)["fields"][1].__setitem__(1, "z"),
    "a column of another type": lambda document: table(document)["fields"][0].__setitem__(2, "long"),
    "rows that a planner makes": lambda document: table(document).update(at="state"),
    "an operation that there is not": lambda document: document["algebra"]["inputs"][0]["order"][0].update(op="Call"),
    "a part that is no group": lambda document: document.update(kept=[1, True]),
    "a part below a table": lambda document: document.update(kept=[9, False]),
    "a part that is no number": lambda document: document.update(kept=["2", False]),
    "a part of three": lambda document: document.update(kept=[1, True, 2]),
    "no query": lambda document: document.pop("algebra"),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_forged_query_that_does_not_fit_is_none(change: Callable[[dict[str, Any]], object]) -> None:
    assert query_from_json(forged(content_of(QUERY), change), ORIGIN) is None


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 50_000, b" " * (QUERY_BYTES_MAX + 1)],
    ids=["empty", "null", "list", "object", "bytes", "deep", "long"],
)  # fmt: skip
def test_whatever_else_is_none(content: bytes) -> None:
    assert query_from_json(content, ORIGIN) is None


def test_a_byte_that_is_another_is_seen() -> None:
    content = content_of(QUERY)
    assert query_from_json(content.replace(b'"count": 3', b'"count": 4'), ORIGIN) is None


def test_texts_that_are_no_utf8_and_columns_that_share_a_name_are_not_stored() -> None:
    assert query_to_json(StoredQuery(Table((), (replace(K, name="\ud800"),), "t")), ORIGIN) is None
    twice = Table((), (K, replace(K, id=9, name="K")), "t")
    assert query_to_json(StoredQuery(twice), replace(ORIGIN, schemas={"t": schema(k="string", K="string")})) is None
