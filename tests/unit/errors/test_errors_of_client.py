"""Everything that leaves the client is one of `iscp.errors`."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest

import iscp
from iscp import errors
from iscp.client.channel.grpc_calls import from_rpc
from iscp.model.spec.spec import RunFields
from iscp.model.values import errors as core

ROOT = Path(__file__).parents[3]

ODD: tuple[Any, ...] = (
    *("", "\0", "\ud800", "nowhere", b"x", 5, -1, 1 << 70, 1.5, math.nan, math.inf, True, None),
    *(["a"], [5], {}, (), object()),
)

NOT_FOR_USERS = {
    ("iscp/changefeed/__init__.py", "AttributeError"): "Python's own, of a module without that name",
    ("iscp/changefeed/client/changefeed.py", "AssertionError"): "behind a loop that ends by raising",
    ("iscp/client/channel/grpc_calls.py", "AssertionError"): "behind a call that ends by raising",
    ("iscp/client/channel/attempts.py", "ValueError"): "as gRPC raises it for a channel that is closed",
    ("iscp/changefeed/model/ulid.py", "ValueError"): "translated where it is raised",
    ("iscp/changefeed/table/feed_log.py", "ValueError"): "translated by its caller",
}


def raised() -> Iterator[tuple[str, str]]:
    """(module, class) of each exception that the client, changefeeds and gRPC's side of them raise by name, and that is
    none of iscp's."""
    for room in ("client", "changefeed"):
        for path in sorted((ROOT / "iscp" / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/spark/" in name:  # seconds to load, and what an executor raises is Spark's to carry
                continue
            module = import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Raise(exc=ast.Call(func=ast.Name(id=kind))) | ast.Raise(exc=ast.Name(id=kind)):
                        known = getattr(module, kind, getattr(builtins, kind, None))
                        if isinstance(known, type) and not issubclass(known, errors.IscpError):
                            yield name, kind
                    case _:
                        pass


def calls(client: iscp.Client) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """(method and argument, a call with a value in that argument's place) of all public methods."""
    for part in (client, client.operator):
        for name, method in inspect.getmembers(part, inspect.ismethod):
            parameters = inspect.signature(method).parameters
            if name.startswith("_") or name == "close":
                continue
            required = {each.name for each in parameters.values() if each.default is each.empty} - {"run"}
            good: dict[str, Any] = {each: [] if each in ("requests", "changes") else "/t" for each in required}
            for argument in parameters.keys() - {"run"} | (
                set(RunFields.__annotations__) if "run" in parameters else set()
            ):

                def call(value: Any, method: Any = method, good: Any = good, argument: str = argument) -> object:
                    return method(**{**good, argument: value})

                yield f"{name}({argument})", call


def leaks(call: Callable[[Any], object]) -> list[str]:
    """What a call raises that is none of iscp's errors, by the value that made it do so."""
    found = []
    for value in ODD:
        try:
            call(value)
        except errors.IscpError:
            pass
        except Exception as error:  # noqa: BLE001  (that is what is searched for)
            found.append(f"{value!r}: {type(error).__name__}: {error}")
    return found


def test_all_errors_of_iscp_are_exported() -> None:
    kinds = {name for name, kind in vars(core).items() if isinstance(kind, type) and issubclass(kind, core.IscpError)}
    assert set(errors.__all__) == kinds | {"ErrorCode", "PERMANENT_FROM"}
    assert all(getattr(errors, name) is getattr(core, name) for name in errors.__all__)


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name not in ("ErrorCode", "PERMANENT_FROM")])
def test_every_error_has_its_parts_and_says_what_it_means(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("is missing", field="spec.key", remedy="Give it")
    assert (error.message, error.field, error.remedy) == ("is missing", "spec.key", "Give it")
    assert isinstance(error.code, errors.ErrorCode)
    assert str(error) == "spec.key is missing. Give it"
    assert kind.__doc__


def test_what_is_raised_by_name_is_an_error_of_iscp() -> None:
    assert set(raised()) == set(NOT_FOR_USERS)


@pytest.mark.parametrize("status", list(grpc.StatusCode), ids=lambda status: status.name)
@pytest.mark.parametrize("changes", [False, True])
def test_every_status_of_grpc_becomes_an_error_of_iscp(status: grpc.StatusCode, changes: bool) -> None:
    class Failed(grpc.RpcError):  # type: ignore[misc]
        def code(self) -> grpc.StatusCode:
            return status

        def details(self) -> str:
            return "why"

        def trailing_metadata(self) -> tuple[()]:
            return ()

    assert type(from_rpc(Failed(), "127.0.0.1:1", changes=changes)).__name__ in errors.__all__


@pytest.fixture
def endpoint() -> Iterator[str]:
    """One that knows no call, and says so at once."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_no_value_of_an_argument_makes_the_client_raise_another_error(endpoint: str) -> None:
    with iscp.Client(endpoint) as client:
        found = {name: those for name, call in calls(client) if (those := leaks(call))}
    assert found == {}


def test_no_client_is_made_of_odd_settings(endpoint: str) -> None:
    def making(name: str) -> Callable[[Any], None]:
        def make(value: Any) -> None:
            iscp.Client(**{"endpoint": endpoint, name: value}).close()

        return make

    assert [leaks(making(name)) for name in ("endpoint", "timeout_s", "tls")] == [[], [], []]


def test_a_closed_client_says_so() -> None:
    client = iscp.Client("127.0.0.1:1")
    client.close()
    client.close()
    for call in (client.count, client.cluster, lambda: client.pause("/t", "a")):
        with pytest.raises(errors.InvalidRequest, match="the client is closed"):
            call()
