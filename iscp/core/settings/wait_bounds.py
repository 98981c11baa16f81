"""The numbers of calls that may wait at a time for something to happen: for one caller, for one account, for all."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.values.setting_fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBounds:
    """Calls of WaitJob, VerifyJob, GetEvents and Search, which wait at the owner, also those by JSON or from other
    nodes; and calls of ReadFeed, which wait at the node that is called.
    """

    node_max: int = setting(200, "Calls that wait at a time; one more is refused with QUEUE_FULL", least=1)
    account_max: int = setting(100, "Of these, calls of one account", least=1)
    caller_max: int = setting(
        50, "Of these, calls of one caller, or, where callers are not known, of one host", least=1
    )
