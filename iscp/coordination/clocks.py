"""Find clocks that are ahead of the owner's: times from nodes and commits count only as far as clocks may differ."""

from __future__ import annotations

CLOCKS_APART_S = 60.0
"""Seconds by which clocks of nodes, and of those who commit, may differ; a clock that is further ahead is wrong."""


def of_the_future(at_s: float, now_s: float) -> bool:
    """Return whether a time (Unix seconds) is further ahead than clocks are apart."""
    return at_s > now_s + CLOCKS_APART_S


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
