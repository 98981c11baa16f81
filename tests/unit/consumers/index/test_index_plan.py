"""What a definition comes to for rows: columns, dimensions, and what does not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.consumers.index.index_plan import IndexPlan
from iscp.index.lance.index_columns import VECTOR, IndexHead
from iscp.index.model.definition_parsing import parse_definition
from iscp.model.api.api_requests import VECTOR_NUMBERS_MAX
from iscp.model.values.errors import PermanentError
from iscp.ports.source import Rows

SOURCE = pa.schema(
    [("Id", pa.int64()), ("body", pa.large_string()), ("near", pa.list_(pa.float64())), ("extra", pa.date32())]
)


def plan(kind: str, **options: str) -> IndexPlan:
    return IndexPlan(parse_definition(kind, options), ("id",), None)


def vectors(*rows: list[float] | None) -> pa.Table:
    return pa.table({"NEAR": pa.array(rows, pa.list_(pa.float64()))})


def test_the_columns_of_an_index_are_its_key_its_texts_and_what_is_stored() -> None:
    words = plan("fulltext", columns="body", stored="extra")
    assert words.columns == ("id", "body", "extra")
    schema = words.schema(SOURCE, 0)
    assert [name for name in schema.names if not name.startswith("_")] == ["id", "body", "extra"]
    assert schema.field("body").type == pa.string()  # Spark's rows come with texts of both sizes
    assert words.quoted_columns(SOURCE.names) == ["`Id`", "`body`", "`extra`"]


def test_a_column_of_vectors_is_read_and_stored_once() -> None:
    near = plan("vector", column="near", precision="float16")
    assert near.columns == ("id", "near")
    schema = near.schema(SOURCE, 3)
    assert "near" not in schema.names
    assert schema.field(VECTOR).type == pa.list_(pa.float16(), 3)
    assert near.dimension_of(schema) == 3


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((), 0),
        ((None, []), 0),
        ((None, [], [1.0, 2.0]), 2),
        (([None, None],), 2),
        (([1.0], [1.0, 2.0], [3.0, 4.0]), 2),
        (([1.0], [1.0, 2.0]), 2),
        (([0.0] * (VECTOR_NUMBERS_MAX + 1), [1.0]), 1),
    ],
)
def test_most_vectors_say_how_many_numbers_one_has(rows: tuple[list[float] | None, ...], expected: int) -> None:
    table = vectors(*rows)
    found = plan("vector", column="near").dimension_in_rows(Rows(lambda: pytest.fail("read by Spark"), lambda: table))
    assert found == expected


def test_vectors_that_nobody_could_search_for_are_refused() -> None:
    near = plan("vector", column="near")
    sizes = near.vector_sizes(vectors([0.0] * (VECTOR_NUMBERS_MAX + 1), [], None))
    with pytest.raises(PermanentError, match=f"at most {VECTOR_NUMBERS_MAX}"):
        near.usual_size(sizes)


def test_rows_fit_a_dataset_by_the_types_of_what_is_stored() -> None:
    words = plan("fulltext", columns="body", stored="extra")
    dataset = words.schema(SOURCE, 0)
    assert words.rows_misfit(SOURCE, dataset) == ""
    other = SOURCE.set(3, pa.field("extra", pa.int32()))
    assert words.rows_misfit(other, dataset) == "extra has another type than the index"


def test_an_index_of_another_definition_or_embedder_does_not_fit() -> None:
    words = plan("fulltext", columns="body")
    assert words.misfit(IndexHead(words.definition, ("id",))) == ""
    assert words.misfit(IndexHead(plan("fulltext", columns="body^2").definition, ("id",))) != ""
    assert words.misfit(IndexHead(words.definition, ("id",), fingerprint="another")) != ""
    earlier = words.options.analysed_by(1)
    assert earlier is not None
    assert "earlier analysis" in words.misfit(IndexHead(earlier.to_json(), ("id",)))
    assert not words.same_embedder(IndexHead(words.definition, ("id",)))
