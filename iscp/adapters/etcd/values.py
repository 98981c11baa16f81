"""Values for what is written to etcd and read from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from iscp.adapters.tls.node_certificates import etcd_files
from iscp.adapters.tls.tls_files import TlsFiles
from iscp.core.settings.config import EtcdConfig


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
