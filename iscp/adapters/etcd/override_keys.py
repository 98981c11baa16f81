"""The overrides of operators for nodes and shards: a key for each, which only the owner writes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.values import Delete, Put
from iscp.coordination.protocol.overrides import Overrides
from iscp.core.job.report_validation import exact_shard
from iscp.core.values.ids import ShardId, parse_shard
from iscp.core.values.members import Leader
from iscp.core.values.untrusted_values import error_text, exact_name, printable

log = logging.getLogger(__name__)

CORDON, DRAIN, PIN = "cordon", "drain", "pin"
WRITES_AT_ONCE_MAX = 100
"""Operators' overrides written in one transaction, as etcd refuses more than 128 operations; the others follow in
further ones.
"""


class EtcdOverrides:
    """The port `OverrideStore` on etcd."""

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._keys = keys

    def load(self) -> Overrides:
        found: dict[str, dict[str, str]] = {CORDON: {}, DRAIN: {}, PIN: {}}
        for kv in self._client.list_prefix(self._keys.overrides).items:
            kind, _, name = kv.key.removeprefix(self._keys.overrides).partition("/")
            try:
                if kind not in found or not exact_name(name, "the name"):
                    raise ValueError("it is none of an override")
                if kind == PIN:
                    exact_shard(parse_shard(name))
                found[kind][name] = kv.value.decode()
            except ValueError as error:  # one that somebody else wrote; no owner is to end by it
                log.warning(
                    "etcd.overrides.unreadable_key", extra={"key": printable(kv.key), "reason": error_text(error)}
                )
        pins = {parse_shard(name): node_id for name, node_id in found[PIN].items()}
        return Overrides(frozenset(found[CORDON]), frozenset(found[DRAIN]), pins)

    def save(self, leader: Leader, before: Overrides, after: Overrides) -> None:
        writes = list(self._writes(before, after))
        for first in range(0, len(writes), WRITES_AT_ONCE_MAX):
            # Not atomic as a whole: a caller that fails half-way loads what was written, and goes on from there.
            self._election.write_fenced(leader, *writes[first : first + WRITES_AT_ONCE_MAX])

    def _writes(self, before: Overrides, after: Overrides) -> Iterator[Put | Delete]:
        for kind, had, has in ((CORDON, before.cordoned, after.cordoned), (DRAIN, before.draining, after.draining)):
            yield from (Put(self._keys.override(kind, name), b"") for name in sorted(has - had))
            yield from (Delete(self._keys.override(kind, name)) for name in sorted(had - has))
        for shard in sorted(after.pins):
            if before.pins.get(shard) != after.pins[shard]:
                yield Put(self._pin(shard), after.pins[shard].encode())
        yield from (Delete(self._pin(shard)) for shard in sorted(before.pins.keys() - after.pins.keys()))

    def _pin(self, shard: ShardId) -> str:
        return self._keys.override(PIN, str(shard))
