"""The values behind the requests of users and operators, and behind the answers that they are shown: of `Admin` and
`Operator`, of nodes' logs, of changefeeds and of searches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import unescape
from typing import Any, Literal

from iscp.model.job.iteration import NO_MAINTENANCE, JobMaintenance
from iscp.model.job.job_row import JobCondition, JobState, JobStatus, Reason, condition_of
from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.progress import RunProgress
from iscp.model.values.untrusted_values import LogLevel, shown

# --- requests of `Admin` and `Operator` -------------------------------------------------------------------------------


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


# --- bounds of numbers in requests ------------------------------------------------------------------------------------


def refuse_beyond(name: str, value: float, least: float, most: float, further: str = "") -> None:
    """Raise InvalidRequest for a number beyond its bounds, and for NaN; `further` ends the remedy."""
    # NaN is between no two numbers.
    if not least <= value <= most:
        raise InvalidRequest(
            f"is {shown(value)}, and not between {least:g} and {most:g}",
            field=name,
            remedy=f"Choose a number between {least:g} and {most:g}{further}",
        )


# --- lines of nodes' logs ---------------------------------------------------------------------------------------------
# A query says which lines are wanted, and which belong to a job; a page is the answer of a node.

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


# --- pages of changefeeds ---------------------------------------------------------------------------------------------
# The services and the client share these values.

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


# --- searches and their answers ---------------------------------------------------------------------------------------
# The library and the services share these values.

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


# --- answers of `Admin` and `Operator` --------------------------------------------------------------------------------

RISK_SHARE = 0.5
"""Part of the retention of its sources from which on a job's lag puts its history at risk."""


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """The answer to a registration. `created` is False where the job was there already (then nothing was changed).

    `warning` says what of the source the job will not retain, and why, or in which fields the job that was there
    differs; it is empty if there is nothing.
    """

    created: bool
    job_id: str
    table_id: str
    warning: str = ""


class Action(StrEnum):
    """The action that makes a job what it is wanted to be."""

    CREATE = "create"
    UPDATE = "update"
    RESYNC = "resync"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """The action that a RegisterRequest would need, checked as a registration is; nothing was written.

    `spec_json` is as it would be stored. `job_id`, `there_id` and `there_json` are of the job that is there: its
    registration, the table that it is on, and its spec (empty: there is none). `error` says why the job cannot be had
    so.
    """

    action: Action = Action.CREATE
    table_id: str = ""
    spec_json: str = ""
    job_id: str = ""
    there_id: str = ""
    there_json: str = ""
    error: PermanentError | None = None


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that a job leaves out of its target. `columns` are as JSON has them, of an index those of the row's key;
    long values are cut. `reason` says why the row is left out.
    """

    columns: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOutRows:
    """Some of the rows that a job leaves out of its target. `place` is the table or index that holds all of them; it is
    empty for a job that leaves out none.
    """

    rows: tuple[LeftOutRow, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as users see it; times are Unix seconds.

    `applied_version` is the job's watermark, `source_version` the newest source version that the node has seen, as of
    `checked_at_s`. `lag_s` is how much it lags at most: the time since `checked_at_s` where it has applied all that was
    seen, as nobody knows what was committed since; otherwise the age of the oldest commit not yet applied, and while it
    is not built the time since it was registered. `lag_least_s` is how much it lags for certain; both are -1 while not
    known. `late` is set if `lag_s` is more than its target lag. `ranges` says into how many its table is split; the job
    is then shown as the range that lags most, and in the worst state of all. `upkeep`, `progress` and `figures` are
    there where one job is requested, and not in lists; `progress` is None while no iteration of it is reported to run,
    and no comparison requested. `figures` of an index are by the names that docs/cli.md lists; if they could not be
    read, `figures_fault` says why. `retained_s`: for so many seconds its sources retain what was removed from them; it
    is known of jobs that lag for long, and 0 of others. `condition` is the word for all of it (a
    JobCondition; an empty one is found by the other fields).
    """

    account: str
    table_id: str
    table: str
    name: str
    job_id: str
    spec_json: str
    state: JobState
    reason: Reason
    applied_version: int
    applied_at_s: float
    source_version: int
    checked_at_s: float
    lag_s: float
    seq: int
    status: JobStatus
    create_at_s: float
    node_id: str = ""
    late: bool = False
    ranges: int = 1
    upkeep: JobMaintenance = NO_MAINTENANCE
    progress: RunProgress | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    figures_fault: str = ""
    retained_s: float = 0.0
    lag_least_s: float = 0.0
    condition: JobCondition | Literal[""] = ""

    def __post_init__(self) -> None:
        if not self.condition:
            object.__setattr__(self, "condition", self.condition_if(late=self.late))

    def condition_if(self, *, late: bool) -> JobCondition:
        """Return the condition if the job lay behind by too much, or if it did not."""
        code, at = int(self.status.error_code), self.applied_version
        return condition_of(self.state, self.reason, code, applied_version=at, lag_s=self.lag_s, late=late)

    @property
    def may_lose_history(self) -> bool:
        """Return whether its sources may soon drop what it has yet to read."""
        return self.retained_s > 0.0 and self.lag_s > RISK_SHARE * self.retained_s


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. `state` is `joining`, `ready`, `cordoned`, `draining`, `leaving` or `revoked`.

    `lease_age_s` is the time since its lease was renewed (-1: not known); `in_flight` counts what it was ordered to
    start or to stop and has not confirmed. The queue is -1 where the node did not answer.
    """

    node_id: str
    pid: int
    address: str
    epoch: int
    version: str
    state: str
    shards: int
    queue_waiting: int
    queue_running: int
    lease_age_s: float = -1.0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class ShardView:
    table_id: str
    table: str
    node_id: str
    state: str
    jobs: int
    range_id: int = 1


@dataclass(frozen=True, slots=True)
class LeftOutJob:
    """A job that the global checkpoint does not speak for; `why` is `building`, `paused`, `failed`, or `catching up`.

    A job that was resumed, or rebuilt, is catching up until it has reached the checkpoint.
    """

    table: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A shard, the node that has it (`node_id`), and the node that should: the ring's choice, the operator's, and the
    result.

    `why` says why it is not at its target; it is empty where it is.
    """

    table_id: str
    range_id: int
    table: str
    state: str
    node_id: str
    preferred: str
    pinned: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class EventView:
    """An event that the owner of the term `owner_rev` has seen or decided at `at_s` (Unix seconds).

    `number` counts from 1 in each term. `what` is `term`, `join`, `sync`, `gone`, `revoke`, `dispatch` or `drain`.
    `node_id` and `shard` are empty where it concerns none; `table` is the shard's, as it was registered.
    """

    owner_rev: int
    number: int
    at_s: float
    what: str
    node_id: str
    shard: str
    why: str
    table: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of the whole cluster.

    `owner` is the owner's node id, empty while there is none. `counters` are the executors', summed. `lag_max_s` is the
    greatest of all jobs, stopped ones too, at most, and `lag_max_least_s` for certain; -1 while unknown.
    `checkpoint_at_s` (Unix seconds, 0: not known yet) is the time up to which everything that was committed is applied
    by all jobs but those left out, of which `left_out` has some. `moving` counts shards on their way to another node.
    """

    owner: str
    owner_rev: int
    nodes: tuple[NodeView, ...]
    shards: tuple[ShardView, ...]
    jobs: int
    lag_max_s: float
    counters: dict[str, int]
    checkpoint_at_s: float = 0.0
    left_out: tuple[LeftOutJob, ...] = ()
    left_out_count: int = 0
    moving: int = 0
    lag_max_least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A kind of consumer that jobs may name: what it does in one line, and which package brings it.

    `own`: it is one of iscp's. `fault`: why it cannot be used though it is allowed; empty if it can.
    """

    name: str
    about: str = ""
    package: str = ""
    own: bool = False
    fault: str = ""
