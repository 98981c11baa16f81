"""An engine as the benchmark sees it. Another one is added by a class, and a line in `__main__`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.propagation.medallion import Derived
from benchmarks.propagation.processes import go_on_all, spent_s, stop_all
from benchmarks.propagation.source_lake import SourceLake


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of an engine, in which nobody else writes, its copy of the sources, and what is derived of them."""

    folder: Path
    lake: SourceLake
    derived: Sequence[Derived]

    @property
    def targets(self) -> Path:
        return self.folder / "derived"

    def target(self, name: str) -> str:
        return str(self.targets / name)

    def uri(self, name: str) -> str:
        """Return where a table is, which is a source or derived."""
        return self.lake.uris.get(name) or self.target(name)


class Driver(ABC):
    """Derives the tables of `place.derived`, each as a Delta table at `place.target(name)`.

    Those that it cannot derive are in `cannot`, by their names, with the reason; so are steps that it cannot take. All
    its processes are below `pid`. `warm`: sentences on what it has before a change comes, and on what starts it.
    """

    name: ClassVar[str]
    warm: ClassVar[str]
    cannot: ClassVar[Mapping[str, str]]

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lost_s = 0.0

    @property
    def derived(self) -> Sequence[Derived]:
        """Return what it can derive."""
        return [each for each in self.place.derived if each.name not in self.cannot]

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def start(self) -> None:
        """Start its processes, and return when they are ready. This is not measured."""

    @abstractmethod
    def create(self) -> None:
        """Have everything derived for the first time, and from now on. It may return before that is done."""

    @abstractmethod
    def notify(self, tables: Iterable[str]) -> None:
        """Be notified that these sources have new commits. It returns at once."""

    @abstractmethod
    def settle(self) -> None:
        """Return when there is nothing left to do for what was committed before the call."""

    @abstractmethod
    def fail(self) -> None:
        """Kill the process that does the work; whoever starts it again has begun with it, or will."""

    @abstractmethod
    def stop(self) -> None:
        """End all its processes."""

    def written_folders(self) -> Sequence[Path]:
        """Return the folders whose files count as written: derived tables, state, checkpoints, logs of its own."""
        return (self.place.folder,)

    def spent_s(self) -> float:
        """Return the processor time of all its processes since they were started, those that were killed too."""
        return self.lost_s + spent_s(self.pid)

    def pause(self) -> None:
        """Leave the machine to the others, if it would compute though nothing changes."""
        return

    def resume(self) -> None:
        """Go on after `pause`."""
        return


class PausedDriver(Driver):
    """A driver whose processes stand still while it is another's turn, because they poll."""

    def pause(self) -> None:
        stop_all(self.pid)

    def resume(self) -> None:
        go_on_all(self.pid)
