"""How many numbers the vectors of an index have follows the source, and no single row decides it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.model.job.iteration import DataType

from .conftest import BOTH_WAYS, Pipeline
from .indexing import Indexing, documents

pytestmark = pytest.mark.spark


@pytest.fixture
def indexing(pipeline: Pipeline) -> Indexing:
    return Indexing(pipeline)


def with_vectors(numbers: list[int], vectors: list[list[float]]) -> pa.Table:
    rows = documents(numbers)
    place = rows.schema.get_field_index("embedding")
    return rows.set_column(place, "embedding", pa.array(vectors, pa.list_(pa.float32())))


@BOTH_WAYS
def test_most_vectors_say_how_many_numbers_one_has(indexing: Indexing) -> None:
    write_deltalake(
        indexing.source,
        with_vectors([1, 2, 3, 4], [[1.0] * 20_000, [1.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]),
        mode="overwrite",
    )
    job = indexing.job("vector")
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.dead_letters) == ("", 2)
    faults = {row["id"]: row["_fault"] for row in indexing.index(job).dataset.to_table().to_pylist() if row["id"]}
    assert faults == {
        1: "its vector has 20000 numbers, not 3",
        2: "its vector has 1 numbers, not 3",
        3: None,
        4: None,
    }


@BOTH_WAYS
@pytest.mark.slow(but=1)
def test_vectors_of_another_model_take_the_place_of_all_others(indexing: Indexing) -> None:
    job = indexing.job("vector")
    indexing.run(job)
    numbers = list(range(40))
    write_deltalake(indexing.source, with_vectors(numbers, [[1.0 + each, 2.0] for each in numbers]), mode="overwrite")
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.dead_letters) == ("", 0)
    assert indexing.assert_equal(job).head.vectors == 40

    indexing.upsert(with_vectors([1, 2], [[5.0, 5.0], [1.0]]))
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.dead_letters, outcome.data_type) == ("", 1, DataType.TAIL)
