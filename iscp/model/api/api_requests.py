"""The values behind the requests of `Admin` and `Operator`, which users and operators make.

Checks numbers in requests, and says what is wrong with one that is out of bounds.

Lines of the nodes' logs: which are wanted, which belong to a job, and what a node answers.

A search of an index and its answer, as values that the library and the services share.

Pages of the changefeeds that jobs write, as values that the services and the client share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import unescape
from typing import Any

from iscp.model.job.job_row import JobState, Reason
from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.untrusted_values import LogLevel, shown


@dataclass(frozen=True, slots=True)
class JobName:
    """The name of a job as users give it: `table` is a path or URI of a Delta table, `db.table` of a catalog, or a
    table id.
    """

    table: str
    name: str
    account: str = DEFAULT_ACCOUNT


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """A registration. `spec_json` is a job_spec (see iscp.model.job.job_row); `request_id` makes a retry get the first
    answer.
    """

    job: JobName
    spec_json: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    """Rebuild a job's target from its source; the job goes on under a new job_id.

    `table` is where its source is now (empty: where it was, whichever table is there). `spec_json` is what its spec
    becomes (empty: it stays).
    """

    job: JobName
    table: str = ""
    spec_json: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """Change the fields of a job's spec that `changes_json` has, which is a job_spec without what stays as it is.

    null takes a field back to its default. With `interrupt` everything that runs or waits by the former spec is
    cancelled and starts over. `request_id` makes a retry get the first answer.
    """

    job: JobName
    changes_json: str
    interrupt: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Explain how a job maintains the result of its query; with `spec_json`, how a consumer of this job_spec would."""

    job: JobName
    spec_json: str = ""


class ChangeVerb(StrEnum):
    """A change of a job that is there. DELETE_TARGET deletes the job's target, and unregisters the job once that is
    done.
    """

    UNREGISTER = "unregister"
    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"
    DELETE_TARGET = "delete_target"


@dataclass(frozen=True, slots=True)
class JobChange:
    """One of several changes. `request_id` makes a retry get the first answer."""

    verb: ChangeVerb
    job: JobName
    request_id: str = ""


ChangeOutcome = bool | PermanentError
"""True if it was changed, False if it was so already (UNREGISTER and DELETE_TARGET: there is no such job), or the
error by which it was refused.
"""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs, in which empty fields do not filter. `limit` bounds what one answer carries.

    Patterns are those of iscp.model.job.registration_id. `late` selects only jobs that lag by more than their target
    lag.
    """

    account: str = ""
    table: str = ""
    state: JobState | None = None
    reason: Reason | None = None
    limit: int = 10_000
    table_pattern: str = ""
    name_pattern: str = ""
    late: bool = False


class NodeVerb(StrEnum):
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"


class ShardVerb(StrEnum):
    MOVE = "move"
    PIN = "pin"
    UNPIN = "unpin"


def refuse_beyond(name: str, value: float, least: float, most: float, further: str = "") -> None:
    """Raise InvalidRequest for a number beyond its bounds, and for NaN; `further` ends the remedy."""
    # NaN is between no two numbers.
    if not least <= value <= most:
        raise InvalidRequest(
            f"is {shown(value)}, and not between {least:g} and {most:g}",
            field=name,
            remedy=f"Choose a number between {least:g} and {most:g}{further}",
        )


LINES_MAX = 10_000
"""Lines of one node's log in one answer; a request for more is refused."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The place up to which a node's log has been read. `life` is one process of the node; `number` its last line, from
    1.
    """

    life: int
    number: int


@dataclass(frozen=True, slots=True)
class JobOfLines:
    """A job, and all names under which lines of a log may have its table: its id, its name and its URI."""

    job_id: str
    name: str
    account: str
    tables: tuple[str, ...]

    def named_in(self, fields: Mapping[str, object]) -> bool:
        """Return whether a line with these fields is about the job, or about its table and no other job.

        The fields are those of `iscp.model.job.registration_id`.
        """
        if "job_id" in fields:
            return fields["job_id"] == self.job_id
        if isinstance(several := fields.get("job_ids"), list):
            return self.job_id in several
        shard = str(fields.get("shard", "")).partition("/")[0]
        if fields.get("table") not in self.tables and shard not in self.tables:
            return False
        return fields.get("job", self.name) == self.name and fields.get("account", self.account) == self.account


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The lines after `after` of `level` or worse, or without `after` the newest `tail` (0: LINES_MAX).

    With `since_s` only lines of the last so many seconds by the node's clock count; 0: all that are retained.
    """

    after: LogPlace | None = None
    since_s: float = 0.0
    tail: int = 0
    level: LogLevel = LogLevel.DEBUG
    job: JobOfLines | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log: a JSON object, logged at `at_s` (Unix seconds)."""

    number: int
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """The answer of a node to a LogQuery, the oldest line first; the next query's `after` is `place`.

    `lost` counts lines after the query's `after` that are no longer retained. `restarted` is set if the query's `after`
    is of a former life. `fault` says why the node did not answer; then there is nothing else.
    """

    node_id: str
    place: LogPlace = LogPlace(0, 0)
    lost: int = 0
    restarted: bool = False
    fault: str = ""
    lines: tuple[LogLine, ...] = ()


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


K_MAX = 1_000
"""Hits of one answer; a search for more is refused."""

SEARCH_TEXT_CHARS_MAX = 8_000
"""Characters of a query's text; a longer one is refused."""

VECTOR_NUMBERS_MAX = 8_192
"""Numbers of a query's vector; a longer one is refused."""

FILTER_CHARS_MAX = 16_000
"""Characters of a filter; a longer one is refused."""

COLUMNS_MAX = 1_000
"""Columns that a search may name for its hits; more are refused."""

MARK = ("<em>", "</em>")
"""What stands before and behind a word that is marked in a fragment."""

WAIT_S = 10.0
"""Seconds that a search waits for `min_version` unless it says otherwise; it is refused if the index is not there then.
"""

WAIT_S_MAX = 300.0
"""The most seconds that a search may wait for `min_version`; a longer wait is refused."""

WEIGHT_MAX = 1_000.0
"""The greatest weight of words or vectors in a hybrid search; a greater one is refused."""

URI_CHARS_MAX = 4_000
"""Characters of an index's place; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class SearchWeights:
    """The ranking by words and that by vectors count so much in a hybrid search. One of them is more than 0."""

    text: float = 1.0
    vector: float = 1.0

    def __post_init__(self) -> None:
        for name in ("text", "vector"):
            refuse_beyond(f"weights.{name}", getattr(self, name), 0.0, WEIGHT_MAX)
        if not self.text + self.vector > 0:
            raise InvalidRequest("are both 0", field="weights", remedy="Give one of them a greater weight")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One search of the index at `uri`. Raises InvalidRequest for anything out of bounds.

    `text` is a query in Lucene's syntax, or the text that an index of vectors embeds; `vector` has a query's numbers.
    `filter` is a SQL condition on stored columns. `columns` are those stored ones that hits show (None: all).
    `min_version` is the source's version that the index has to have reached, for which the search waits `wait_s`
    seconds.
    """

    uri: str
    text: str = ""
    vector: tuple[float, ...] = ()
    k: int = 10
    filter: str = ""
    columns: tuple[str, ...] | None = None
    min_version: int | None = None
    wait_s: float = WAIT_S
    highlight: bool = False
    explain: bool = False
    weights: SearchWeights = field(default_factory=SearchWeights)

    def __post_init__(self) -> None:
        refuse_beyond("k", self.k, 1, K_MAX)
        refuse_beyond("wait_s", self.wait_s, 0.0, WAIT_S_MAX)
        if self.min_version is not None:
            refuse_beyond("min_version", self.min_version, 0, 2**62)
        for name, most in (
            ("uri", URI_CHARS_MAX),
            ("text", SEARCH_TEXT_CHARS_MAX),
            ("vector", VECTOR_NUMBERS_MAX),
            ("filter", FILTER_CHARS_MAX),
            ("columns", COLUMNS_MAX),
        ):
            if (size := len(getattr(self, name) or ())) > most:
                raise InvalidRequest(f"has a length of {size}, more than {most}", field=name, remedy="Make it shorter")
        if not self.uri:
            raise InvalidRequest("is empty", field="uri", remedy="Say where the index is")
        if not self.text.strip() and not self.vector:
            raise InvalidRequest(
                "there is nothing to search for", about="text", remedy="Give a text, a vector, or both"
            )
        if not all(math.isfinite(each) for each in self.vector):
            raise InvalidRequest(
                "has a number that is NaN or infinite", field="vector", remedy="Give finite numbers alone"
            )


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that was found.

    `key` has the source's key columns by name, `columns` the stored columns that were wished for. `score` is greater
    for a better hit: BM25; the cosine of the angle; minus the Euclidean distance; the inner product; or the sum of
    weight / (60 + rank) over the rankings of a hybrid search. `highlights` has the fragments of text columns in which
    words are marked, as HTML: `<em>` and `</em>` are marks alone, as a `<` of the text is written `&lt;`
    (`fragment_parts`). `explanation` says how the score came about, line by line (empty unless the search wants it).
    """

    key: Mapping[str, Any]
    score: float
    columns: Mapping[str, Any] = field(default_factory=dict)
    highlights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    explanation: str = ""


def fragment_parts(fragment: str) -> list[tuple[str, bool]]:
    """Return the texts that make up a fragment of a hit's `highlights`, each with whether it is marked."""
    begin, end = MARK
    parts = []
    for number, part in enumerate(fragment.split(begin)):
        marked, _, plain = part.partition(end)
        parts += [(part, False)] if number == 0 else [(marked, True), (plain, False)]
    return [(unescape(part), marked) for part, marked in parts if part]


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The hits of a search, the best first, and at which version of the source they are.

    `version` is the version of the source that the index has wholly applied, `version_at_s` when that was committed
    (Unix seconds; 0: the source does not say). `index_version` is the index's own. `proven` says that no row that was
    left out scores better: always so for words, and for vectors where all were compared. `cut` has the prefixes and
    fuzzy words that stand for more words than were searched for. `took_ms` is the time of the search alone, without
    that spent waiting for a version (`waited_ms`).
    """

    hits: tuple[SearchHit, ...]
    version: int
    version_at_s: float
    index_version: int
    proven: bool = True
    cut: tuple[str, ...] = ()
    took_ms: float = 0.0
    waited_ms: float = 0.0
