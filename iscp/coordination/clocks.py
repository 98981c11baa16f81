"""Which clocks are ahead of the owner's: times that nodes and commits bring count only as far as clocks may differ."""

from __future__ import annotations

CLOCKS_APART_S = 60.0
"""By how much clocks of nodes, and of those who commit, may differ; what is further ahead is of a wrong one."""


def of_the_future(at_s: float, now_s: float) -> bool:
    """Whether a time (Unix seconds) is further ahead than clocks are apart."""
    return at_s > now_s + CLOCKS_APART_S


class NodeClocks:
    """Those of nodes that are ahead, so that it is said once of each."""

    def __init__(self) -> None:
        self._ahead: set[str] = set()

    def note(self, node_id: str, at_s: float, now_s: float) -> str:
        """What is to be said of a node that has looked at its clock at `at_s`; empty: nothing, or that was said."""
        if not of_the_future(at_s, now_s):
            if node_id not in self._ahead:
                return ""
            self._ahead.discard(node_id)
            return "its clock agrees with the owner's again"
        if node_id in self._ahead:
            return ""
        self._ahead.add(node_id)
        return f"its clock is {at_s - now_s:.0f} s ahead of the owner's: its times count for nothing"
