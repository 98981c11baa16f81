"""Find clocks that are ahead of the owner's: times from nodes and commits count only as far as clocks may differ."""

from __future__ import annotations

CLOCKS_APART_S = 60.0
"""Seconds by which clocks of nodes, and of those who commit, may differ; a clock that is further ahead is wrong."""


def of_the_future(at_s: float, now_s: float) -> bool:
    """Return whether a time (Unix seconds) is further ahead than clocks are apart."""
    return at_s > now_s + CLOCKS_APART_S


AHEAD_FOR_S = 600.0
"""Seconds after which a clock that was set ahead is believed: what sets a clock wrong for a moment is over by then."""


class SteadyTime:
    """The time of day of an owner, as far as it counts: a clock that jumps ahead counts only once it has stayed there.

    Until then the time goes on from what it was, by the monotonic clock. A clock that is set back counts at once.
    """

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._ahead: tuple[float, float] | None = None  # by how much it is ahead of the monotonic clock, and since when

    def read(self, at_s: float, now_s: float) -> float:
        """Return the time (Unix seconds) where the clock says `at_s`, at `now_s` by the monotonic one."""
        offset_s = at_s - now_s
        if self._offset_s is None or not of_the_future(offset_s, self._offset_s):
            self._offset_s, self._ahead = offset_s, None
            return at_s
        if self._ahead is None or abs(offset_s - self._ahead[0]) > CLOCKS_APART_S:
            self._ahead = offset_s, now_s
        if now_s - self._ahead[1] < AHEAD_FOR_S:
            return now_s + self._offset_s
        self._offset_s, self._ahead = offset_s, None
        return at_s


class NodeClocks:
    """The nodes whose clocks are ahead, so that each is reported once."""

    def __init__(self) -> None:
        self._ahead: set[str] = set()

    def note(self, node_id: str, at_s: float, now_s: float) -> str:
        """Return what is to be reported of a node that has read its clock at `at_s`; empty if there is nothing, or it
        was reported.
        """
        if not of_the_future(at_s, now_s):
            if node_id not in self._ahead:
                return ""
            self._ahead.discard(node_id)
            return "its clock agrees with the owner's again"
        if node_id in self._ahead:
            return ""
        self._ahead.add(node_id)
        return f"its clock is {at_s - now_s:.0f} s ahead of the owner's: its times count for nothing"
