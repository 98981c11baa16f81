"""Holds on tables, recorded as they are placed and released."""

from __future__ import annotations


class FakeHolds:
    """Port RetentionHold: `held` has what was placed, by table and holder; `refusals` are raised, by table."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], float] = {}
        self.placed: list[str] = []
        self.released: list[tuple[str, str]] = []
        self.refusals: dict[str, Exception] = {}

    def hold(self, uri: str, holder: str, hold_s: float) -> bool:
        self._refuse(uri)
        self.placed.append(uri)
        before = self.held.get((uri, holder))
        self.held[uri, holder] = hold_s
        return before != hold_s

    def release(self, uri: str, holder: str) -> None:
        self._refuse(uri)
        self.released.append((uri, holder))
        self.held.pop((uri, holder), None)

    def _refuse(self, uri: str) -> None:
        if uri in self.refusals:
            raise self.refusals[uri]
