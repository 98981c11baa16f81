"""The async client has what the sync one has, and nothing else."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

import iscp
from iscp import aio
from iscp.aio.async_service_clients import AsyncBuildClient, AsyncOperatorClient
from iscp.client.service_clients import BuildClient, OperatorClient
from iscp.errors import InvalidRequest
from tests.async_client import MADE, ROOT, made

PAIRS = [(iscp.Client, aio.Client), (OperatorClient, AsyncOperatorClient), (BuildClient, AsyncBuildClient)]


def surface(of: type) -> dict[str, tuple[object, ...]]:
    """Of each public method: its parameters with kinds and defaults, its annotations, and what it says of itself."""
    return {
        name: (
            tuple((each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()),
            get_type_hints(method),
            method.__doc__,
        )
        for name, method in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=["client", "operator", "builds"])
def test_the_surfaces_are_the_same(sync: type, asynchronous: type) -> None:
    """Names, parameters, kinds, defaults, annotations of what comes and what is returned, and docstrings."""
    assert surface(asynchronous) == surface(sync)
    assert len(surface(sync)) >= 5
    assert {name for name, method in inspect.getmembers(asynchronous, inspect.iscoroutinefunction)} >= set(
        surface(sync)
    )


def test_they_are_made_of_the_same_settings() -> None:
    sync, asynchronous = (inspect.signature(each.__init__).parameters for each in (iscp.Client, aio.Client))
    assert {name: (each.kind, each.annotation) for name, each in asynchronous.items()} == {
        name: (each.kind, each.annotation) for name, each in sync.items()
    }


@pytest.mark.parametrize("source", MADE, ids=lambda source: Path(source).stem)
def test_the_async_client_is_as_it_is_generated(source: str) -> None:
    assert (ROOT / MADE[source]).read_text() == made((ROOT / source).read_text())


def test_a_client_outside_of_an_event_loop_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no running event loop"):
        aio.Client("127.0.0.1:1")


def test_a_client_says_for_which_of_threads_and_event_loop_it_is() -> None:
    assert "several threads may use it" in (iscp.Client.__doc__ or "")
    assert "from the event loop" in (aio.Client.__doc__ or "")
    assert "threads" not in (aio.Client.__doc__ or "").partition("\n\n")[0]
