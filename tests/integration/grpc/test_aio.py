"""The async client and a server over real sockets: answers, errors, retries, and what a cancellation ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from iscp import aio, errors
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobName
from iscp.model.job.job_row import Reason
from iscp.model.settings.config import WaitBounds
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from tests.fakes.admin import MISSING, FakeAdmin
from tests.fakes.operators import FakeOperator

WAITS_MAX = 2
PAUSE_S = 0.003


@pytest.fixture
def service() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def operator() -> FakeOperator:
    return FakeOperator()


@pytest.fixture
def server(service: FakeAdmin, operator: FakeOperator) -> Iterator[AdminServer]:
    server = AdminServer(
        service, "127.0.0.1:0", max_workers=4, waits=WaitBounds(node_max=WAITS_MAX), services=[OperatorServer(operator)]
    )
    server.start()
    server.ready()
    yield server
    server.stop(grace_s=0)


def run(program: Callable[[aio.Client], Coroutine[Any, Any, None]], address: str) -> None:
    """Runs `program`, and requires that the client leaves no task behind."""

    async def main() -> None:
        async with aio.Client(address, timeout_s=20) as client:
            await program(client)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(PAUSE_S)


def test_calls_are_answered_as_those_of_the_sync_client(server: AdminServer, service: FakeAdmin) -> None:
    async def program(client: aio.Client) -> None:
        first = await client.register("/t", "a", target="/copy", key=["id"], priority=3)
        again = await client.register("/t", "a", target="/other")
        assert (first.created, again.created, again.job_id) == (True, False, first.job_id)
        assert [await client.pause("/t", "a"), await client.pause("/t", "a")] == [True, False]
        assert (await client.status("/t", "a")).reason is Reason.PAUSED
        assert await client.update("/t", "a", every=60.0, trigger="periodic")
        assert await client.resume("/t", "a")
        done, unknown = await client.change_many(
            [JobChange(ChangeVerb.PAUSE, JobName("/t", name)) for name in ("a", "none")]
        )
        assert (done, type(unknown)) == (True, errors.JobNotFound)
        assert [await client.unregister("/t", "a"), await client.unregister("/t", "a")] == [True, False]

    run(program, server.address)


def test_pages_come_as_one_list_and_many_calls_run_at_once(server: AdminServer) -> None:
    async def program(client: aio.Client) -> None:
        await asyncio.gather(*(client.register("/t", f"job{number}", target=f"/c{number}") for number in range(50)))
        assert {job.name for job in await client.jobs()} == {f"job{number}" for number in range(50)}
        assert await client.count() == 50

    run(program, server.address)


def test_nodes_and_shards_are_the_operators(server: AdminServer, operator: FakeOperator) -> None:
    async def program(client: aio.Client) -> None:
        assert [await client.operator.cordon("n-1"), await client.operator.cordon("n-1")] == [True, False]
        assert await client.operator.placement() == [operator.shard]

    run(program, server.address)


def test_errors_are_those_of_the_sync_client(server: AdminServer) -> None:
    async def program(client: aio.Client) -> None:
        refused: list[tuple[Callable[[], Awaitable[object]], type[errors.IscpError], str]] = [
            (lambda: client.status("/t", "none"), errors.JobNotFound, ""),
            (lambda: client.register(MISSING, "a", target="/copy"), errors.TableNotFound, "requests[0].table"),
            (lambda: client.jobs(limit=0), errors.InvalidRequest, "limit"),
            (lambda: client.register("/t", "a", target="/copy", key="id"), errors.InvalidRequest, "key"),
        ]
        for call, kind, field in refused:
            with pytest.raises(kind) as caught:
                await call()
            assert not field or caught.value.field == field

    run(program, server.address)


def test_a_cancelled_call_ends_at_the_node_too_and_frees_its_place(server: AdminServer, service: FakeAdmin) -> None:
    """More waits are cancelled than the node takes at a time: each has to be gone before the next is taken."""

    async def program(client: aio.Client) -> None:
        await client.register("/t", "a", target="/copy")
        for number in range(3 * WAITS_MAX):
            wait = asyncio.create_task(client.wait("/t", "a", 1_000, timeout_s=600))
            while service.asked.get("wait", 0) <= number and not wait.done():
                await asyncio.sleep(PAUSE_S)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            await until(lambda: service.waiting == 0)
        service.apply("/t", "a", 3)
        assert (await client.wait("/t", "a", 3)).applied_version == 3

    run(program, server.address)


def test_a_node_that_comes_while_a_call_is_repeated_is_found(service: FakeAdmin) -> None:
    """The client begins before there is a node, and is answered by the one that comes, within its time."""
    first = AdminServer(service, "127.0.0.1:0", max_workers=4, waits=WaitBounds(node_max=WAITS_MAX))
    first.start()
    address = first.address
    first.stop(grace_s=0)
    second = AdminServer(service, address, max_workers=4, waits=WaitBounds(node_max=WAITS_MAX))

    async def main() -> None:
        noticed = asyncio.Event()
        async with aio.Client(address, timeout_s=120, notice=lambda error, left_s: noticed.set()) as client:
            call = asyncio.create_task(client.count())
            await noticed.wait()
            second.start()
            second.ready()
            assert await call == 0

    asyncio.run(main())
    second.stop(grace_s=0)


def test_without_a_node_a_call_ends_with_its_time() -> None:
    async def main() -> None:
        async with aio.Client("127.0.0.1:1", timeout_s=0.5) as client:
            with pytest.raises((errors.Unavailable, errors.TimedOut)):
                await client.count()

    asyncio.run(main())


def test_closing_ends_calls_that_are_under_way(server: AdminServer, service: FakeAdmin) -> None:
    async def program(client: aio.Client) -> None:
        await client.register("/t", "a", target="/copy")
        wait = asyncio.create_task(client.wait("/t", "a", 1_000, timeout_s=600))
        await until(lambda: service.asked.get("wait") == 1)
        await client.close()
        with pytest.raises(errors.Canceled):
            await wait
        with pytest.raises(errors.InvalidRequest, match="the client is closed"):
            await client.count()
        await until(lambda: service.waiting == 0)

    run(program, server.address)


def test_a_client_is_refused_in_another_event_loop(server: AdminServer) -> None:
    async def make() -> aio.Client:
        return aio.Client(server.address)

    client = asyncio.run(make())

    async def use() -> None:
        with pytest.raises(errors.InvalidRequest, match="another event loop"):
            await client.count()

    asyncio.run(use())
