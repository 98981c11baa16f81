"""Tables whose names have several parts are read by names of one."""

from __future__ import annotations

import pytest

from iscp.core.values.errors import InvalidRequest
from iscp.views.analysis.plain_names import with_plain_names


def test_a_query_without_such_names_stays_as_it_is() -> None:
    sql = "select  A from t -- as it is"
    assert with_plain_names(sql, {"t": "/t"}) == (sql, {"t": "/t"})


def test_columns_go_on_by_the_last_part_by_the_alias_or_by_all_parts() -> None:
    sql = (
        "SELECT orders.id, c.at.city, sales.orders.total FROM sales.orders"
        " JOIN Lake.Sales.customers AS c ON c.id = orders.c"
        " WHERE EXISTS (SELECT 1 FROM sales.orders AS o WHERE o.id = c.id)"
    )
    found, tables = with_plain_names(sql, {"sales.orders": "/o", "lake.sales.customers": "/c"})
    assert tables == {"sales__orders": "/o", "lake__sales__customers": "/c"}
    assert found == (
        "SELECT orders.id, c.at.city, orders.total FROM sales__orders AS orders JOIN lake__sales__customers AS c"
        " ON c.id = orders.c WHERE EXISTS(SELECT 1 FROM sales__orders AS o WHERE o.id = c.id)"
    )


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not SQL"):
        with_plain_names("SELECT FROM WHERE", {"a.b": "/t"})
