"""A thin client of etcd's v3 API: calls, and nothing that decides (docs/adr/0003-etcd-client.md).

Every call has a deadline, and every error is one of `iscp.etcd.channels`. Reads are linearizable.
"""

from __future__ import annotations

import random
from typing import Any, assert_never

from iscp.etcd import channels as pb
from iscp.etcd.channels import Channels, EtcdLeaseGoneError, EtcdRefusedError
from iscp.etcd.keys import (
    Compare,
    Delete,
    EtcdSettings,
    Get,
    KeyValue,
    Listing,
    Member,
    Operation,
    Put,
    Status,
    Target,
    TxnResult,
    key_bytes,
    prefix_end,
)
from iscp.etcd.watch import WATCH_MAX_S, Watch, key_value
from iscp.ports.system import Clock

LIST_PAGE_KEYS = 1_000
"""Keys in one answer; longer lists are read in pages at one revision."""

_TARGETS = {target: number for number, target in enumerate(Target)}


class EtcdClient:
    """Speaks to an etcd cluster; one object for a whole program, from any of its threads.

    Reads raise EtcdUnavailable after `settings.timeout_s`; writes also raise EtcdOutcomeUnknown, where they
    were sent and not answered: they are never repeated here.
    """

    def __init__(self, settings: EtcdSettings, clock: Clock, watch_max_s: float = WATCH_MAX_S) -> None:
        self._channels = Channels(settings, clock)
        self._clock = clock
        self._watch_max_s = watch_max_s

    def close(self) -> None:
        """End all calls and watches; what is called afterwards raises EtcdUnavailable."""
        self._channels.close()

    def __enter__(self) -> EtcdClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str) -> KeyValue | None:
        response = self._range(pb.RangeRequest(key=key_bytes(key)))
        return key_value(response.kvs[0]) if response.kvs else None

    def list_prefix(self, prefix: str) -> Listing:
        """Return all keys under the prefix at one revision, fetched in pages; raise EtcdCompacted if that is gone
        meanwhile.
        """
        key = key_bytes(prefix)
        end, revision = prefix_end(key), 0
        items: list[KeyValue] = []
        while True:
            response = self._range(pb.RangeRequest(key=key, range_end=end, limit=LIST_PAGE_KEYS, revision=revision))
            revision = revision or response.header.revision
            items.extend(key_value(kv) for kv in response.kvs)
            if not response.more:
                return Listing(revision, tuple(items), response.header.cluster_id)
            key = response.kvs[-1].key + b"\x00"

    def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
        """Write unconditionally; the revision. EtcdLeaseGone if the lease is."""
        request = pb.PutRequest(key=key_bytes(key), value=value, lease=lease_id)
        return int(self._channels.unary(pb.path("KV", "Put"), request, writes=True).header.revision)

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key, or all under a prefix, and return how many keys were deleted."""
        request = _delete(Delete(key, prefix))
        return int(self._channels.unary(pb.path("KV", "DeleteRange"), request, writes=True).deleted)

    def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Run `success` if all comparisons hold, else `failure`, as one step."""
        request = pb.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_operation(operation) for operation in success],
            failure=[_operation(operation) for operation in failure],
        )
        reads_only = all(isinstance(operation, Get) for operation in (*success, *failure))
        response = self._channels.unary(pb.path("KV", "Txn"), request, writes=not reads_only)
        results = tuple(tuple(key_value(kv) for kv in part.response_range.kvs) for part in response.responses)
        return TxnResult(response.succeeded, response.header.revision, results)

    def create(self, key: str, value: bytes, lease_id: int = 0) -> int | None:
        """Write the key if there is none; its create revision, or None if there is one."""
        result = self.txn((Compare.absent(key),), (Put(key, value, lease_id),))
        return result.revision if result.succeeded else None

    def compact(self, revision: int) -> None:
        request = pb.CompactionRequest(revision=revision, physical=True)
        self._channels.unary(pb.path("KV", "Compact"), request, writes=True)

    @property
    def watch_events(self) -> int:
        """Return how many changes of keys all watches have brought."""
        return self._channels.watch_events

    def watch(self, key: str, *, start_revision: int, prefix: bool = False, survives_connection: bool = True) -> Watch:
        return Watch(
            self._channels,
            self._clock,
            key,
            prefix=prefix,
            start_revision=start_revision,
            survives_connection=survives_connection,
            lasts_s=self._watch_max_s * random.uniform(0.5, 1.0),
        )

    def grant(self, ttl_s: int) -> tuple[int, int]:
        """Grant a new lease; return its id, and its TTL in seconds as granted, which may be longer than requested.

        The call is repeated if unanswered: a lease that nobody knows just expires.
        """
        response = self._channels.unary(pb.path("Lease", "LeaseGrant"), pb.LeaseGrantRequest(TTL=ttl_s), writes=False)
        if response.error:
            raise EtcdRefusedError(response.error)
        return int(response.ID), int(response.TTL)

    def keep_alive(self, lease_id: int, *, timeout_s: float | None = None) -> int:
        """Renew once; the TTL in seconds from now, or 0 if the lease is gone."""
        request = pb.LeaseKeepAliveRequest(ID=lease_id)
        path = pb.path("Lease", "LeaseKeepAlive")
        return max(int(self._channels.stream_once(path, request, timeout_s=timeout_s).TTL), 0)

    def time_to_live(self, lease_id: int) -> int:
        """Return the whole seconds that are left, or -1 if the lease is gone."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id)
        return int(self._channels.unary(pb.path("Lease", "LeaseTimeToLive"), request, writes=False).TTL)

    def read_granted_ttl(self, lease_id: int) -> int:
        """Return the whole TTL of a lease, as granted, in seconds; 0 if the lease is gone."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id)
        return int(self._channels.unary(pb.path("Lease", "LeaseTimeToLive"), request, writes=False).grantedTTL)

    def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys; one that is gone already is no error."""
        request = pb.LeaseRevokeRequest(ID=lease_id)
        try:
            # Repeated like a read: a second revocation finds the lease gone, which is what was wanted.
            self._channels.unary(pb.path("Lease", "LeaseRevoke"), request, writes=False)
        except EtcdLeaseGoneError:
            return

    def status(self, *, timeout_s: float | None = None) -> Status:
        """Return the status of the member that is connected."""
        path = pb.path("Maintenance", "Status")
        answer = self._channels.unary(path, pb.StatusRequest(), writes=False, timeout_s=timeout_s)
        return Status(
            version=answer.version,
            member_id=answer.header.member_id,
            errors=tuple(answer.errors),
        )

    def members(self) -> tuple[Member, ...]:
        """Return the members of the etcd cluster, as the cluster itself lists them."""
        path = pb.path("Cluster", "MemberList")
        answer = self._channels.unary(path, pb.MemberListRequest(linearizable=True), writes=False)
        return tuple(Member(each.ID, each.name, tuple(each.clientURLs)) for each in answer.members)

    def _range(self, request: Any) -> Any:
        return self._channels.unary(pb.path("KV", "Range"), request, writes=False)


def _compare(compare: Compare) -> Any:
    return pb.Compare(
        key=key_bytes(compare.key),
        target=_TARGETS[compare.target],
        result=compare.relation.value,
        **{compare.target.value: compare.operand},
    )


def _operation(operation: Operation) -> Any:
    match operation:
        case Put():
            put = pb.PutRequest(key=key_bytes(operation.key), value=operation.value, lease=operation.lease_id)
            return pb.RequestOp(request_put=put)
        case Delete():
            return pb.RequestOp(request_delete_range=_delete(operation))
        case Get():
            key = key_bytes(operation.key)
            end = prefix_end(key) if operation.prefix else b""
            return pb.RequestOp(request_range=pb.RangeRequest(key=key, range_end=end))
        case _:
            assert_never(operation)


def _delete(operation: Delete) -> Any:
    key = key_bytes(operation.key)
    return pb.DeleteRangeRequest(key=key, range_end=prefix_end(key) if operation.prefix else b"")
