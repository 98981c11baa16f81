"""Decide what each request of users changes in the book: the requests, what each makes of a job's row, and the draft of
decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import assert_never

from iscp.cluster.jobs.job_book import JobBook, Places, RequestKey, with_letters
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.job_row import (
    Deletion,
    JobRow,
    JobState,
    JobStatus,
    LogEntry,
    Reason,
    Registration,
    combined,
    with_own_table_id,
)
from iscp.model.job.registration_id import id_of_successor
from iscp.model.rows import key_ranges
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.spec.spec import differing_fields
from iscp.model.spec.spec_parsing import changed_spec, parse_spec, target_of
from iscp.model.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.model.values.errors import Conflict, InvalidRequest, JobNotFound, TableNotFound
from iscp.model.values.ids import JobKey, ranged_job_id

# --- splits and merges of a table's ranges ----------------------------------------------------------------------------
# This part decides which ranges go, which come, and the rows of the table's jobs. Neither a split nor a merge moves
# rows of a sink: a range's next iteration reads what those before it have reached there.

RANGE_FIELD = "range"
_SEE_LIST = "See `iscp-admin shard list` for those that there are"


@dataclass(frozen=True, slots=True)
class Reshard:
    """Split ranges of a table (0: all), or merge pairs of them (0: the smallest). Answered with how many it has then.

    `job_id`: the time that the ids of its rows begin with; `seen`: the registrations that were checked to be of kinds
    whose sinks are sharded. If they are not the table's by now that is a Conflict.
    """

    table_id: str
    merge: bool
    range_id: int
    seen: frozenset[str]
    job_id: str = ""
    request_id: str = ""


Change = tuple[tuple[int, ...], tuple[int, ...]]
"""Ranges that go, and those that are there instead."""


def changes(ranges: Collection[int], merge: bool, range_id: int) -> list[Change]:
    """Raises InvalidRequest."""
    if range_id and range_id not in ranges:
        raise InvalidRequest(f"the table has no range {range_id}", about=RANGE_FIELD, remedy=_SEE_LIST)
    return _merges(ranges, range_id) if merge else _splits(ranges, range_id)


def _splits(ranges: Collection[int], range_id: int) -> list[Change]:
    chosen = [range_id] if range_id else sorted(ranges)
    least = [each for each in chosen if not key_ranges.may_split(each)]
    if least:
        raise InvalidRequest(
            f"range {least[0]} is one of {key_ranges.RANGES_MAX} parts of its table already, and none is smaller",
            about=RANGE_FIELD,
            remedy="Name a range that is larger; see `iscp-admin shard list`",
        )
    return [((each,), key_ranges.children(each)) for each in chosen]


def _merges(ranges: Collection[int], range_id: int) -> list[Change]:
    if key_ranges.WHOLE in ranges:
        raise InvalidRequest(
            "the table is not split: its range 1 is the whole", about=RANGE_FIELD, remedy="There is nothing to merge"
        )
    parents = [key_ranges.parent(range_id)] if range_id else key_ranges.deepest(ranges)
    if range_id and (other := key_ranges.sibling(range_id)) not in ranges:
        raise InvalidRequest(
            f"range {range_id} is merged with {other}, which is split further",
            about=RANGE_FIELD,
            remedy=f"Merge what {other} was split into first",
        )
    return [(key_ranges.children(each), (each,)) for each in parents]


def refuse_unsharded(row: JobRow, kind: str, ranges: Collection[int]) -> None:
    """Raise InvalidRequest for a job whose sink has one watermark, on a table that has several."""
    if key_ranges.WHOLE not in ranges:
        raise InvalidRequest(
            f"{row.table_name} is split into {len(ranges)} ranges, and the sink of a consumer {kind} is not sharded",
            about="table",
            remedy=f"`iscp-admin shard merge {row.table_name}` until it is whole, then register the job",
        )


def refuse_split(row: JobRow, ranges: Collection[int]) -> None:
    """Raise InvalidRequest for what cannot be done with a job while its table is split."""
    if key_ranges.WHOLE not in ranges:
        raise InvalidRequest(
            f"{row.table_name} is split into {len(ranges)} ranges, each of which goes its own way",
            about="table",
            remedy=f"`iscp-admin shard merge {row.table_name}` until it is whole, and then repeat this request",
        )


def rows_after(rows: Sequence[JobRow], merged: Sequence[Change], job_id: str, now_s: float) -> Iterator[JobRow]:
    """Return the rows to be logged: of each job and change those that end, then those that go on with it."""
    number = 0
    for gone, come in merged:
        mine: dict[str, list[JobRow]] = {}
        for row in rows:
            if row.key.range_id in gone:
                mine.setdefault(row.registration, []).append(row)
        for registration, before in mine.items():
            yield from (row._replace(drop_at_s=now_s) for row in before)
            # Paused, quarantined or failed stays so; the watermark is a hint, as always.
            job = combined(before)
            later_id = id_of_successor(job_id, registration)
            for each in come:
                key, number = job.key.of_range(each), number + 1
                yield job._replace(key=key, job_id=ranged_job_id(later_id, number), origin=registration)


def rows_of_registration(row: JobRow, ranges: Collection[int]) -> list[JobRow]:
    """Return a new job's rows on a table that may be split."""
    if key_ranges.WHOLE in ranges:
        return [row]
    return [
        row._replace(key=row.key.of_range(each), job_id=ranged_job_id(row.job_id, each), origin=row.job_id)
        for each in sorted(ranges)
    ]


# --- requests of users, and what each makes of a job's row ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """All or none. Answered with one RegisterResult for each item, in order."""

    items: tuple[Registration, ...]


@dataclass(frozen=True, slots=True)
class Unregister:
    """Drop a job. The answer is False if there is no such job.

    `delete_target`: a node deletes the job's target first. The job is there until that is done, and paused.
    """

    key: JobKey
    request_id: str = ""
    delete_target: bool = False


@dataclass(frozen=True, slots=True)
class EndDeleted:
    """Drop a job whose target is deleted. The answer is False if there is no such job any more."""

    key: JobKey
    job_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause a job. The answer is False if it was paused already."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a job. The answer is False if it is neither paused nor failing."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Resync:
    """Rebuild the job of `seen` as `item`, under a new job_id and perhaps on another table. Answered with a
    RegisterResult.

    `seen` is the job's row as it was when `item` was checked; one that was decided about since is a Conflict.
    """

    seen: JobRow
    item: Registration


@dataclass(frozen=True, slots=True)
class Update:
    """Change the fields of a job's spec that `changes_json` has. Answered with False where they are so already."""

    key: JobKey
    changes_json: str
    request_id: str = ""


Request = Register | Unregister | EndDeleted | Pause | Resume | Update | Resync | Reshard
Answer = tuple[RegisterResult, ...] | RegisterResult | bool | int


def paused(row: JobRow) -> JobRow | None:
    if row.paused:
        return None
    # A release before has resumed a job that was to end with its target; that was taken back by it.
    kept = replace(row.status, deletion=Deletion.NONE).to_json() if '"deletion"' in row.status_json else row.status_json
    return row._replace(reason=Reason.PAUSED, status_json=kept)


def ending(row: JobRow) -> JobRow:
    """Return the row of a job that is to end with its target: at once if it has failed to, or waits to try again."""
    before = row.status
    status = JobStatus(
        from_version=before.from_version,
        to_version=before.to_version,
        source_id=before.source_id,
        sources=before.sources,
        step=before.step,
        steps=before.steps,
        deletion=Deletion.WANTED,
    )
    return row._replace(state=JobState.COMPLETED, reason=Reason.PAUSED, status_json=status.to_json())


def resumed(row: JobRow) -> JobRow | None:
    if not (row.paused or row.reason in (Reason.QUARANTINED, Reason.RETRYING) or row.failed_for_good):
        return None
    stopped = row.state in (JobState.ERROR, JobState.CANCELED)
    return row._replace(reason=Reason.NONE, state=JobState.COMPLETED if stopped else row.state)


def updated(row: JobRow, changes_json: str) -> JobRow | None:
    """Return the updated row, or None if nothing differs: a failed or quarantined job is tried by its new spec, a
    paused one stays so.
    """
    spec = changed_spec(row.spec_json, changes_json)
    if spec == row.spec:
        return None
    changed = row._replace(spec_json=spec.to_json())
    return changed if row.paused or row.reason is Reason.RETRYING else resumed(changed) or changed


# --- places that jobs occupy ------------------------------------------------------------------------------------------
# Such places are refused: no target may be another's, lie within another's table, or around it.

TARGET_FIELD, SOURCE_FIELD = "spec.iteration.consumer.target", "table"


@dataclass(frozen=True, slots=True)
class OccupiedPlaces:
    """The places that jobs occupy: their `targets` and `sources`; `current` gives the jobs of ids that are still there,
    as they are now.
    """

    targets: tuple[Places, ...]
    sources: tuple[Places, ...]
    current: Callable[[Iterable[Sequence[str]]], Iterator[JobRow]]

    def check(self, item: Registration) -> None:
        """Raises InvalidRequest where the job's target or source would be in the way of another job's."""
        target, account = target_of(item.row.spec_json), item.row.key.account
        for other in self.current(places.at(target) for places in self.targets):
            if item.shared_target and other.spec.consumer.kind == parse_spec(item.row.spec_json).consumer.kind:
                continue
            if other.deletion:
                raise InvalidRequest(
                    f"{target} is being deleted, with {named_to(account, other)}",
                    about=TARGET_FIELD,
                    remedy="Wait until it is gone, or choose another target",
                )
            raise InvalidRequest(
                f"{target} is the target of {named_to(account, other)}",
                about=TARGET_FIELD,
                remedy="Choose another target, or unregister that job first",
            )
        self._check_around(target, item.row.table_uri, account)

    def _check_around(self, target: str, source: str, account: str) -> None:
        """Check that a target neither holds nor lies within what another job writes or reads, nor its own source."""
        targets, sources = self.targets, self.sources
        mine = with_letters(target) if target else ()
        checks = [(targets, path, "target", TARGET_FIELD) for path in mine]
        checks += [(sources, path, "source", TARGET_FIELD) for path in mine]
        for there, path, what, field in (*checks, (targets, source, "target", SOURCE_FIELD)):
            for other in self.current(each.at(place) for each in there for place in each.around(path)):
                raise InvalidRequest(
                    f"{path} lies within the {what} of {named_to(account, other)}, or around it: cleaning the one "
                    "table would delete files of the other",
                    about=field,
                    remedy="Choose a path beside it, or unregister that job first",
                )
        letters = target + DEAD_LETTER_SUFFIX, target.removesuffix(DEAD_LETTER_SUFFIX)
        for other in self.current(each.at(place) for each in targets for place in letters if place != target):
            raise InvalidRequest(
                f"{target} and the target of {named_to(account, other)} are in the way of one another's dead letters",
                about=TARGET_FIELD,
                remedy=f"Choose another target, without {DEAD_LETTER_SUFFIX}",
            )


def named_to(account: str, job: JobRow) -> str:
    """Return how to name the job: another account's job is not named to this one."""
    return f"job {job.key.job_name!r}" if job.key.account == account else "another job"


# --- the draft --------------------------------------------------------------------------------------------------------

OPERATORS_REQUEST = "reshard:"
"""The prefix of an operator's request id in the log: the request is not of the account with whose row it is logged."""


class PendingChanges:
    """A draft of decisions that the log does not have yet, on top of the book.

    Each decision is made against the book and those before it in the draft, which is then committed or thrown away as a
    whole. `entries` are the rows to append, in order. A request that is refused leaves nothing behind. Requests name
    jobs; what they change, they change in all rows of a job.
    """

    def __init__(self, book: JobBook, now_s: float) -> None:
        self._book = book
        self._now_s = now_s
        self._changed: dict[JobKey, JobRow] = {}
        self._made: dict[str, JobRow] = {}
        self._targets, self._sources = Places(letters=True), Places()  # of what was made
        self._requests: dict[RequestKey, JobRow] = {}
        self._split: set[str] = set()  # tables with rows of ranges among `entries`
        self._uris: dict[str, str] = {}  # of tables whose first job is among `entries`
        self.entries: list[LogEntry] = []

    def decide(self, request: Request) -> Answer:
        """Raises InvalidRequest or JobNotFound."""
        match request:
            case Register(items):
                return self._register(items)
            case Unregister(key, request_id, delete_target):
                if not self._rows(key) and self._repeated(request_id, key) is None:
                    return False
                if delete_target:
                    return self._change(key, request_id, self._ending)
                return self._change(key, request_id, lambda row: row._replace(drop_at_s=self._now_s))
            case EndDeleted(key, job_id):
                row = self._get(key)
                ended = row is not None and row.job_id == job_id and row.deletion is Deletion.DONE
                return ended and self._change(key, "", lambda row: row._replace(drop_at_s=self._now_s))
            case Pause(key, request_id):
                return self._change(key, request_id, _unless_ending(paused))
            case Resume(key, request_id):
                return self._change(key, request_id, _unless_ending(resumed))
            case Resync(seen, item):
                return self._resync(seen, item)
            case Reshard():
                return self._reshard(request)
            case Update(key, changes_json, request_id):
                return self._change(key, request_id, _unless_ending(lambda row: updated(row, changes_json)))
            case _:
                assert_never(request)

    def _get(self, key: JobKey) -> JobRow | None:
        row = self._changed.get(key) or self._book.get(key)
        return row if row is not None and row.drop_at_s is None else None

    def _ranges(self, table_id: str) -> tuple[int, ...]:
        known = self._book.ranges(table_id)
        if known == (WHOLE,) and table_id not in self._split:
            return known
        return tuple(sorted({row.key.range_id for row in self._on(table_id)})) or (WHOLE,)

    def _on(self, table_id: str) -> list[JobRow]:
        keys = [row.key for row in self._book.jobs_on(table_id)]
        keys += [key for key in self._changed if key.table_id == table_id]
        return [row for key in dict.fromkeys(keys) if (row := self._get(key)) is not None]

    def _rows(self, key: JobKey) -> list[JobRow]:
        """Return the rows of a job; none if there is no such job."""
        found = (self._get(key.of_range(each)) for each in self._ranges(key.table_id))
        return [row for row in found if row is not None]

    def _own(self, row: JobRow, but: JobKey | None = None) -> JobRow:
        """Return a new job under the id of its table, which is not that of a copy; the job `but` does not count.

        A table that was copied keeps the id in its metadata. Placement, probes and reports are by id, so the jobs of
        one id have to be on one table: where its first job lies. Each copy of it elsewhere gets an id of its own.
        """
        return with_own_table_id(
            row,
            lambda key: next(iter(self._rows(key)), None),
            lambda table_id: self._book.uri_of(table_id, but) or self._uris.get(table_id),
        )

    def _repeated(self, request_id: str, key: JobKey, uri: str = "") -> str | None:
        """Return the job_id that the first request of this id was about, None if there was none.

        A job of the same name on the table at `uri` is the same one, whichever id the table was given since.
        """
        row = self._answered(key.account, request_id)
        if row is None:
            return None
        same_table = row.table_uri == uri and row.key.job == key._replace(table_id=row.key.table_id)
        if row.key.job != key and not same_table:
            raise InvalidRequest(
                f"{request_id!r} was used for another job", about="request_id", remedy="Give each request its own"
            )
        return row.registration

    def _answered(self, account: str, request_id: str) -> JobRow | None:
        """Return the row that the first request of this id about a job of the account was logged with."""
        if not request_id:
            return None
        return self._requests.get((account, request_id)) or self._book.request(account, request_id)

    def _change(self, key: JobKey, request_id: str, change: Callable[[JobRow], JobRow | None]) -> bool:
        if self._repeated(request_id, key) is not None:
            return True
        rows = self._rows(key)
        if not rows:
            raise JobNotFound(f"there is no job {key.job_name!r}", about="job", remedy="See `iscp-admin job list`")
        changed = [row for row in map(change, rows) if row is not None]
        self._stage_all(changed, request_id)
        return bool(changed)

    def _ending(self, row: JobRow) -> JobRow:
        """Return the row of a job that ends with its target. Raises InvalidRequest where others need the target."""
        target = target_of(row.spec_json)
        if row.key.range_id != WHOLE:
            raise InvalidRequest(
                "is that of a table that is split into ranges",
                field="delete_target",
                remedy="Merge the table, or unregister the job and delete its target by hand",
            )
        targets, sources = (self._book.targets(), self._targets), (self._book.sources(), self._sources)
        keeping = [each for each in self._current(places.at(target) for places in targets) if each.key != row.key]
        reading = list(self._current(places.at(target) for places in sources))
        reading += self._current([list(self._book.jobs_reading(target))])
        for verb, others in (("keeps", keeping), ("reads", reading)):
            for other in others:
                if not other.deletion:
                    raise InvalidRequest(
                        f"would delete {target}, which {named_to(row.key.account, other)} {verb}",
                        field="delete_target",
                        remedy="Unregister that job first, or leave the target as it is",
                    )
        return ending(row)

    def _register(self, items: Sequence[Registration]) -> tuple[RegisterResult, ...]:
        mark = len(self.entries)
        try:
            return tuple(self._register_one(item) for item in items)
        except InvalidRequest:
            self._rewind(mark)
            raise

    def _register_one(self, item: Registration) -> RegisterResult:
        row = self._own(item.row)
        if (first := self._repeated(item.request_id, row.key, row.table_uri)) is not None:
            return RegisterResult(True, first, row.key.table_id, item.warning)
        if there := self._rows(row.key):
            refuse_ending(there[0])
            warning = _warning_of_another(row, differing_fields(there[0].spec_json, row.spec_json))
            return RegisterResult(False, there[0].registration, row.key.table_id, warning)
        return self._create(replace(item, row=row))

    def _resync(self, seen: JobRow, item: Registration) -> RegisterResult:
        """End the job's row and begin another, in one commit: the node claims the target for it, and rebuilds it.

        The seq goes on, so that what is still under way for the old registration fails at the sink.
        """
        row, made = self._get(seen.key), self._own(item.row, but=seen.key.job)
        if (first := self._repeated(item.request_id, made.key, made.table_uri)) is not None:
            return RegisterResult(True, first, made.key.table_id, item.warning)
        refuse_split(seen, self._ranges(seen.key.table_id))
        if row is None or (row.registration, row.spec_json) != (seen.registration, seen.spec_json):
            raise Conflict(f"the job {seen.key.job_name!r} was changed meanwhile", remedy="Retry")
        refuse_ending(row)
        if made.key != row.key and self._rows(made.key):
            raise InvalidRequest(
                f"there is a job {made.key.job_name!r} on {made.table_name} already",
                about="table",
                remedy="Unregister one of the two first",
            )
        same_target = target_of(made.spec_json) == target_of(row.spec_json)
        made = made._replace(seq=row.seq if same_target else 0, reason=Reason.PAUSED if row.paused else Reason.NONE)
        mark = len(self.entries)
        self._stage(row._replace(drop_at_s=self._now_s), "")
        try:
            return self._create(replace(item, row=made))
        except InvalidRequest:
            self._rewind(mark)
            raise

    def _create(self, item: Registration) -> RegisterResult:
        row = item.row
        ranges = self._ranges(row.key.table_id)
        if not item.sharded:
            refuse_unsharded(row, parse_spec(row.spec_json).consumer.kind, ranges)
        targets, sources = (self._book.targets(), self._targets), (self._book.sources(), self._sources)
        OccupiedPlaces(targets, sources, self._current).check(item)
        rows = rows_of_registration(row, ranges)
        self._stage_all(rows, item.request_id)
        for each in rows:
            self._made[each.job_id] = each
            self._targets.add(target_of(each.spec_json), each.job_id)
            self._sources.add(each.table_uri, each.job_id)
        return RegisterResult(True, row.job_id, row.key.table_id, item.warning)

    def _current(self, found: Iterable[Sequence[str]]) -> Iterator[JobRow]:
        """Return the jobs of these ids that are there, as they are now."""
        for job_id in chain.from_iterable(found):
            row = self._made.get(job_id) or self._book.by_id(job_id)
            current = self._get(row.key) if row is not None else None
            if current is not None and current.job_id == job_id:
                yield current

    def _reshard(self, request: Reshard) -> int:
        rows = self._on(request.table_id)
        ranges = {row.key.range_id for row in rows}
        if self._was_resharded(rows, request.request_id):
            return len(ranges)
        if {row.registration for row in rows} != request.seen:
            raise Conflict("the table's jobs were changed meanwhile", remedy="Retry")
        if not rows:
            raise TableNotFound(f"{request.table_id} has no jobs", about="table", remedy="See `iscp-admin job list`")
        done = changes(ranges, request.merge, request.range_id)
        after = list(rows_after(rows, done, request.job_id, self._now_s))
        self._stage_all(after, request.request_id and f"{OPERATORS_REQUEST}{request.request_id}")
        return len({row.key.range_id for row in self._on(request.table_id)})

    def _was_resharded(self, rows: Sequence[JobRow], request_id: str) -> bool:
        """Return whether a request of this id was carried out on the table of these rows."""
        going_on = {row.registration for row in rows}
        for account in {row.key.account for row in rows} if request_id else ():
            if self._answered(account, f"{OPERATORS_REQUEST}{request_id}") is not None:
                return True
            # The release before logged it as if it were the account's: with a row that ended while its job went on.
            row = self._answered(account, request_id)
            if row is not None and row.drop_at_s is not None and row.registration in going_on:
                return True
        return False

    def _stage_all(self, rows: Sequence[JobRow], request_id: str) -> None:
        for number, row in enumerate(rows):
            self._stage(row, "" if number else request_id)

    def _stage(self, row: JobRow, request_id: str) -> None:
        self.entries.append(LogEntry(row, request_id))
        self._changed[row.key] = row
        if row.key.range_id != WHOLE:
            self._split.add(row.key.table_id)
        if row.drop_at_s is None:
            self._uris.setdefault(row.key.table_id, row.table_uri)
        if request_id:
            self._requests[row.key.account, request_id] = row

    def _rewind(self, mark: int) -> None:
        if mark == len(self.entries):
            return
        before, self.entries = self.entries[:mark], []
        self._changed, self._requests, self._split, self._uris = {}, {}, set(), {}
        for entry in before:
            self._stage(entry.row, entry.request_id)
        # Registrations that are undone are no job's current row any more, so that `_made` may keep them.


def refuse_ending(row: JobRow) -> None:
    """Raises InvalidRequest for a job that ends with its target: nothing is changed of it any more."""
    if row.deletion:
        raise InvalidRequest(
            f"the job {row.key.job_name!r} is being deleted with its target {target_of(row.spec_json)}",
            about="job",
            remedy="Wait until it is gone; `iscp-admin job status` says what is in the way",
        )


def _unless_ending(change: Callable[[JobRow], JobRow | None]) -> Callable[[JobRow], JobRow | None]:
    def checked(row: JobRow) -> JobRow | None:
        refuse_ending(row)
        return change(row)

    return checked


def _warning_of_another(wanted: JobRow, differing: Sequence[str]) -> str:
    """Return what whoever registers a job is to know of another one that has its name; empty if it is the same one."""
    if not differing:
        return ""
    return (
        f"another job is named {wanted.key.job_name!r} here, and was left as it is: it differs in "
        f"{', '.join(differing)}. See how by `iscp-admin apply --dry-run`; change it by an update, or by a resync, "
        "which rebuilds its target"
    )
