"""Which keys there are in etcd, below one prefix (docs/etcd-keys.md describes their values).

nodes/<node_id>               a registered node, on its lease
epochs/<node_id>              the last epoch given to a life of this node
election/owner/<lease id>     a candidate for owner, on its lease; the oldest one leads
revoked/<node_id>/<epoch>     that life's lease was revoked, and it may not know it yet; on a lease that outlasts that
overrides/<kind>/<name>       what operators have said: `cordon` and `drain` of a node, `pin` of a shard
checkpoint                    the global checkpoint
joblog                        the last version of the job log that is known to be written
joblog_fault                  why the owner cannot claim the job log, on its candidacy's lease
changefeed/<feed>/<shard>/locks/<incidents>/<lease id>-<number>
                              a writer in line for a shard of a changefeed, on its lease; the oldest one's turn it is
changefeed/<feed>/<shard>/incidents
                              how many locks of the shard were given up
changefeed/<feed>/cursors/<name>
                              how far a reader of the changefeed has come
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def changefeed(self, feed: str) -> str:
        return self._below(f"changefeed/{feed}/")

    def feed_line(self, feed: str, shard: str, incidents: int) -> str:
        return f"{self.changefeed(feed)}{shard}/locks/{incidents}/"

    def feed_place(self, line: str, lease_id: int, number: int) -> str:
        return f"{line}{lease_id:016x}-{number}"

    def feed_incidents(self, feed: str, shard: str) -> str:
        return f"{self.changefeed(feed)}{shard}/incidents"

    def feed_cursors(self, feed: str) -> str:
        return f"{self.changefeed(feed)}{CURSORS}/"

    def feed_cursor(self, feed: str, name: str) -> str:
        return f"{self.feed_cursors(feed)}{name}"

    def _below(self, rest: str) -> str:
        return f"{self.prefix.rstrip('/')}/{rest}"
