"""Sources whose versions a test sets (port CommitProbe)."""

from __future__ import annotations

from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import IscpError, TableNotFound


class FakeProbe:
    """`versions` and `errors` by URI; `anew` recreates a log. `looks` counts the probes. `far` are remote.

    `repairs`: versions that are repairs; `read` are those that were read for that.
    """

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.errors: dict[str, IscpError] = {}
        self.looks: dict[str, int] = {}
        self._lives: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        self.far: set[str] = set()
        self.repairs: set[int] = set()
        self.read: list[int] = []

    def remote(self, table_uri: str) -> bool:
        return table_uri in self.far

    def place(self, table_uri: str) -> str:
        """What comes before the last slash."""
        return table_uri.rpartition("/")[0] or "/"

    def commit(self, table_uri: str, count: int = 1, *, at_s: float = 0.0) -> int:
        """`at_s`: as ProbeState.since_s."""
        self._since_s[table_uri] = at_s
        self.versions[table_uri] = self.versions.get(table_uri, -1) + count
        return self.versions[table_uri]

    def anew(self, table_uri: str, version: int = 0) -> None:
        self._lives[table_uri] = self._lives.get(table_uri, 0) + 1
        self.versions[table_uri] = version

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        state = self.first_probe(table_uri)
        return seen if (seen.version, seen.stamp) == (state.version, state.stamp) else state

    def newest_repair(self, table_uri: str, after: int, until: int) -> int:
        versions = range(after + 1, until + 1)
        self.read += versions
        return max(self.repairs.intersection(versions), default=0)

    def first_probe(self, table_uri: str) -> ProbeState:
        self.looks[table_uri] = self.looks.get(table_uri, 0) + 1
        if table_uri in self.errors:
            raise self.errors[table_uri]
        if table_uri not in self.versions:
            raise TableNotFound("no such table", about="table")
        version = self.versions[table_uri]
        stamp = b"%d %d" % (self._lives.get(table_uri, 0), version)
        return ProbeState(version, stamp, self._since_s.get(table_uri, 0.0))
