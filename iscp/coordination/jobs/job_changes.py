"""Decide what each request of users changes in the book.

A draft holds decisions that the log does not have yet: each is made against the book and those before it in the draft,
which is then committed or thrown away as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import assert_never

from iscp.coordination.jobs.answered_requests import RequestKey
from iscp.coordination.jobs.book_index import target_of
from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.job_requests import (
    Answer,
    EndDeleted,
    Pause,
    Register,
    Registration,
    Request,
    Resume,
    Resync,
    Unregister,
    Update,
    ending,
    paused,
    resumed,
    updated,
)
from iscp.coordination.jobs.occupied_places import OccupiedPlaces, named_to
from iscp.coordination.jobs.reshard import (
    Reshard,
    changes,
    refuse_split,
    refuse_unsharded,
    rows_after,
    rows_of_registration,
)
from iscp.coordination.jobs.table_copies import with_own_table_id
from iscp.coordination.jobs.table_paths import Places
from iscp.core.api.api_views import RegisterResult
from iscp.core.job.job_row import Deletion, JobRow, LogEntry, Reason
from iscp.core.rows.key_ranges import WHOLE
from iscp.core.spec.spec_fields import differing_fields
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.values.errors import Conflict, InvalidRequest, JobNotFound, TableNotFound
from iscp.core.values.ids import JobKey

OPERATORS_REQUEST = "reshard:"
"""The prefix of an operator's request id in the log: the request is not of the account with whose row it is logged."""


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
        """Return a new job under the id of its table, which is not that of a copy; the job `but` does not count."""
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
