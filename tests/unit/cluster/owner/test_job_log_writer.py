"""The log's writer, turn by turn with a clock that stands still, and with its threads where they matter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from iscp.cluster.jobs.job_book import BookChange, JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Unregister
from iscp.cluster.owner.job_log_writer import LogHooks, LogLimits, LogWriter
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, Registration
from iscp.model.settings.config import JobLogConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import (
    InvalidRequest,
    InvariantBroken,
    IscpError,
    JobNotFound,
    NotOwner,
    OutcomeUnknown,
    QueueFull,
    StorageError,
    Unavailable,
)
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.watermark import Watermark
from tests.fakes.joblog import FakeJobLog, LogStorage

TABLE = "t1"


@dataclass
class StillClock:
    """Port Clock: moves only by hand."""

    at_s: float = 1_000_000.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


@dataclass
class Owner:
    """A writer over a fake log, and what it has reported."""

    storage: LogStorage = field(default_factory=LogStorage)
    config: JobLogConfig = field(default_factory=lambda: JobLogConfig(uri=""))
    limits: LogLimits = field(default_factory=LogLimits)
    books: type[JobBook] = JobBook
    clock: StillClock = field(default_factory=StillClock)
    changes: list[BookChange] = field(default_factory=list)
    deposed: list[IscpError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = FakeJobLog(self.storage)
        self.log.claim_term()
        book = self.book = self.books(self.log.load(), self.log.requests())
        hooks = LogHooks(self.changes.append, self.deposed.append)
        self.writer = LogWriter(self.log, book, self.clock, self.config, hooks, self.limits)

    def register(self, *names: str, request_id: str = "") -> Future[tuple[RegisterResult, ...]]:
        return self.writer.submit(Register(tuple(Registration(row(name), request_id) for name in names)))

    def registered(self, *names: str) -> None:
        futures = [self.register(name) for name in names]
        self.writer.turn()
        assert all(future.result(0)[0].created for future in futures)

    def report(self, name: str, version: int, state: JobState | None = None) -> None:
        self.writer.report([JobReport(key(name), f"id-{name}", Watermark(version, 1.0), version, state)])

    def pass_s(self, seconds: float) -> None:
        self.clock.at_s += seconds
        self.writer.turn()

    def logged(self, name: str) -> JobRow | None:
        rows = [each for each, _ in self.storage.entries if each.key == key(name)]
        return rows[-1] if rows else None

    def version(self, name: str) -> int:
        job = self.writer.read(lambda book: book.get(key(name)))
        assert job is not None
        return job.watermark.version


def key(name: str) -> JobKey:
    return JobKey("default", TABLE, name)


def row(name: str) -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", f"/targets/{name}"))
    return JobRow(key(name), f"id-{name}", spec.to_json(), TABLE, "/tables/t1", create_at_s=1.0)


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_all_that_has_gathered_goes_into_one_commit_and_each_gets_its_own_answer(owner: Owner) -> None:
    futures = [owner.register(name) for name in "abc"]
    again = owner.register("a")
    missing = owner.writer.submit(Unregister(key("none")))
    owner.writer.turn()
    assert [future.result(0)[0].created for future in (*futures, again)] == [True, True, True, False]
    assert missing.result(0) is False
    assert [len(commit) for commit in owner.storage.commits] == [3]
    assert [change.shards for change in owner.changes] == [(ShardId(TABLE),)]


def test_an_answer_comes_after_the_commit_and_after_the_listener() -> None:
    owner = Owner()
    seen: list[tuple[int, bool]] = []
    owner.writer = LogWriter(
        owner.log,
        JobBook(),
        owner.clock,
        owner.config,
        LogHooks(lambda change: seen.append((len(owner.storage.commits), future.done())), owner.deposed.append),
    )
    future = owner.register("a")
    owner.writer.turn()
    assert future.done()
    assert seen == [(1, False)]


def test_a_refused_request_fails_alone(owner: Owner) -> None:
    good = owner.register("a")
    bad = owner.writer.submit(
        Register((Registration(JobRow(key("b"), "id-b", row("a").spec_json, TABLE, "/tables/t1")),))
    )
    owner.writer.turn()
    assert good.result(0)[0].created
    with pytest.raises(InvalidRequest):
        bad.result(0)


def test_statuses_are_coalesced_and_wait_for_their_delay_but_readers_see_them_at_once(owner: Owner) -> None:
    owner.registered("a")
    for version in range(5):
        owner.report("a", version, JobState.RUNNING)
        owner.report("a", version, JobState.COMPLETED)
    owner.writer.turn()
    assert owner.version("a") == 4
    assert len(owner.storage.commits) == 1
    owner.pass_s(owner.config.status_batch_s)
    assert [len(commit) for commit in owner.storage.commits] == [1, 1]
    logged = owner.logged("a")
    assert logged is not None
    assert (logged.watermark.version, logged.state) == (4, JobState.COMPLETED)


def test_a_fault_that_is_repeated_before_it_is_logged_keeps_what_it_was(owner: Owner) -> None:
    owner.registered("a")
    fault = JobReport(key("a"), "id-a", Watermark(1, 1.0), 1, JobState.ERROR, Reason.NONE, JobStatus(error_code=10_004))
    owner.writer.report([fault])
    owner.writer.report([replace(fault, status=None)])
    owner.writer.turn()
    owner.pass_s(owner.config.status_batch_s)
    logged = owner.logged("a")
    assert logged is not None
    assert logged.failed_for_good


def test_watermarks_alone_are_logged_by_the_hourly_flush_and_never_over_a_drop(owner: Owner) -> None:
    owner.registered("a", "b")
    owner.report("a", 7)
    owner.report("b", 8)
    owner.pass_s(1.0)
    assert len(owner.storage.commits) == 1
    owner.writer.submit(Unregister(key("b")))
    owner.pass_s(1.0)
    owner.pass_s(owner.config.flush_interval_s)
    owner.writer.turn()
    flushed, dropped = owner.logged("a"), owner.logged("b")
    assert flushed is not None
    assert dropped is not None
    assert flushed.watermark.version == 7
    assert dropped.drop_at_s is not None


def test_a_failing_storage_fails_requests_writes_nothing_and_keeps_statuses_for_later(owner: Owner) -> None:
    owner.registered("a")
    owner.report("a", 3, JobState.COMPLETED)
    owner.log.faults = [StorageError("the disk is full")] * 2
    owner.pass_s(owner.config.status_batch_s)  # plans the status
    owner.pass_s(owner.config.status_batch_s)  # fails
    failed = owner.register("b")
    owner.writer.turn()
    with pytest.raises(StorageError):
        failed.result(0)
    assert owner.writer.read(lambda book: book.get(key("b"))) is None
    assert len(owner.storage.commits) == 1
    retried = owner.register("b")
    owner.writer.turn()
    assert retried.result(0)[0].created
    owner.pass_s(owner.limits.retry_max_s)
    logged = owner.logged("a")
    assert logged is not None
    assert logged.watermark.version == 3
    assert owner.deposed == []


def test_a_failing_storage_is_tried_ever_more_rarely(owner: Owner) -> None:
    owner.registered("a")
    owner.report("a", 3, JobState.COMPLETED)
    owner.writer.turn()
    owner.log.faults = [StorageError("gone")] * 100
    for _ in range(1_000):
        owner.pass_s(0.1)
    assert 8 <= 100 - len(owner.log.faults) <= 12


def test_a_commit_in_doubt_is_repeated_until_it_is_known_and_counted_once(owner: Owner) -> None:
    owner.log.landed_faults = [OutcomeUnknown("the answer was lost")]
    future = owner.register("a")
    owner.writer.turn()
    later = owner.register("b")
    owner.writer.turn()
    assert not future.done()
    assert not later.done()
    owner.pass_s(owner.limits.retry_s)
    owner.writer.turn()
    assert future.result(0)[0].created
    assert later.result(0)[0].created
    assert [len(commit) for commit in owner.storage.commits] == [1, 1]


@pytest.mark.parametrize("lands", [True, False])
def test_a_refusal_that_follows_from_a_commit_in_doubt_waits_for_it(owner: Owner, lands: bool) -> None:
    owner.registered("a")
    owner.log.faults = [OutcomeUnknown("the answer was lost") if lands else StorageError("the disk is full")]
    dropped, paused = owner.writer.submit(Unregister(key("a"))), owner.writer.submit(Pause(key("a")))
    owner.writer.turn()
    if lands:
        assert not paused.done()
        owner.pass_s(owner.limits.retry_s)
        assert dropped.result(0)
        with pytest.raises(JobNotFound):
            paused.result(0)
    else:
        for failed in (dropped, paused):
            with pytest.raises(StorageError):
                failed.result(0)


def test_a_report_that_waits_for_the_log_shows_at_once_to_who_requests_its_job(owner: Owner) -> None:
    owner.registered("a", "b")
    owner.log.faults = [OutcomeUnknown("the storage does not answer")]
    owner.register("c")
    owner.writer.turn()
    owner.report("a", 4)
    owner.report("a", 5, JobState.ERROR)
    owner.writer.turn()
    assert owner.version("a") == -1
    told = owner.writer.job(key("a"))
    assert told is not None
    assert (told.watermark.version, told.state) == (5, JobState.ERROR)
    assert owner.writer.job(key("b")) == row("b")
    assert owner.writer.job(key("none")) is None


def test_another_owner_deposes_once_and_everything_pending_fails(owner: Owner) -> None:
    owner.registered("a")
    successor = Owner(storage=owner.storage)
    futures = [owner.register("b"), owner.register("c")]
    owner.writer.turn()
    for future in futures:
        with pytest.raises(NotOwner):
            future.result(0)
    with pytest.raises(NotOwner):
        owner.register("d")
    owner.writer.turn()
    assert len(owner.deposed) == 1
    successor.registered("b")
    assert successor.writer.read(len) == 2


def test_what_was_in_doubt_when_another_owner_came_is_not_said_to_be_nothing(owner: Owner) -> None:
    """It may have landed right before: whoever hears NotOwner would request it again, as if nothing had been done."""
    owner.log.landed_faults = [OutcomeUnknown("the answer was lost")]
    written = owner.register("a", request_id="r1")
    owner.writer.turn()
    behind = owner.register("b")
    successor = Owner(storage=owner.storage)
    owner.pass_s(owner.limits.retry_s)
    owner.writer.turn()
    with pytest.raises(OutcomeUnknown):
        written.result(0)
    with pytest.raises(NotOwner):
        behind.result(0)
    again = successor.register("a", request_id="r1")
    successor.writer.turn()
    assert again.result(0) == (RegisterResult(True, "id-a", TABLE),)


def test_a_retry_at_the_next_owner_gets_the_first_answer(owner: Owner) -> None:
    first = owner.register("a", request_id="r1")
    owner.writer.turn()
    successor = Owner(storage=owner.storage)
    again = successor.register("a", request_id="r1")
    successor.writer.turn()
    assert again.result(0) == first.result(0) == (RegisterResult(True, "id-a", TABLE),)
    assert len(owner.storage.commits) == 1


def test_the_log_is_compacted_by_commits_and_hourly() -> None:
    owner = Owner(config=JobLogConfig(uri="", compact_commits=3))
    for name in "abc":
        owner.registered(name)
    assert owner.log.compactions == 1
    owner.registered("d", "e")
    owner.registered("f")
    owner.pass_s(owner.config.compact_interval_s)
    assert owner.log.compactions == 2
    assert len(owner.log.load()) == 6


def test_rows_dropped_for_more_than_a_day_are_collected_and_leave_the_log(owner: Owner) -> None:
    owner.registered("a", "b")
    owner.writer.submit(Unregister(key("a")))
    owner.writer.turn()
    owner.pass_s(owner.config.collect_interval_s)
    assert len(owner.log.load()) == 2
    owner.pass_s(owner.config.keep_dropped_s)
    assert [each.job_id for each in owner.log.load()] == ["id-b"]


@pytest.mark.parametrize("fault", [StorageError("the disk is full"), OutcomeUnknown("the answer was lost")])
def test_a_failing_compaction_is_tried_again_and_holds_nothing_up(fault: IscpError) -> None:
    owner = Owner(config=JobLogConfig(uri="", compact_commits=2))
    owner.registered("a")
    owner.log.compact_faults = [fault]
    owner.registered("b")
    owner.registered("c")
    assert (owner.log.compactions, owner.log.compact_faults) == (0, [])
    owner.pass_s(owner.limits.retry_s)
    assert owner.log.compactions == 1


def test_the_queue_is_bounded() -> None:
    owner = Owner(limits=LogLimits(requests_max=2))
    owner.register("a")
    owner.register("b")
    with pytest.raises(QueueFull):
        owner.register("c")


def test_a_request_cancelled_while_it_waits_is_not_written(owner: Owner) -> None:
    future = owner.register("a")
    assert future.cancel()
    owner.writer.turn()
    assert owner.storage.commits == []


@pytest.fixture
def running() -> Iterator[Callable[[Owner], Owner]]:
    started: list[Owner] = []

    def start(owner: Owner) -> Owner:
        owner.writer.start()
        started.append(owner)
        return owner

    yield start
    for owner in started:
        owner.writer.close()


def test_many_threads_are_answered_and_read_while_it_writes(running: Callable[[Owner], Owner]) -> None:
    owner = running(Owner())
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: owner.register(f"j{n}").result(10), range(500)))
    assert all(result[0].created for result in results)
    assert owner.writer.read(len) == 500
    assert {each.key.job_name for each in owner.log.load()} == {f"j{n}" for n in range(500)}


def test_close_writes_what_is_pending_and_refuses_what_is_new(running: Callable[[Owner], Owner]) -> None:
    owner = Owner()
    owner.registered("a", "b")
    owner.report("a", 5)
    owner.report("b", 6, JobState.COMPLETED)
    pending = owner.writer.submit(Pause(key("b")))
    owner.writer.report([], [history("a", 1)])
    running(owner)
    owner.writer.close()
    assert pending.result(0) is True
    flushed, paused = owner.logged("a"), owner.logged("b")
    assert flushed is not None
    assert paused is not None
    assert flushed.watermark.version == 5
    assert (paused.watermark.version, paused.reason) == (6, Reason.PAUSED)
    assert owner.storage.history == [history("a", 1)]
    with pytest.raises(Unavailable):
        owner.register("c")
    owner.writer.close()


def test_what_is_due_as_it_closes_is_due_once() -> None:
    """Otherwise the thread would spin until the storage answers."""
    owner = Owner()
    owner.registered("a")
    owner.writer.close()
    owner.pass_s(owner.config.flush_interval_s)
    assert owner.writer.turn() > 0.0


def test_close_ends_in_time_when_the_storage_keeps_failing(running: Callable[[Owner], Owner]) -> None:
    owner = Owner(limits=LogLimits(close_s=0.5, retry_s=0.01))
    owner.registered("a")
    owner.report("a", 5, JobState.COMPLETED)
    owner.log.faults = [StorageError("gone")] * 1_000
    running(owner)
    owner.writer.close()
    assert owner.deposed == []


def test_what_breaks_in_a_listener_stops_the_writer_and_is_reported(running: Callable[[Owner], Owner]) -> None:
    owner = Owner()
    told = threading.Event()

    def broken(change: BookChange) -> None:
        raise RuntimeError("a bug")

    def deposed(error: IscpError) -> None:
        owner.deposed.append(error)
        told.set()

    owner.writer = LogWriter(owner.log, JobBook(), owner.clock, owner.config, LogHooks(broken, deposed))
    running(owner)
    future = owner.register("a")
    assert future.result(10)[0].created  # it is in the log, whatever happens afterwards
    assert told.wait(10)
    assert isinstance(owner.deposed[0], InvariantBroken)


def history(name: str, seq: int) -> HistoryEntry:
    return HistoryEntry(
        "default", TABLE, name, f"id-{name}", seq, 0, 1, 1.0, float(seq), 3.0, 0, "", 1, 1, "tail", "n1"
    )


def test_history_shows_what_is_not_written_yet_first(owner: Owner) -> None:
    owner.log.append_history([history("a", 1), history("b", 1)])
    owner.writer.report([], [history("a", 2), history("a", 3)])
    assert [entry.seq for entry in owner.writer.history("id-a", 10)] == [3, 2, 1]
    assert [entry.seq for entry in owner.writer.history("id-a", 2)] == [3, 2]


class SlowBook(JobBook):
    """While a job is looked up, `meanwhile` has begun in another thread."""

    meanwhile: Callable[[], object] | None = None

    def rows_of(self, key: JobKey) -> tuple[JobRow, ...]:
        rows = super().rows_of(key)
        if self.meanwhile is not None:
            turn = threading.Thread(target=self.meanwhile)
            turn.start()
            turn.join(0.2)  # as far as it gets while the book is read
        return rows


def test_a_report_that_is_taken_into_the_book_meanwhile_is_not_missed() -> None:
    owner = Owner(books=SlowBook)
    owner.registered("a")
    owner.report("a", 7)
    assert isinstance(owner.book, SlowBook)
    owner.book.meanwhile = owner.writer.turn
    told = owner.writer.job(key("a"))
    assert told is not None
    assert told.watermark.version == 7
