"""Pages of the changefeeds that jobs write, as values that the services and the client share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.core.api.request_bounds import refuse_beyond
from iscp.core.values.errors import InvalidRequest

CHANGES = 1_000
"""Changes of a page of a job's feed where the request gives no limit."""

CHANGES_MAX = 10_000
"""Changes of one page of a job's feed; a request for more is refused."""

FEED_WAIT_S_MAX = 60.0
"""The most seconds that a request for a page may wait for changes; a longer wait is refused."""

CURSOR_CHARS_MAX = 64_000
"""Characters of a cursor in a request, more than one of 1,024 shards has; a longer one is refused."""

_FURTHER = ", and read the next page behind this one"


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """A request for the changes behind a cursor (empty: from the first one that is left), `limit` of them at most.

    Where there are none it waits `wait_s` seconds for some. Raises InvalidRequest for anything out of bounds.
    """

    cursor: str = ""
    limit: int = CHANGES
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        refuse_beyond("limit", self.limit, 1, CHANGES_MAX, _FURTHER)
        refuse_beyond("wait_s", self.wait_s, 0.0, FEED_WAIT_S_MAX, _FURTHER)
        if (size := len(self.cursor)) > CURSOR_CHARS_MAX:
            raise InvalidRequest(
                f"has {size} characters, more than {CURSOR_CHARS_MAX}",
                field="cursor",
                remedy="Give one as a page has it",
            )


@dataclass(frozen=True, slots=True)
class FeedChange:
    """A change of a feed.

    `ulid` is its place in the order of all shards, as text; `key` and `row` are columns by name, as JSON has their
    values. `version` is the source's (None: the feed does not say); `net` says that it is what changed in all since the
    version before.
    """

    ulid: str
    shard: int
    operation: str
    row: Mapping[str, Any]
    key: Mapping[str, Any] = field(default_factory=dict)
    version: int | None = None
    net: bool = False


@dataclass(frozen=True, slots=True)
class ChangePage:
    """The changes behind a cursor in the order of their ulids, and the cursor to go on from.

    The text of a cursor is one line of JSON; it is empty while the job has not begun its feed.
    """

    changes: tuple[FeedChange, ...]
    cursor: str
