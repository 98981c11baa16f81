"""Maintenance beside an iteration of its own process: it takes no commit away from it, and waits within a bound."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

from iscp.index.maintenance.index_maintenance import MaintenanceDone, MaintenanceLimits, maintain
from iscp.index.model.index_definition import COUNT_FILES_MAX, Upkeep
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.maintained_index import MaintainedIndex, random_row, rows_of, same_rows

LIMITS = MaintenanceLimits(turn_s=0.1)
WAIT_S = 60.0


def many_counts(path: Path) -> MaintainedIndex:
    """An index whose files of counts are to be merged."""
    chance = random.Random(1)
    index = MaintainedIndex(str(path / "index"))
    index.create()
    for number in range(COUNT_FILES_MAX + 2):
        index.change({f"{number}-{each}": random_row(chance) for each in range(5)}, [])
    return index


class Maintainer(threading.Thread):
    def __init__(self, index: MaintainedIndex, limits: MaintenanceLimits) -> None:
        super().__init__(daemon=True)
        self.index, self.limits = index, limits
        self.done = MaintenanceDone()

    def run(self) -> None:
        self.done = maintain(self.index.store, self.limits, SystemClock(), ScriptedFailpoints(), WAIT_S)


def test_an_iteration_is_not_in_vain_as_counts_are_merged(tmp_path: Path) -> None:
    index = many_counts(tmp_path)
    with index.store.writing:
        commit = index.store.begin()
        maintainer = Maintainer(index, replace(LIMITS, turn_s=WAIT_S))
        maintainer.start()
        maintainer.join(1.0)
        commit.add(index.table({"new": random_row(random.Random(2))}))
        commit.commit()
    maintainer.join(WAIT_S)
    assert maintainer.done.actions == (Upkeep.COUNTS,)


def test_maintenance_gives_up_what_an_iteration_holds_up_for_long(tmp_path: Path) -> None:
    index = many_counts(tmp_path)
    before = index.store.open().version
    with index.store.writing:
        maintainer = Maintainer(index, LIMITS)
        maintainer.start()
        maintainer.join(WAIT_S)
        assert not maintainer.is_alive()
    assert (maintainer.done.actions, maintainer.done.lost) == ((), (Upkeep.COUNTS,))
    assert index.store.open().version == before
    maintainer = Maintainer(index, LIMITS)
    maintainer.run()
    assert maintainer.done.actions == (Upkeep.COUNTS,)
    assert same_rows(rows_of(index.store.open()), index.model)
