"""JVMs and children that race, gone when a test is over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from iscp.delta.selftest.commit_race import DELTA_RS, DeltaRsContender
from tests.race.jvms import Jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def jvms() -> Iterator[Callable[..., Jvm]]:
    started: list[Jvm] = []

    def start(settings: Mapping[str, str] | None = None) -> Jvm:
        started.append(Jvm(settings))
        return started[-1]

    yield start
    for jvm in started:
        jvm.close()


@pytest.fixture
def delta_rs() -> Iterator[Callable[..., DeltaRsContender]]:
    started: list[DeltaRsContender] = []

    def start(table: Path | str, name: str = DELTA_RS) -> DeltaRsContender:
        started.append(DeltaRsContender(str(table), name))
        started[-1].await_ready()
        return started[-1]

    yield start
    for contender in started:
        contender.close()
