"""Commits of the job log whose answers are lost: real tables, the real writer, and a storage that fails at each step.

Of every commit (append, compaction, claim) the request or the answer may be lost, and the reads behind it may fail; an
owner may end at any time, and the next one loads what is there. Against a model of what was acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Request, Resume, Unregister
from iscp.cluster.owner.job_log_writer import LogHooks, LogWriter
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.delta.joblog.fenced_table import (
    FAILPOINT_CLAIM,
    FAILPOINT_COMMIT,
    FAILPOINT_COMMITTED,
    FAILPOINT_LOOK,
)
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.job_row import JobReport, JobRow, JobState, LogEntry, Registration
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.errors import IscpError, JobNotFound, NotOwner, OutcomeUnknown, StorageError
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark
from iscp.ports.system import Failpoints
from iscp.system.threads import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.guards import ScriptedFailpoints, break_down
from tests.fakes.log_program import job


class Losing:
    """Port Failpoints: where it is reached the storage fails, as often as `left` says."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        if self.left[name] > 0:
            self.left[name] -= 1
            raise OSError(5, f"the storage failed at {name}")

    def lose(self, *names: str) -> None:
        self.left.update(names)


def owner(uri: Path, losing: Failpoints) -> DeltaJobLog:
    joblog = DeltaJobLog(str(uri), SystemClock(), losing)
    while True:
        try:
            joblog.claim_term()
            return joblog
        except StorageError:
            continue


def test_what_follows_a_compaction_that_landed_unseen_is_numbered_above_it(tmp_path: Path) -> None:
    """The compaction's rows are numbered by the version that it landed at; the drop behind it must not lie below."""
    losing = Losing()
    joblog = owner(tmp_path, losing)
    rows = [job(number) for number in range(3)]
    joblog.append([LogEntry(row) for row in rows])
    losing.lose(FAILPOINT_COMMITTED, FAILPOINT_LOOK)
    with pytest.raises(OutcomeUnknown):
        joblog.compact(rows)
    dropped = rows[2]._replace(drop_at_s=1.0)
    joblog.append([LogEntry(dropped, "the-request")])
    successor = owner(tmp_path, Losing())
    assert {row.job_id: row for row in successor.load()} == {row.job_id: row for row in (*rows[:2], dropped)}
    assert successor.requests() == {dropped.job_id: ("the-request",)}


def test_a_commit_that_is_repeated_behind_one_that_did_not_land_is_there_once(tmp_path: Path) -> None:
    losing = Losing()
    joblog = owner(tmp_path, losing)
    for lost in (FAILPOINT_COMMIT, FAILPOINT_COMMITTED):
        losing.lose(lost, FAILPOINT_LOOK)
        row = job(1)
        with pytest.raises(OutcomeUnknown):
            joblog.append([LogEntry(row)])
        joblog.append([LogEntry(row)])
        assert [each.job_id for each in owner(tmp_path, Losing()).load()].count(row.job_id) == 1
        joblog = owner(tmp_path, losing)


def test_a_commit_that_landed_before_the_next_owner_claimed_is_not_said_to_be_nothing(tmp_path: Path) -> None:
    """And the retry with the same request id gets its answer."""
    steps, row = ScriptedFailpoints(), job(1)
    joblog = owner(tmp_path, steps)
    steps.once(FAILPOINT_LOOK, lambda: owner(tmp_path, Losing()))
    with pytest.raises(OutcomeUnknown):
        joblog.append([LogEntry(row, "the-request")])
    with pytest.raises(NotOwner):
        joblog.append([LogEntry(row, "the-request")])
    successor = owner(tmp_path, Losing())
    assert [each.job_id for each in successor.load()] == [row.job_id]
    assert successor.requests() == {row.job_id: ("the-request",)}


def test_a_commit_that_found_the_claim_of_the_next_owner_there_was_not_made(tmp_path: Path) -> None:
    steps = ScriptedFailpoints()
    joblog = owner(tmp_path, steps)
    steps.once(FAILPOINT_COMMIT, lambda: owner(tmp_path, Losing()))
    with pytest.raises(NotOwner):
        joblog.append([LogEntry(job(1))])
    assert owner(tmp_path, Losing()).load() == []


@pytest.mark.parametrize("unseen", [False, True])
def test_a_commit_whose_write_raises_though_it_landed_is_synced_before_it_is_acknowledged(
    tmp_path: Path, unseen: bool
) -> None:
    """Also where it is found by its repetition."""
    steps, entries = ScriptedFailpoints(), [LogEntry(job(1))]
    joblog = owner(tmp_path, steps)
    steps.reached.clear()
    steps.once(FAILPOINT_COMMITTED, break_down)
    if unseen:
        steps.once(FAILPOINT_LOOK, break_down)
        with pytest.raises(OutcomeUnknown):
            joblog.append(entries)
        assert "log.sync" not in steps.reached
    joblog.append(entries)
    assert "log.sync" in steps.reached


# A random history against a model

KEYS = [job(number).key for number in range(3)]
CONFIG = JobLogConfig(uri="", compact_commits=4, keep_dropped_s=1e12)

Jobs = dict[str, tuple[str, bool]]
"""By name: the job_id, and whether it is paused."""


@dataclass(slots=True)
class Asked:
    """A request, and its first answer once there is one that the log has to keep."""

    request: Request
    future: Future[Any]


@dataclass(slots=True)
class Model:
    """What the log has to hold: the jobs, and what each request that changed something was about."""

    jobs: Jobs = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(dict(self.jobs), dict(self.requests))

    def apply(self, request: Request) -> object:
        """The answer that it has to get."""
        match request:
            case Register((Registration(row, request_id),)):
                name = row.key.job_name
                if request_id in self.requests:
                    return (RegisterResult(True, self.requests[request_id], row.key.table_id),)
                if name in self.jobs:
                    return (RegisterResult(False, self.jobs[name][0], row.key.table_id),)
                self._set(name, (row.job_id, False), request_id)
                return (RegisterResult(True, row.job_id, row.key.table_id),)
            case Unregister(key, request_id):
                if request_id in self.requests or key.job_name not in self.jobs:
                    return request_id in self.requests
                return self._set(key.job_name, None, request_id)
            case Pause(key, request_id) | Resume(key, request_id):
                if request_id in self.requests:
                    return True
                if key.job_name not in self.jobs:
                    return JobNotFound
                job_id, paused = self.jobs[key.job_name]
                wanted = isinstance(request, Pause)
                return paused != wanted and self._set(key.job_name, (job_id, wanted), request_id)
            case _:
                raise AssertionError(request)

    def _set(self, name: str, job: tuple[str, bool] | None, request_id: str) -> bool:
        before = self.jobs.pop(name, None)
        if job is not None:
            self.jobs[name] = job
        self.requests[request_id] = (job or before or ("", False))[0]
        return True


def said(future: Future[Any]) -> object:
    error = future.exception(0)
    return type(error) if error is not None else future.result(0)


class History:
    """Owners of one log, one after the other, and the model of what they have acknowledged."""

    def __init__(self, uri: Path) -> None:
        self.uri = uri
        self.losing = Losing()
        self.clock = FakeClock()
        self.model = Model()
        self.asked: list[Asked] = []
        self.waiting: list[Asked] = []
        self.made = 0
        self.writer = self.begin()

    def begin(self) -> LogWriter:
        """The next owner: it knows what the log says and nothing else."""
        joblog = owner(self.uri, self.losing)
        self.losing.left.clear()
        book = JobBook(joblog.load(), joblog.requests())
        found = Model(wanted(book.rows()), {each: job_id for job_id, ids in joblog.requests().items() for each in ids})
        perhaps = self.model.copy()
        for asked in (each for each in self.waiting if each.future.running()):
            perhaps.apply(asked.request)  # one commit: all of it landed, or nothing
        assert found.jobs in (self.model.jobs, perhaps.jobs)
        for kept in [self.model] if found.jobs != perhaps.jobs else [self.model, perhaps]:
            if kept.requests.items() <= found.requests.items():
                self.model = kept
        assert self.model.jobs == found.jobs
        assert self.model.requests.items() <= found.requests.items(), "a request is forgotten"
        self.waiting.clear()
        return LogWriter(joblog, book, self.clock, CONFIG, LogHooks(lambda change: None, self.deposed))

    def deposed(self, error: IscpError) -> None:
        raise AssertionError(f"nobody else writes this log: {error}")

    def ask(self, request: Request) -> None:
        asked = Asked(request, self.writer.submit(request))
        self.asked.append(asked)
        self.waiting.append(asked)

    def request(self, kind: str, number: int) -> None:
        self.made += 1
        request_id, key = f"r{self.made}", KEYS[number]
        kinds: dict[str, Callable[[JobKey, str], Request]] = {"drop": Unregister, "pause": Pause, "resume": Resume}
        if kind == "register":
            row = job(number)._replace(key=key, job_id=f"{self.made:04d}")
            self.ask(Register((Registration(row, request_id),)))
        else:
            self.ask(kinds[kind](key, request_id))

    def turn(self, pass_s: float = 0.1) -> None:
        """By default sooner than what failed is tried again."""
        self.clock.advance(pass_s)
        self.writer.turn()
        for asked in [each for each in self.waiting if each.future.done()]:
            self.waiting.remove(asked)
            answer = said(asked.future)
            if answer is not StorageError:
                assert answer == self.model.apply(asked.request), asked.request

    def report(self, number: int) -> None:
        row = self.writer.job(KEYS[number])
        if row is not None:
            moved = Watermark(row.watermark.version + 1, 1.0)
            self.writer.report([JobReport(row.key, row.job_id, moved, row.seq + 1, JobState.COMPLETED)])

    def play(self, step: tuple[str, int]) -> None:
        match step:
            case "again", number:
                if self.asked:
                    self.ask(self.asked[max(-5, -len(self.asked)) :][number % min(5, len(self.asked))].request)
                self.turn()
            case "turn", _:
                self.turn(pass_s=60.0)
            case "report", number:
                self.report(number)
                self.turn()
            case "compact", number:
                if number:
                    self.turn(pass_s=60.0)
                    self.losing.lose(FAILPOINT_COMMITTED, *[FAILPOINT_LOOK] * number)
                self.turn(pass_s=CONFIG.compact_interval_s)
            case "crash", _:
                self.writer = self.begin()
            case "lose", number:
                names = (FAILPOINT_CLAIM, FAILPOINT_COMMIT, FAILPOINT_COMMITTED)
                self.losing.lose(names[number], *[FAILPOINT_LOOK] * (number % 2))
            case "unseen", number:
                self.losing.lose(FAILPOINT_COMMITTED, *[FAILPOINT_LOOK] * (number + 1))
            case kind, number:
                self.request(kind, number)
                self.turn()


def wanted(rows: Iterable[JobRow]) -> Jobs:
    return {row.key.job_name: (row.job_id, row.paused) for row in rows if row.drop_at_s is None}


REQUESTS = st.sampled_from(["register", "drop", "drop", "pause", "resume", "again"])
OTHERS = st.sampled_from(["compact", "compact", "crash", "turn", "report", "lose", "unseen"])
STEPS = st.lists(st.tuples(REQUESTS | OTHERS, st.integers(0, 2)), min_size=5, max_size=40)


REFUSED_BY_UNKNOWN = [("drop", 0), ("compact", 1), ("register", 0), ("drop", 0), ("pause", 0), ("compact", 1)]
"""A pause is decided behind a drop, in one commit whose outcome stays unknown for a while."""


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@example(steps=REFUSED_BY_UNKNOWN)
@given(steps=STEPS)
def test_nothing_acknowledged_is_lost_and_nothing_dropped_lives_whatever_answers_are_lost(
    steps: list[tuple[str, int]],
) -> None:
    check(steps)


@pytest.mark.full
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_nothing_acknowledged_is_lost_for_long(steps: list[tuple[str, int]]) -> None:
    check(steps)


def check(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as directory:
        history = History(Path(directory))
        for step in [("register", number) for number in range(3)] + steps:
            history.play(step)
        history.play(("crash", 0))
