"""Figures of targets are read within a time; whatever their kind does, an answer says at most why there are none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from iscp.cluster.requests.job_views import NO_FIGURES, FigureReader, TargetFigures
from iscp.engine.account_turns import ANYWHERE, READERS_OF_ACCOUNT_MAX, PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.api.api_requests import JobFilter
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import InvalidRequest, StorageError
from tests.fakes.desk import Desk, X
from tests.fakes.pipeline import FakeKind


class MeasuredKind(FakeKind):
    """A kind whose figures are what `measure` returns or raises."""

    def __init__(self, measure: Callable[[], Any]) -> None:
        super().__init__()
        self._measure = measure

    def figures(self, row: JobRow) -> Mapping[str, float]:
        found: Mapping[str, float] = self._measure()
        return found


@pytest.fixture
def row(desk: Desk) -> JobRow:
    return desk.running()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def read(row: JobRow, measure: Callable[[], Any], places: PlaceGuard = ANYWHERE) -> TargetFigures:
    kind = MeasuredKind(measure)
    return FigureReader(lambda name: kind, places).read(row)


def test_figures_are_numbers_by_their_names(row: JobRow) -> None:
    assert read(row, lambda: {"rows": 3, "key.segments": 0}) == TargetFigures({"rows": 3.0, "key.segments": 0.0})


def test_a_kind_without_figures_and_one_that_is_gone_have_none(row: JobRow) -> None:
    def gone(name: str) -> FakeKind:
        raise InvalidRequest("is not a consumer", field="kind", remedy="Name another")

    assert FigureReader(lambda name: FakeKind()).read(row) == NO_FIGURES
    assert FigureReader(gone).read(row) == NO_FIGURES


@pytest.mark.parametrize(
    ("error", "fault"),
    [(StorageError("cannot read the index"), "cannot read the index"), (KeyError("no head"), "'no head'")],
)
def test_what_a_kind_raises_is_said_in_place_of_figures(row: JobRow, error: Exception, fault: str) -> None:
    def fail() -> None:
        raise error

    assert read(row, fail) == TargetFigures(fault=fault)


@pytest.mark.parametrize("value", ["many", float("nan"), float("inf")])
def test_figures_that_are_no_numbers_are_none(row: JobRow, value: object) -> None:
    found = read(row, lambda: {"rows": value})
    assert not found.values
    assert str(value) in found.fault


def test_a_target_outside_of_the_accounts_roots_is_not_read(row: JobRow) -> None:
    roots = AccountRoots({row.key.account: ("/elsewhere",)})
    found = read(row, lambda: {"rows": 3}, PlaceGuard(roots, lambda place: (place,), lambda root: root))
    assert not found.values
    assert found.fault


def test_targets_that_hang_block_neither_an_answer_nor_all_others(row: JobRow, released: threading.Event) -> None:
    slow = MeasuredKind(lambda: {"rows": released.wait(60.0)})
    reader = FigureReader(lambda name: slow, read_s=0.05)
    for _ in range(READERS_OF_ACCOUNT_MAX):
        assert "within 0.05 s" in reader.read(row).fault
    assert "others of the account hang" in reader.read(row).fault


def test_the_status_of_one_job_has_figures_and_lists_have_none(desk: Desk) -> None:
    desk.running()
    desk.kind = MeasuredKind(lambda: {"rows": 7})
    assert desk.admin.status(X).figures == {"rows": 7.0}
    (listed,) = desk.admin.list_jobs(JobFilter())
    assert (listed.figures, listed.figures_fault) == ({}, "")
