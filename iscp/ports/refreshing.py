"""The port of consumers that read their tables themselves: each maintains a query over several tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from iscp.core.job.iteration import Bounds
from iscp.core.query.query_explanation import QueryExplanation
from iscp.core.spec.spec import ConsumerSpec
from iscp.ports.catalog import Catalog
from iscp.ports.consumer import ConsumeContext, Consumed, Consumer
from iscp.ports.source import SourceRange


@dataclass(frozen=True, slots=True)
class RefreshOrder:
    """Orders a consumer that reads its tables itself to bring its sink to their versions.

    `to` is the empty range at the version of the job's own table; the consumer takes the newest version of the others.
    `full` says why the sink has to be recomputed from all rows, and is empty if it need not be.
    """

    to: SourceRange
    bounds: Bounds
    full: str = ""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of a refresh: `strategy` says how it was computed, and `reason` why so, for the history.

    `committed` is False if no table has other rows than before, and nothing was written: the sources of
    `consumed.position` may then be later than those that the sink has, and are what the job has come to. `rows_in` and
    `parts_s` mean the same as in HistoryEntry, and `bytes_in` are those of the files with these rows. `due_at_s` is
    when (Unix seconds) it has to be refreshed again though no table has changed, or 0 for never.
    """

    consumed: Consumed
    strategy: str
    reason: str
    committed: bool = True
    warning: str = ""
    rows_in: int = 0
    bytes_in: int = 0
    parts_s: Mapping[str, float] = field(default_factory=dict)
    due_at_s: float = 0.0


@runtime_checkable
class RefreshingConsumer(Consumer, Protocol):
    """Maintains what is computed from several tables, which it reads itself (Needs.reads_itself).

    Its `position` has the SourceMarks of all of them.
    """

    def refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        """Bring the sink to the tables' versions in one numbered commit, all of them at once.

        Raises Conflict if another writer won the seq, ChangesUnavailableError if rows of a table can be read neither as
        changes nor whole.
        """


@runtime_checkable
class ReadingSeveral(Protocol):
    """A kind of consumer whose jobs read further tables besides their own."""

    def tables(self, spec: ConsumerSpec, catalog: Catalog) -> Mapping[str, str]:
        """Return the URIs of all tables that a job reads, its own included, by the names that the spec gives them."""


@runtime_checkable
class HoldingSources(Protocol):
    """A kind of consumer whose jobs may have their sources retain removed files and old commits for them."""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        """Return the URIs of the tables that a job holds, by its spec in the job log, with the seconds of each hold.

        Each iteration of the job places these holds before it reads, and they are released once the job is dropped or
        its spec has them no more.
        """


@runtime_checkable
class Explaining(Protocol):
    """A kind of consumer that can say how it would maintain something, before or after it is registered."""

    def explain(self, spec: ConsumerSpec, catalog: Catalog) -> QueryExplanation:
        """Explain what the spec describes. Raises InvalidRequest as `validate` does."""
