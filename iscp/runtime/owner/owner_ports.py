"""The ports of an owner's loop: the job log, and whom it notifies of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from iscp.coordination.protocol.messages import OwnerMessage
from iscp.core.settings.config import JobLogConfig
from iscp.core.values.ids import ShardId
from iscp.core.values.members import NodeRecord
from iscp.ports.job_log import JobLog
from iscp.runtime.owner.log.log_limits import LogLimits


@dataclass(frozen=True, slots=True)
class JobLogAccess:
    """Access to the job log. `open` gives a log for one term."""

    open: Callable[[], JobLog]
    config: JobLogConfig
    limits: LogLimits = field(default_factory=LogLimits)


@dataclass(frozen=True, slots=True)
class OwnerHooks:
    """All but `on_broken` and `on_woken` are called on the loop's thread, which they must not hold up.

    `keep` is given those to whom the loop goes on to `send`: the members during a term, nobody between terms;
    `on_progress` is called when rows changed, `on_broken` with what ended the loop, `on_tables` with the ids of tables
    whose jobs changed, and with none when a term begins or ends, `on_synced` with each other node that reported what
    it runs; `on_woken` on the log's thread, with a shard whose jobs read a table that another job has committed to.
    """

    send: Callable[[NodeRecord, OwnerMessage], None]
    keep: Callable[[Sequence[NodeRecord]], None]
    on_progress: Callable[[], None]
    on_broken: Callable[[Exception], None]
    on_tables: Callable[[Iterable[str]], None] = lambda table_ids: None
    on_synced: Callable[[NodeRecord], None] = lambda record: None
    on_woken: Callable[[ShardId], None] = lambda shard: None
