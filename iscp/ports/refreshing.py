"""Orders and results of consumers that read their tables themselves: each maintains a query over several tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.core.job.iteration import Bounds
from iscp.ports.consumer import Consumed
from iscp.ports.source import SourceRange


@dataclass(frozen=True, slots=True)
class RefreshOrder:
    """Orders a consumer that reads its tables itself to bring its sink to their versions.

    `to` is the empty range at the version of the job's own table; the consumer takes the newest version of the others,
    or earlier ones of all, if the newest do not fit each other. `ends` are versions that it does not go beyond, by URI.
    `full` says why the sink has to be recomputed from all rows, and is empty if it need not be.
    """

    to: SourceRange
    bounds: Bounds
    full: str = ""
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of a refresh: `strategy` says how it was computed, and `reason` why so, for the history.

    `committed` is False if no table has other rows than before, and nothing was written: the sources of
    `consumed.position` may then be later than those that the sink has, and are what the job has come to. `rows_in` and
    `parts_s` mean the same as in HistoryEntry, and `bytes_in` are those of the files with these rows. `due_at_s` is
    when (Unix seconds) it has to be refreshed again though no table has changed, or 0 for never. `waits_for`: the
    sources of `consumed.position` are not the newest versions, as they would mix those of a table with what is behind;
    after `wait_s` seconds at most the consumer takes them anyway.
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
    waits_for: str = ""
    wait_s: float = 0.0
