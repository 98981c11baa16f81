"""A hold alters a table's properties where they say less, and leaves all others alone."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.adapters.delta.source.table_retention import DeltaRetentionHold

FILES = "delta.deletedFileRetentionDuration"


class Table:
    """A table's properties, and how often they were altered."""

    def __init__(self, **properties: str) -> None:
        self.properties = dict(properties)
        self.altered = 0
        self.holds = DeltaRetentionHold(lambda uri: self.properties, self._set)

    def _set(self, uri: str, values: Mapping[str, str | None]) -> None:
        self.altered += 1
        merged = {**self.properties, **values}
        self.properties = {name: value for name, value in merged.items() if value is not None}


def test_a_hold_is_one_change_of_the_table_and_placing_it_again_is_none() -> None:
    table = Table(**{FILES: "interval 1 hours", "user": "own"})
    assert table.holds.hold("/lake/t", "a/t/view", 7_200.0)
    assert table.properties[FILES] == "interval 7200 seconds"
    assert not table.holds.hold("/lake/t", "a/t/view", 7_200.0)
    assert table.altered == 1


def test_a_release_leaves_the_table_as_it_was_and_one_of_nobody_alters_nothing() -> None:
    table = Table(**{FILES: "interval 1 hours", "user": "own"})
    before = dict(table.properties)
    table.holds.release("/lake/t", "a/t/view")
    assert table.altered == 0
    table.holds.hold("/lake/t", "a/t/view", 7_200.0)
    table.holds.release("/lake/t", "a/t/view")
    assert table.properties == before
