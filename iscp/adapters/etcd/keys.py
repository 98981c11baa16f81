"""The keys in etcd, below one prefix, and how members are written there (docs/etcd-keys.md).

nodes/<node_id>               a registered node, on its lease
epochs/<node_id>              the last epoch given to a life of this node
election/owner/<lease id>     a candidate for owner, on its lease; the oldest one leads
revoked/<node_id>/<epoch>     that life's lease was revoked, and it may not know it yet; on a lease that outlasts that
deaths/<node_id>              of which jobs' work that node's process has died
overrides/<kind>/<name>       what operators have ordered: `cordon` and `drain` of a node, `pin` of a shard
checkpoint                    the global checkpoint
joblog                        the last version of the job log that is known to be written
joblog_fault                  why the owner cannot claim the job log, on its candidacy's lease
builds/…                      what is still to be built of first snapshots (iscp.adapters.etcd.builds.build_keys)
access/…                      tokens of clients (iscp.adapters.etcd.tokens.token_keys)
changefeed/<feed>/<shard>/locks/<incidents>/<lease id>-<number>
                              a writer in a lock queue of a changefeed's shard, on its lease; the oldest has the lock
changefeed/<feed>/<shard>/incidents
                              how many locks of the shard were given up
changefeed/<feed>/cursors/<name>
                              how far a reader of the changefeed has come
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from iscp.adapters.etcd.values import KeyValue
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.members import NodeRecord
from iscp.core.values.untrusted_values import error_text, exact_float, exact_int, exact_name, named_error, printable

log = logging.getLogger(__name__)

FORMAT = 1
"""The format of a member's record."""

DEFAULT_PREFIX = "/iscp"
CURSORS = "cursors"
"""Stands where a shard would: those are numbers."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The layout below `prefix`, which separates clusters that share an etcd; a `/` at its end is immaterial."""

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
