"""The numbers of searches that a node carries out at a time, and how long one may take."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.values.setting_fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBounds:
    """Searches of indexes that the owner carries out. Programs that search by the library are not bounded by them.

    Calls that wait for their turn count as waits, which `WaitBounds` bounds.
    """

    node_max: int = setting(4, "Searches at a time; others wait for their turn", least=1)
    account_max: int = setting(2, "Of these, searches of indexes of one account", least=1)
    timeout_s: float = setting(
        30.0, "A search that takes longer, with the wait for its turn, fails with TIMEOUT", above=0.0
    )
