"""Tables of a Spark catalog: found by their name, recorded by their location."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iscp.delta.source.delta_catalog import DeltaCatalog, name_resolver
from iscp.model.values.errors import TableNotFound
from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(spark_runtime: SparkRuntime) -> Iterator[DeltaCatalog]:
    session = spark_runtime.new_session()
    session.sql("CREATE DATABASE sales")
    session.sql("CREATE TABLE sales.orders (id BIGINT, item STRING) USING delta")
    yield DeltaCatalog(name_resolver(spark_runtime.root))
    session.sql("DROP DATABASE sales CASCADE")


def test_a_name_and_its_place_are_one_table(catalog: DeltaCatalog) -> None:
    by_name = catalog.describe("sales.orders")
    by_place = catalog.describe(by_name.uri)
    assert by_name.table_id == by_place.table_id
    assert by_name.uri.endswith("/sales.db/orders")
    assert list(by_name.columns) == ["id", "item"]


@pytest.mark.parametrize("name", ["sales.nothing", "nowhere.orders", "memory.main.orders"])
def test_a_name_that_the_catalog_does_not_have_is_refused(catalog: DeltaCatalog, name: str) -> None:
    with pytest.raises(TableNotFound, match="not a table of the catalog") as refused:
        catalog.describe(name)
    assert refused.value.field == "table"
