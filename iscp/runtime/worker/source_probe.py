"""A probe of a table's source, which says of what has come since whether it is a repair."""

from __future__ import annotations

from dataclasses import replace

from iscp.core.job.start_rule import ProbeState
from iscp.ports.catalog import CommitProbe


def probe_source(probe: CommitProbe, uri: str, seen: ProbeState | None) -> ProbeState:
    """Return the state at the newest version, from `seen` on; `seen` itself if nothing moved.

    Versions that have come since are read for repairs: what these take back may be deleted before every job has applied
    them. A table that did not move costs no read. Raises TableNotFound, StorageError.
    """
    if seen is None:
        return probe.first_probe(uri)
    state = probe.probe(uri, seen)
    if state.version <= seen.version:
        return state
    return replace(state, repair=probe.newest_repair(uri, seen.version, state.version) or seen.repair)
