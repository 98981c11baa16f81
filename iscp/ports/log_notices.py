"""The port to who notices commits at once, where the place of a table can say so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class LogNotices(Protocol):
    """Notices commits to tables. It may miss some, and notice what is none: a probe finds out in any case."""

    def follow(self, table_uris: Collection[str]) -> None:
        """Notice commits to these tables from now on, and to no others; those that it cannot follow are left to probes.

        Each of them is noticed once, as there may have been a commit before.
        """

    def close(self) -> None: ...
