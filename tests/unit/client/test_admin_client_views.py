"""Views by the Python client, and by the one for asyncio: the same jobs as those of the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from iscp import aio
from iscp.client.admin_client import Client
from iscp.model.spec.spec_parsing import view_of
from iscp.model.values.errors import InvalidRequest
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import EXPLANATION, FakeAdmin

SQL = "SELECT * FROM orders JOIN names USING (id)"
TABLES = {"orders": "/lake/orders", "names": "/lake/names"}


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0")
    server.start()
    yield server.address
    server.stop(grace_s=0)


def test_a_view_is_created_found_and_explained(endpoint: str) -> None:
    with Client(endpoint) as client:
        assert client.create_view("v", SQL, target="/x", tables=TABLES, refresh="full", every=60.0).created
        assert not client.create_view("v", SQL, target="/x", tables=TABLES).created
        client.register("/lake/orders", "copy", target="/copy")
        (found,) = client.views()
        view = view_of(found.spec_json)
        assert view is not None
        assert (found.table, view.sql, view.refresh, view.tables) == ("/lake/orders", SQL, "full", TABLES)
        assert view.run == {"trigger": "periodic", "every": 60.0}
        assert [client.views(name) for name in ("w", "*", "copy")] == [[], [], []]
        for explained in (client.explain_view(SQL, TABLES), client.explain("/lake/orders", "v")):
            assert explained.operators == EXPLANATION.operators
            assert explained.tables == TABLES


def test_the_client_for_asyncio_does_the_same(endpoint: str) -> None:
    async def run() -> None:
        async with aio.Client(endpoint) as client:
            assert (await client.create_view("v", SQL, target="/x", tables=TABLES)).created
            assert [view.name for view in await client.views("v")] == ["v"]
            assert (await client.explain_view(SQL, TABLES)).columns == EXPLANATION.columns

    asyncio.run(run())


@pytest.mark.parametrize("tables", [{}, [("a", "/b")], "a=/b"])
def test_tables_are_places_by_names(tables: Any) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequest, match="tables"):
        client.create_view("v", SQL, target="/x", tables=tables)
