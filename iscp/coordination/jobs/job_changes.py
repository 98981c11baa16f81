"""What users ask of jobs, and what each request means on top of the book.

A draft holds decisions that the log does not have yet: each is made against the book and those before it in the
draft, which is then committed or thrown away as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import assert_never

from iscp.coordination.jobs.book_index import target_of
from iscp.coordination.jobs.job_book import Entry, JobBook
from iscp.coordination.jobs.reshard import (
    Reshard,
    changes,
    refuse_split,
    refuse_unsharded,
    rows_after,
    rows_of_registration,
)
from iscp.coordination.jobs.table_copies import with_own_table_id
from iscp.coordination.jobs.table_paths import Places, with_letters
from iscp.core.api_views import RegisterResult
from iscp.core.errors import Conflict, InvalidRequest, JobNotFound
from iscp.core.ids import JobKey
from iscp.core.job_row import JobRow, JobState, Reason
from iscp.core.key_ranges import WHOLE
from iscp.core.spec import parse_spec
from iscp.core.spec_patch import changed_spec
from iscp.core.sql_names import DEAD_LETTER_SUFFIX

TARGET_FIELD, SOURCE_FIELD = "spec.iteration.consumer.target", "table"


@dataclass(frozen=True, slots=True)
class Registration:
    """A job to be: `row` has a new job_id and a spec whose target is spelled in the catalog's one way.

    `shared_target`: its consumer lets other jobs of its kind keep the same target; `sharded`: its sink has a watermark
    for each range. `warning` goes into the answer.
    """

    row: JobRow
    request_id: str = ""
    shared_target: bool = False
    sharded: bool = False
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Register:
    """All or none. Answered with one RegisterResult for each item, in order."""

    items: tuple[Registration, ...]


@dataclass(frozen=True, slots=True)
class Unregister:
    """Answered with False where there is no such job."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Answered with False where it was paused already."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Answered with False where it was not paused, quarantined or failed for good."""

    key: JobKey
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Resync:
    """Make `job` anew as `item`, under a new job_id and perhaps on another table. Answered with a RegisterResult.

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


Request = Register | Unregister | Pause | Resume | Update | Resync | Reshard
Answer = tuple[RegisterResult, ...] | RegisterResult | bool | int


def _paused(row: JobRow) -> JobRow | None:
    return None if row.paused else row._replace(reason=Reason.PAUSED)


def _resumed(row: JobRow) -> JobRow | None:
    if not (row.paused or row.reason is Reason.QUARANTINED or row.failed_for_good):
        return None
    stopped = row.state in (JobState.ERROR, JobState.CANCELED)
    return row._replace(reason=Reason.NONE, state=JobState.COMPLETED if stopped else row.state)


def _updated(row: JobRow, changes_json: str) -> JobRow | None:
    """A job that failed or was quarantined is tried by its new spec, a paused one stays so."""
    spec = changed_spec(row.spec_json, changes_json)
    if spec == row.spec:
        return None
    changed = row._replace(spec_json=spec.to_json())
    return changed if row.paused else _resumed(changed) or changed


class PendingChanges:
    """Decisions that the log does not have yet, on top of the book.

    `entries` are the rows to append, in order. A request that is refused leaves nothing behind. Requests name jobs;
    what they change, they change in all rows of a job.
    """

    def __init__(self, book: JobBook, now_s: float) -> None:
        self._book = book
        self._now_s = now_s
        self._changed: dict[JobKey, JobRow] = {}
        self._made: dict[str, JobRow] = {}
        self._targets, self._sources = Places(letters=True), Places()  # of what was made
        self._requests: dict[str, JobRow] = {}
        self._split: set[str] = set()  # tables with rows of ranges among `entries`
        self._uris: dict[str, str] = {}  # of tables whose first job is among `entries`
        self.entries: list[Entry] = []

    def decide(self, request: Request) -> Answer:
        """Raises InvalidRequest or JobNotFound."""
        match request:
            case Register(items):
                return self._register(items)
            case Unregister(key, request_id):
                if not self._rows(key) and self._repeated(request_id, key) is None:
                    return False
                return self._change(key, request_id, lambda row: row._replace(drop_at_s=self._now_s))
            case Pause(key, request_id):
                return self._change(key, request_id, _paused)
            case Resume(key, request_id):
                return self._change(key, request_id, _resumed)
            case Resync(seen, item):
                return self._resync(seen, item)
            case Reshard():
                return self._reshard(request)
            case Update(key, changes_json, request_id):
                return self._change(key, request_id, lambda row: _updated(row, changes_json))
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
        """Those of a job; none: there is no such job."""
        found = (self._get(key.of_range(each)) for each in self._ranges(key.table_id))
        return [row for row in found if row is not None]

    def _own(self, row: JobRow, but: JobKey | None = None) -> JobRow:
        """A new job under the id of its table, which is not that of a copy; the job `but` does not count."""
        return with_own_table_id(
            row,
            lambda key: next(iter(self._rows(key)), None),
            lambda table_id: self._book.uri_of(table_id, but) or self._uris.get(table_id),
        )

    def _repeated(self, request_id: str, key: JobKey, uri: str = "") -> str | None:
        """The job_id that the first request of this id was about, None if there was none.

        A job of the same name on the table at `uri` is the same one, whichever id the table was given since.
        """
        if not request_id:
            return None
        if request_id in self._requests:
            row: JobRow | None = self._requests[request_id]
        else:
            known = self._book.request(request_id)
            row = self._book.by_id(known) if known else None
        if row is None:
            return None
        same_table = row.table_uri == uri and row.key.job == key._replace(table_id=row.key.table_id)
        if row.key.job != key and not same_table:
            raise InvalidRequest(
                f"{request_id!r} was used for another job", field="request_id", remedy="Give each request its own"
            )
        return row.registration

    def _change(self, key: JobKey, request_id: str, change: Callable[[JobRow], JobRow | None]) -> bool:
        if self._repeated(request_id, key) is not None:
            return True
        rows = self._rows(key)
        if not rows:
            raise JobNotFound(f"there is no job {key.job_name!r}", field="job", remedy="See `iscp-admin job list`")
        changed = [row for row in map(change, rows) if row is not None]
        self._stage_all(changed, request_id)
        return bool(changed)

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
            return RegisterResult(created=False, job_id=there[0].registration, table_id=row.key.table_id)
        return self._create(replace(item, row=row))

    def _resync(self, seen: JobRow, item: Registration) -> RegisterResult:
        """The job's row ends and another begins, in one commit: the node claims the target for it, and builds it anew.

        The seq goes on, so that what is still under way for the old registration fails at the sink.
        """
        row, made = self._get(seen.key), self._own(item.row, but=seen.key.job)
        if (first := self._repeated(item.request_id, made.key, made.table_uri)) is not None:
            return RegisterResult(True, first, made.key.table_id, item.warning)
        refuse_split(seen, self._ranges(seen.key.table_id))
        if row is None or (row.registration, row.spec_json) != (seen.registration, seen.spec_json):
            raise Conflict(f"the job {seen.key.job_name!r} was changed meanwhile", remedy="Ask again")
        if made.key != row.key and self._rows(made.key):
            raise InvalidRequest(
                f"there is a job {made.key.job_name!r} on {made.table_name} already",
                field="table",
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
        self._check_target(item)
        rows = rows_of_registration(row, ranges)
        self._stage_all(rows, item.request_id)
        for each in rows:
            self._made[each.job_id] = each
            self._targets.add(target_of(each.spec_json), each.job_id)
            self._sources.add(each.table_uri, each.job_id)
        return RegisterResult(True, row.job_id, row.key.table_id, item.warning)

    def _check_target(self, item: Registration) -> None:
        target, account = target_of(item.row.spec_json), item.row.key.account
        for other in self._current(places.at(target) for places in (self._book.targets(), self._targets)):
            if item.shared_target and other.spec.consumer.kind == parse_spec(item.row.spec_json).consumer.kind:
                continue
            raise InvalidRequest(
                f"{target} is the target of {_whose(other, account)}",
                field=TARGET_FIELD,
                remedy="Choose another target, or unregister that job first",
            )
        self._check_around(target, item.row.table_uri, account)

    def _check_around(self, target: str, source: str, account: str) -> None:
        """A target neither holds nor lies within what another job keeps or reads, nor does the job's own source."""
        targets, sources = (self._book.targets(), self._targets), (self._book.sources(), self._sources)
        mine = with_letters(target) if target else ()
        looks = [(targets, path, "target", TARGET_FIELD) for path in mine]
        looks += [(sources, path, "source", TARGET_FIELD) for path in mine]
        for there, path, what, field in (*looks, (targets, source, "target", SOURCE_FIELD)):
            for other in self._current(each.at(place) for each in there for place in each.around(path)):
                raise InvalidRequest(
                    f"{path} lies within the {what} of {_whose(other, account)}, or around it: cleaning the one table "
                    "would delete files of the other",
                    field=field,
                    remedy="Choose a path beside it, or unregister that job first",
                )
        letters = target + DEAD_LETTER_SUFFIX, target.removesuffix(DEAD_LETTER_SUFFIX)
        for other in self._current(each.at(place) for each in targets for place in letters if place != target):
            raise InvalidRequest(
                f"{target} and the target of {_whose(other, account)} are in the way of one another's dead letters",
                field=TARGET_FIELD,
                remedy=f"Choose another target, without {DEAD_LETTER_SUFFIX}",
            )

    def _current(self, found: Iterable[Sequence[str]]) -> Iterator[JobRow]:
        """The jobs of these ids that are there, as they are now."""
        for job_id in chain.from_iterable(found):
            row = self._made.get(job_id) or self._book.by_id(job_id)
            current = self._get(row.key) if row is not None else None
            if current is not None and current.job_id == job_id:
                yield current

    def _reshard(self, request: Reshard) -> int:
        rows = self._on(request.table_id)
        ranges = {row.key.range_id for row in rows}
        if request.request_id in self._requests or self._book.request(request.request_id):
            return len(ranges)
        if {row.registration for row in rows} != request.seen:
            raise Conflict("the table's jobs were changed meanwhile", remedy="Ask again")
        done = changes(ranges, request.merge, request.range_id)
        self._stage_all(list(rows_after(rows, done, request.job_id, self._now_s)), request.request_id)
        return len({row.key.range_id for row in self._on(request.table_id)})

    def _stage_all(self, rows: Sequence[JobRow], request_id: str) -> None:
        for number, row in enumerate(rows):
            self._stage(row, "" if number else request_id)

    def _stage(self, row: JobRow, request_id: str) -> None:
        self.entries.append(Entry(row, request_id))
        self._changed[row.key] = row
        if row.key.range_id != WHOLE:
            self._split.add(row.key.table_id)
        if row.drop_at_s is None:
            self._uris.setdefault(row.key.table_id, row.table_uri)
        if request_id:
            self._requests[request_id] = row

    def _rewind(self, mark: int) -> None:
        if mark == len(self.entries):
            return
        kept, self.entries = self.entries[:mark], []
        self._changed, self._requests, self._split, self._uris = {}, {}, set(), {}
        for entry in kept:
            self._stage(entry.row, entry.request_id)
        # Registrations that are undone are no job's current row any more, so that `_made` may keep them.


def _whose(job: JobRow, account: str) -> str:
    """Another account's job is not named to this one."""
    return f"job {job.key.job_name!r}" if job.key.account == account else "another job"
