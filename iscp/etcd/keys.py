"""The values that are written to etcd and read from it, and the layout of the keys of a cluster (docs/etcd-keys.md).

The module also has how a member's record is written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from iscp.model.settings.config import EtcdConfig
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import NodeRecord
from iscp.model.values.untrusted_values import error_text, exact_float, exact_int, exact_name, named_error, printable
from iscp.system.tls.certificate_watch import etcd_files
from iscp.system.tls.tls_files import TlsFiles

log = logging.getLogger(__name__)

# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The endpoints of etcd, and the settings of connections to it.

    `endpoints` are `host:port`, with `http://` or `https://` before it or not; they are tried in their order, and one
    that works is used from then on. `timeout_s` bounds every call, with all its attempts.
    """

    endpoints: tuple[str, ...]
    tls: TlsFiles | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 5.0

    @classmethod
    def of(cls, config: EtcdConfig) -> EtcdSettings:
        return cls(
            endpoints=tuple(config.endpoints),
            tls=etcd_files(config),
            username=config.user,
            password=config.password,
            timeout_s=config.request_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key at some revision. `create_revision` changes when it is deleted and made again; 0: no lease."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int


class Target(Enum):
    """The property of a key that a comparison reads: the field's name in etcd's message."""

    VERSION = "version"
    CREATE = "create_revision"
    MOD = "mod_revision"
    VALUE = "value"
    LEASE = "lease"


class Relation(Enum):
    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction. A missing key has create_revision, mod_revision, version, lease 0."""

    key: str
    target: Target
    operand: int | bytes
    relation: Relation = Relation.EQUAL

    @classmethod
    def absent(cls, key: str) -> Compare:
        return cls(key, Target.CREATE, 0)

    @classmethod
    def created_at(cls, key: str, revision: int) -> Compare:
        """The key is there, and is the very one that was created then."""
        return cls(key, Target.CREATE, revision)

    @classmethod
    def modified_at(cls, key: str, revision: int) -> Compare:
        return cls(key, Target.MOD, revision)


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    key: str
    prefix: bool = False


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """A transaction's outcome: which branch ran, and for each of its operations what a Get found (others: empty)."""

    succeeded: bool
    revision: int
    results: tuple[tuple[KeyValue, ...], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a prefix at one revision, sorted by key: a watch from `revision + 1` misses nothing.

    `store_id`: of the etcd cluster; a store that was restored may have another one.
    """

    revision: int
    items: tuple[KeyValue, ...]
    store_id: int = 0

    def holds(self, key: str, revision: int) -> bool:
        """Return whether the listing has this key as it was created at that revision."""
        return any(kv.key == key and kv.create_revision == revision for kv in self.items)

    def last_before(self, revision: int) -> KeyValue | None:
        """Return the newest key of those created before that revision; None: there is none."""
        earlier = (kv for kv in self.items if kv.create_revision < revision)
        return max(earlier, key=lambda kv: kv.create_revision, default=None)


@dataclass(frozen=True, slots=True)
class Member:
    """One of etcd's own members, which has no name or addresses before it has started."""

    member_id: int
    name: str
    client_urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    version: str
    member_id: int
    errors: tuple[str, ...]


class EventType(Enum):
    PUT = 0
    DELETE = 1


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change of one key; of a deleted key `kv` holds the name and the revision of the deletion."""

    type: EventType
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class Changed:
    """Events in the order of their revisions; the events of one transaction are never parted."""

    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The server says that all up to `revision` has been sent. For information: resuming does not rely on it."""

    revision: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """Events after the last one delivered are gone: list again and watch from there. The watch ends with this item.

    `revision` is the oldest that can still be read, or 0 where the store itself was recreated.
    """

    revision: int


WatchItem = Changed | Progress | Compacted


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all that begin with `prefix`; etcd's sign for "to the end" if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\x00"


def key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


# --- keys, and the records of members ---------------------------------------------------------------------------------

FORMAT = 1
"""The format of a member's record."""

DEFAULT_PREFIX = "/iscp"
CURSORS = "cursors"
"""Stands where a shard would: those are numbers."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The layout below `prefix`, which separates clusters that share an etcd; a `/` at its end is immaterial.

    nodes/<node_id>               a registered node, on its lease
    epochs/<node_id>              the last epoch given to a life of this node
    election/owner/<lease id>     a candidate for owner, on its lease; the oldest one leads
    revoked/<node_id>/<epoch>     that life's lease was revoked, and it may not know it yet; on a lease that
                                  outlasts that
    deaths/<node_id>              of which jobs' work that node's process has died
    overrides/<kind>/<name>       what operators have ordered: `cordon` and `drain` of a node, `pin` of a shard
    checkpoint                    the global checkpoint
    joblog                        the last version of the job log that is known to be written
    joblog_fault                  why the owner cannot claim the job log, on its candidacy's lease
    builds/…                      what is still to be built of first snapshots (iscp.etcd.watched_keys)
    access/…                      tokens of clients (iscp.etcd.watched_keys)
    changefeed/<feed>/<shard>/locks/<incidents>/<lease id>-<number>
                                  a writer in a lock queue of a changefeed's shard, on its lease; the oldest has
                                  the lock
    changefeed/<feed>/<shard>/incidents
                                  how many locks of the shard were given up
    changefeed/<feed>/cursors/<name>
                                  how far a reader of the changefeed has come
    """

    prefix: str = DEFAULT_PREFIX

    @property
    def nodes(self) -> str:
        return self._below("nodes/")

    def node(self, node_id: str) -> str:
        return f"{self.nodes}{node_id}"

    def epoch(self, node_id: str) -> str:
        return self._below(f"epochs/{node_id}")

    @property
    def candidates(self) -> str:
        return self._below("election/owner/")

    def candidate(self, lease_id: int) -> str:
        return f"{self.candidates}{lease_id:016x}"

    @property
    def revoked(self) -> str:
        return self._below("revoked/")

    def revocation(self, node_id: str, epoch: int) -> str:
        return f"{self.revoked}{node_id}/{epoch}"

    @property
    def deaths(self) -> str:
        return self._below("deaths/")

    def death(self, node_id: str) -> str:
        return f"{self.deaths}{node_id}"

    @property
    def overrides(self) -> str:
        return self._below("overrides/")

    def override(self, kind: str, name: str) -> str:
        return f"{self.overrides}{kind}/{name}"

    @property
    def checkpoint(self) -> str:
        return self._below("checkpoint")

    @property
    def job_log(self) -> str:
        return self._below("joblog")

    @property
    def job_log_fault(self) -> str:
        return self._below("joblog_fault")

    @property
    def builds(self) -> str:
        return self._below("builds/")

    @property
    def access(self) -> str:
        return self._below("access/")

    def changefeed(self, feed: str) -> str:
        return self._below(f"changefeed/{feed}/")

    def feed_queue(self, feed: str, shard: str, incidents: int) -> str:
        return f"{self.changefeed(feed)}{shard}/locks/{incidents}/"

    def feed_place(self, queue: str, lease_id: int, number: int) -> str:
        return f"{queue}{lease_id:016x}-{number}"

    def feed_incidents(self, feed: str, shard: str) -> str:
        return f"{self.changefeed(feed)}{shard}/incidents"

    def feed_cursors(self, feed: str) -> str:
        return f"{self.changefeed(feed)}{CURSORS}/"

    def feed_cursor(self, feed: str, name: str) -> str:
        return f"{self.feed_cursors(feed)}{name}"

    def _below(self, rest: str) -> str:
        return f"{self.prefix.rstrip('/')}/{rest}"


def encoded(record: NodeRecord) -> bytes:
    """Return the value of a node's key."""
    return json.dumps(
        {
            "format": FORMAT,
            "node_id": record.node_id,
            "epoch": record.epoch,
            "address": record.address,
            "pid": record.pid,
            "version": record.version,
            "started_at_s": record.started_at_s,
            "wire_format": record.wire_format,
            "leaving": record.leaving,
            "ttl_s": record.ttl_s,
            "authenticates": record.authenticates,
        }
    ).encode()


def snapshot_of(known: Iterable[KeyValue]) -> tuple[NodeRecord, ...]:
    """Return the records, sorted; those that cannot be read are passed over."""
    return tuple(sorted(record for kv in known if (record := _decode(kv)) is not None))


def epoch_of(kv: KeyValue | None) -> int:
    """Return the last epoch that was given to a node, by its key; 0 without one. Raises ConfigurationError."""
    try:
        return exact_int(int(kv.value), "the epoch") if kv else 0
    except ValueError as error:
        raise ConfigurationError(
            f"the key {printable(kv.key if kv else '')} in etcd holds no epoch: {error_text(error)}",
            remedy="Put a number there that is greater than any epoch that the node had, and start it again",
        ) from error


def _decode(kv: KeyValue) -> NodeRecord | None:
    try:
        fields = json.loads(kv.value)
        return NodeRecord(
            node_id=_require_name(fields["node_id"], "node_id"),
            epoch=exact_int(fields["epoch"], "epoch"),
            address=_require_name(fields["address"], "address"),
            pid=exact_int(fields["pid"], "pid"),
            version=exact_name(fields["version"], "version"),
            started_at_s=exact_float(fields["started_at_s"], "started_at_s"),
            lease_id=kv.lease_id,
            wire_format=exact_int(fields.get("wire_format", 1), "wire_format"),
            leaving=bool(fields.get("leaving", False)),
            ttl_s=exact_float(fields.get("ttl_s", 0.0), "ttl_s", 0.0),
            authenticates=bool(fields.get("authenticates", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = named_error(error)
        log.warning("etcd.members.unreadable_record", extra={"key": printable(kv.key), "reason": reason})
        return None


def _require_name(value: object, name: str) -> str:
    if not (text := exact_name(value, name)):
        raise ValueError(f"{name} is empty")
    return text
