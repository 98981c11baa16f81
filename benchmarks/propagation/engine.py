"""An engine within its own process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.propagation.medallion import Derived


@dataclass(frozen=True, slots=True)
class Tables:
    """The folder of the engine, where the sources are, and what is to be derived."""

    folder: Path
    sources: Mapping[str, str]
    derived: Sequence[Derived]

    def uri(self, name: str) -> str:
        return self.sources.get(name) or str(self.folder / "derived" / name)

    def spark_sql(self, derived: Derived, **other: str) -> str:
        """Return the query for Spark, over tables by their paths, or by the names of views in `other`."""
        found = (
            f"{name} AS (SELECT * FROM {other.get(name) or f'delta.`{self.uri(name)}`'})" for name in derived.inputs
        )
        return f"WITH {', '.join(found)} {derived.sql}"


class Engine(ABC):
    """It is ready when it has been made."""

    @abstractmethod
    def create(self) -> None:
        """Derive everything for the first time."""

    @abstractmethod
    def resume(self) -> None:
        """Go on after the process before this one was killed."""

    @abstractmethod
    def recompute(self, changed: Iterable[str]) -> None:
        """Derive what is below these sources, if nothing else does that."""

    @abstractmethod
    def settle(self) -> None:
        """Return when nothing is left to do."""

    @abstractmethod
    def stop(self) -> None:
        """End what it has started."""
