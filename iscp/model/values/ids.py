"""Names of the things that iscp speaks of: jobs, shards and dispatches, the members of a cluster, and traces.

They are named tuples, not dataclasses: an owner looks each of a hundred thousand shards up several times while it takes
over, and tuples are made, hashed and compared in C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

# --- jobs, shards and dispatches --------------------------------------------------------------------------------------

DEFAULT_ACCOUNT = "default"


class JobKey(NamedTuple):
    """The key of a row of the job log. `table_id` is the Delta table's own (its metadata id).

    A job on a table that is split has a row for each range (see iscp.model.rows.key_ranges).
    """

    account: str
    table_id: str
    job_name: str
    range_id: int = 1

    @property
    def job(self) -> JobKey:
        """Return the key that its users know the job by, however its table is split."""
        return self.of_range(1)

    def of_range(self, range_id: int) -> JobKey:
        """Return the same job's key in another range."""
        return self if self.range_id == range_id else self._replace(range_id=range_id)

    @property
    def shard(self) -> ShardId:
        return ShardId(self.table_id, self.range_id)


def next_job_id(now_s: float, last: str) -> str:
    """Return an id for a new registration: later ones sort after earlier ones, also when the clock steps back.

    `last` is the greatest id in the job log (empty: none). The order prevents a former registration's work from taking
    a sink back: only a later id may claim. Ids begin with the time, so that they stay in order even over a job log that
    was recreated. What follows the time in `last` does not count (see iscp.model.job.registration_id).
    """
    ms = max(int(now_s * 1000), int(last[:12], 16) + 1 if last else 0)
    return f"{ms:012x}"


def ranged_job_id(job_id: str, number: int) -> str:
    """Return one of several ids for what was decided under one: they sort after it, and before the next."""
    return f"{job_id}.{number:04x}"


_SHOWN_LENGTH = 50
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_table_id(text: str) -> bool:
    """Return whether it is an id that a Delta table has: a UUID.

    Ids are a part of shards' names, keys in etcd and paths, and are compared as texts: whoever writes a log could
    choose one that means something there.
    """
    return bool(_UUID.fullmatch(text))


def table_id_fault(text: str) -> str:
    """Return what is wrong with a Delta table's id, with its first characters, or an empty text if nothing is."""
    return "" if is_table_id(text) else f"the id {text[:_SHOWN_LENGTH]!r}, and a Delta table's id is a UUID"


class ShardId(NamedTuple):
    """The unit of placement and tailing: a table, or a key-hash range of one.

    Ranges follow a binary tree: `range_id` 1 is the whole, n splits into 2n and 2n+1.
    """

    table_id: str
    range_id: int = 1

    def __str__(self) -> str:
        return self.table_id if self.range_id == 1 else f"{self.table_id}/{self.range_id}"


def parse_shard(text: str) -> ShardId:
    """Return the shard of which `str` made this text; raise ValueError if it is none."""
    table_id, slash, range_id = text.partition("/")
    return ShardId(table_id, int(range_id)) if slash else ShardId(table_id)


class TableEpoch(NamedTuple):
    """One dispatch of a shard. Epochs are ordered: a later owner's always exceeds an earlier one's."""

    owner_rev: int
    counter: int


# --- members of a cluster, as etcd has them ---------------------------------------------------------------------------

WIRE_FORMAT = 3
"""The format in which owner and nodes speak to each other. A change that the format before cannot read adds 1."""

BUILDS_WIRE_FORMAT = 3
"""The first format in which a node can be called to work on ranges of a build."""


def understands(one: int, other: int) -> bool:
    """Return whether two wire formats go together.

    They may be one apart, so that a cluster can be upgraded node by node.
    """
    return abs(one - other) <= 1


NODES_MAX = 1_000
"""Nodes of a cluster, as an owner has a stream to each; one more is refused when it registers."""

TTL_RATIO_MAX = 10.0
"""How many times longer than another's a node's lease may last; a node beyond it is refused, as its work would wait for
so long once it is lost.
"""


def ttls_fit(one_s: float, other_s: float) -> bool:
    """Return whether leases go together in a cluster; 0 stands for a node that does not say."""
    if 0.0 in (one_s, other_s):
        return True
    shorter_s, longer_s = sorted((one_s, other_s))
    return longer_s <= TTL_RATIO_MAX * shorter_s


@dataclass(frozen=True, slots=True, order=True)
class NodeRecord:
    """One registered node: `epoch` is one process life, `lease_id` the etcd lease that its key hangs on.

    With `leaving` it stops in order, and waits until others have what it runs. `ttl_s` is the lease's TTL as etcd has
    granted it, which may be longer than was requested; 0: the node is of a version that does not say. With
    `authenticates` its callers have to be known; those of a version that does not say need not.
    """

    node_id: str
    epoch: int
    address: str
    pid: int = 0
    version: str = ""
    started_at_s: float = 0.0
    lease_id: int = 0
    wire_format: int = WIRE_FORMAT
    leaving: bool = False
    ttl_s: float = 0.0
    authenticates: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A moment of etcd as one process has seen it; later ones are greater.

    `restores` counts how often the process has seen the store go back, as one that was restored from a backup does: its
    `revision`s mean something else then. `breaks` counts how often it has lost sight of it: it cannot know who came and
    went meanwhile.
    """

    restores: int = 0
    revision: int = 0
    breaks: int = 0


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the election key; `revision` is the key's create revision, which fences its writes."""

    node_id: str
    revision: int


# --- contexts of traces -----------------------------------------------------------------------------------------------
# A context travels as one text after W3C Trace Context, level 1 (`traceparent`).

TRACE_KEY = "traceparent"
"""The name under which a context travels, in the metadata of a call."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(text: object) -> str:
    """Return the context that `text`, which anybody may have written, says; empty if it says none."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else ""


def is_sampled(trace: str) -> bool:
    """Return whether somebody records the trace of this context."""
    return bool(trace) and bool(int(trace[-2:], 16) & 1)
