"""A node's maintainer goes on whatever one index does, and each index gets its turn."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import cast

import pytest

from iscp.consumers.index.index_kind import IndexMaintainer
from iscp.index.lance.index_store import IndexStore, OpenIndex
from iscp.index.model.definition_parsing import parse_definition
from iscp.model.values.errors import StorageError
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

DEFINITION = parse_definition("fulltext", {"columns": "body"})
WAIT_S = 30.0


class Store:
    """An index that cannot be opened; `opened` says that it was tried."""

    def __init__(self, root: str, error: Exception, opened: list[str]) -> None:
        self.root = root
        self.failpoints = EnvironmentFailpoints({})
        self.begun, self.free, self.tried = threading.Event(), threading.Event(), threading.Event()
        self._error = error
        self._opened = opened

    def open(self) -> OpenIndex:
        self._opened.append(self.root)
        self.begun.set()
        assert self.free.wait(WAIT_S)
        self.tried.set()
        raise self._error


def hasten(maintainer: IndexMaintainer, store: Store) -> None:
    maintainer.hasten(cast(IndexStore, store), DEFINITION)


def test_an_error_of_any_kind_ends_the_maintenance_of_one_index_alone() -> None:
    maintainer = IndexMaintainer(SystemClock())
    opened: list[str] = []
    for error in (StorageError("a disk is gone"), OSError("so is another"), KeyError("what nobody foresaw")):
        store = Store(repr(error), error, opened)
        store.free.set()
        hasten(maintainer, store)
        assert store.tried.wait(WAIT_S), f"nothing is maintained after {opened}"


def test_an_index_that_changes_again_keeps_its_turn() -> None:
    maintainer = IndexMaintainer(SystemClock())
    opened: list[str] = []
    first, busy, last = (Store(name, StorageError("gone"), opened) for name in ("first", "busy", "last"))
    hasten(maintainer, first)
    assert first.begun.wait(WAIT_S)
    for each in (busy, last, busy):
        hasten(maintainer, each)
    for each in (first, busy, last):
        each.free.set()
        assert each.tried.wait(WAIT_S)
    assert opened == ["first", "busy", "last"]


def wait(maintainer: IndexMaintainer, store: Store, stopped: Callable[[], bool] = lambda: False) -> str:
    return maintainer.wait(cast(IndexStore, store), stopped)


def test_a_run_waits_for_what_it_has_hastened_and_hears_why_it_failed() -> None:
    maintainer = IndexMaintainer(SystemClock(), awaited=True)
    store = Store("words", StorageError("a disk is gone"), [])
    hasten(maintainer, store)
    threading.Timer(0.05, store.free.set).start()
    words = wait(maintainer, store)
    assert ("words" in words, "a disk is gone" in words, "next run" in words) == (True, True, True)
    assert wait(maintainer, store) == "", "what was heard is not said of the next run"


def test_a_run_that_is_stopped_and_one_whose_time_is_over_wait_no_longer() -> None:
    maintainer = IndexMaintainer(SystemClock(), awaited=True, awaited_s=0.0)
    store = Store("words", StorageError("gone"), [])
    hasten(maintainer, store)
    assert "the run was ended" in wait(maintainer, store, lambda: True)
    assert "still being maintained" in wait(maintainer, store)
    store.free.set()


def test_a_process_that_ends_finishes_what_is_at_work_and_names_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    maintainer = IndexMaintainer(SystemClock(), awaited=True)
    opened: list[str] = []
    first, second = (Store(name, StorageError("gone"), opened) for name in ("first", "second"))
    hasten(maintainer, first)
    hasten(maintainer, second)
    assert first.begun.wait(WAIT_S)
    threading.Timer(0.05, first.free.set).start()
    maintainer.close()
    assert opened == ["first"]
    assert [name for name in ("first", "second") if f"the index {name} is not maintained" in caplog.text] == [
        "first",
        "second",
    ]
    hasten(maintainer, second)
    assert opened == ["first"], "nothing is begun after it"


def test_what_was_maintained_before_does_not_keep_the_next_from_its_turn() -> None:
    """Its thread ends when nothing is left to do."""
    maintainer = IndexMaintainer(SystemClock(), awaited=True)
    opened: list[str] = []
    for name in ("first", "second"):
        store = Store(name, StorageError("gone"), opened)
        store.free.set()
        hasten(maintainer, store)
        assert store.tried.wait(WAIT_S)
        wait_until_no_thread(f"{name} was maintained")
    assert opened == ["first", "second"]


def wait_until_no_thread(when: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while any(each.name == "iscp-index-maintenance" and not each.daemon for each in threading.enumerate()):
        assert time.monotonic() < deadline_s, f"a thread that the process would wait for is left once {when}"
        time.sleep(0.01)


PROGRAM = """
import threading, time
from iscp.system.threads import SystemClock
from iscp.consumers.index.index_kind import IndexMaintainer
from tests.unit.consumers.index.test_index_kind_index_maintainer import Store, StorageError, hasten

class Slow(Store):
    def open(self):
        time.sleep(0.2)
        print(self.root, flush=True)
        raise StorageError("gone")

maintainer = IndexMaintainer(SystemClock(), awaited=True)
for name in ("first", "second"):
    hasten(maintainer, Slow(name, StorageError("gone"), []))
"""


def test_a_process_that_awaits_maintenance_ends_after_it() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["first", "second"]), ended.stderr
