"""What is posted of the jobs of an owner in memory: as rows move, as time passes, and as terms begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from iscp.coordination.jobs.job_requests import Unregister
from iscp.core.job.job_row import JobRow, JobState, JobStatus, LogEntry, Reason
from iscp.core.job.notification import Notification
from iscp.runtime.admin.job_views import JobViews
from iscp.runtime.notify.alert_watch import SWEEP_S, AlertSettings, AlertWatch
from iscp.runtime.notify.webhook_sender import WebhookSender
from tests.fakes.clock import FakeClock
from tests.fakes.nodes import nodes_and_views
from tests.fakes.owned_jobs import register
from tests.fakes.owned_jobs import row as owned_row
from tests.fakes.owner import OwnerWorld
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until
from tests.fakes.webhooks import FakeWebhook

FAILED = JobStatus(error_code=10_005, error_msg="a column is gone", end_at_s=5.0)
WELL = JobStatus(end_at_s=6.0)


@dataclass
class Watched:
    """An owner with a watch of its jobs, whose turns the test makes."""

    world: OwnerWorld
    receivers: list[FakeWebhook] = field(default_factory=lambda: [FakeWebhook("one"), FakeWebhook("two")])

    def __post_init__(self) -> None:
        world = self.world
        nodes, _ = nodes_and_views(world.owner, world.membership, world.clock)
        kind = FakeKind()
        views = JobViews(world.owner, nodes, lambda name: kind, world.clock)
        self.senders = [WebhookSender(each, world.clock, lambda: 0.0, world.broken.append) for each in self.receivers]
        settings = AlertSettings("c", late_after_s=60.0)
        self.watch = AlertWatch(world.owner, views, self.senders, settings, world.clock, world.broken.append)
        world.on_tables = self.watch.on_tables

    def turn(self) -> None:
        """Read all that is to be read, and send it."""
        while self.watch.turn() == 0.0:
            pass
        for sender in self.senders:
            while sender.turn():
                pass

    def posted(self) -> list[str]:
        """The kinds, of a recovery with what it is from, once both receivers have the same."""
        self.turn()
        one, two = ([_word(each) for each in receiver.accepted] for receiver in self.receivers)
        assert one == two
        return one

    def report(
        self, job: JobRow, version: int, state: JobState, status: JobStatus, reason: Reason = Reason.NONE
    ) -> None:
        self.world.report(job, version, state, reason, status)
        until(lambda: (found := self.world.job(job.key)) and (found.state, found.reason) == (state, reason))
        self.world.settle()


def row(name: str, table_id: str = "t-1") -> JobRow:
    """Registered just now."""
    return owned_row(name, table_id)._replace(create_at_s=FakeClock().now_s())


def _word(each: Notification) -> str:
    return f"-{each.recovered_from}" if each.recovered_from else each.kind.value


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched(OwnerWorld())
    yield made
    made.watch.close()
    made.world.close()


def test_who_does_not_lead_posts_nothing(watched: Watched) -> None:
    watched.world.owner.start()
    assert watched.posted() == []


def test_a_failure_and_its_end_are_posted_as_the_rows_move(watched: Watched) -> None:
    watched.world.lead()
    job = row("x")
    register(watched.world, job)
    assert watched.posted() == ["owner_changed"]
    watched.report(job, 1, JobState.ERROR, FAILED)
    until(lambda: watched.posted() == ["owner_changed", "failed"])
    watched.report(job, 2, JobState.COMPLETED, WELL)
    until(lambda: watched.posted() == ["owner_changed", "failed", "-failed"])
    failed = watched.receivers[0].accepted[1]
    assert (failed.job, failed.error_code, failed.error_message) == ("x", 10_005, "a column is gone")
    assert (failed.cluster, failed.owner, failed.owner_rev) == ("c", "n-1", 1)


def test_a_quarantine_and_a_job_that_is_dropped_in_it_are_posted(watched: Watched) -> None:
    watched.world.lead()
    job = row("x")
    register(watched.world, job)
    watched.report(job, 1, JobState.ERROR, JobStatus(error_code=5), Reason.QUARANTINED)
    until(lambda: watched.posted() == ["owner_changed", "quarantined"])
    watched.world.owner.current_writer().submit(Unregister(job.key)).result(10)
    until(lambda: watched.posted() == ["owner_changed", "quarantined", "-quarantined"])
    assert watched.receivers[0].accepted[-1].state == "dropped"


def test_a_job_that_becomes_late_by_time_alone_is_posted_at_the_next_sweep(watched: Watched) -> None:
    watched.world.lead()
    job = row("x")
    register(watched.world, job)
    watched.report(job, 1, JobState.COMPLETED, WELL)
    watched.world.see(2, lag_s=1.0)
    assert watched.posted() == ["owner_changed"]
    watched.world.clock.advance(61.0)  # no row moves
    assert watched.posted() == ["owner_changed", "late"]
    watched.world.see(2, lag_s=61.0)
    watched.report(job, 2, JobState.COMPLETED, JobStatus(end_at_s=7.0))
    watched.world.clock.advance(SWEEP_S)
    until(lambda: watched.posted() == ["owner_changed", "late", "-late"])


def test_the_next_term_repeats_what_is_open_under_the_same_id(watched: Watched) -> None:
    broken = row("x")._replace(state=JobState.ERROR, status_json=FAILED.to_json())
    watched.world.storage.entries = [LogEntry(broken), LogEntry(row("y", "t-2"))]
    watched.world.lead()
    assert watched.posted() == ["owner_changed", "failed"]
    watched.world.storage.term += 1  # another node has claimed the log; this one leads, and claims it again
    watched.world.owner.current_writer().submit(Unregister(row("y", "t-2").key)).exception(10)
    until(lambda: watched.world.owner.writer is None)
    watched.turn()
    watched.world.pass_s(SWEEP_S)
    until(lambda: watched.world.owner.writer)
    until(lambda: watched.posted() == ["owner_changed", "failed"] * 2)
    ids = [each.id for each in watched.receivers[0].accepted]
    assert ids[1] == ids[3]
    assert ids[0] != ids[2]


def test_what_waits_for_a_receiver_is_dropped_with_the_term(watched: Watched) -> None:
    watched.world.lead()
    while watched.watch.turn() == 0.0:
        pass
    assert watched.watch.counters() == {"webhooks_posted": 0, "webhooks_waiting": 2, "webhooks_dropped": 0}
    watched.world.owner.on_lost()
    until(lambda: watched.world.owner.writer is None)
    watched.turn()
    assert watched.watch.counters() == {"webhooks_posted": 0, "webhooks_waiting": 0, "webhooks_dropped": 2}


def test_its_own_threads_do_the_same(watched: Watched) -> None:
    broken = row("x")._replace(state=JobState.ERROR, status_json=FAILED.to_json())
    watched.world.storage.entries = [LogEntry(broken)]
    watched.watch.start()
    watched.world.lead()
    for receiver in watched.receivers:
        until(lambda receiver=receiver: receiver.kinds() == ["owner_changed", "failed"])  # type: ignore[misc]


def test_without_receivers_nothing_is_watched() -> None:
    alone = Watched(OwnerWorld(), [])
    alone.watch.start()
    alone.watch.on_tables(["t-1"])
    assert alone.watch.counters() == {}
    alone.watch.close()
