"""Holds of jobs on Delta tables, by properties of the tables themselves (port RetentionHold)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iscp.adapters.delta.source.table_properties import SetProperties
from iscp.core.job.source_holds import hold_properties


class DeltaRetentionHold:
    """Raises the properties by which Delta retains files and commits, and sets them back.

    `read_properties` returns a table's properties as of now.
    """

    def __init__(self, read_properties: Callable[[str], Mapping[str, str]], set_properties: SetProperties) -> None:
        self._read_properties = read_properties
        self._set_properties = set_properties

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        changes = hold_properties(self._read_properties(uri), holder, hold_s)
        if changes:
            self._set_properties(uri, changes)
        return bool(changes)

    def release(self, uri: str, holder: str) -> None:
        self.hold(uri, holder, 0.0)
