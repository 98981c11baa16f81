"""What is posted of the jobs of an owner in memory: as rows move, as time passes, and as terms begin and end.

The thread of one receiver: what is sent, tried again, dropped and counted.

Posting to a real receiver on this machine that accepts, refuses, is slow, hangs up, or never ends its answer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from iscp.cluster.jobs.job_changes import Unregister
from iscp.cluster.requests.job_views import JobViews
from iscp.model.job.job_row import JobRow, JobState, JobStatus, LogEntry, Notification, NotificationKind, Reason
from iscp.model.values.errors import ConfigurationError, PermanentError, Unavailable
from iscp.notices.alert_watch import (
    ID_HEADER,
    SECRET_BYTES_MAX,
    SIGNATURE_HEADER,
    SWEEP_S,
    AlertSettings,
    AlertWatch,
    HttpWebhook,
    WebhookSender,
    read_secret,
    webhooks_of,
)
from iscp.notices.notifications import REFUSALS_MAX, RETRY_FIRST_S, RETRY_MAX_S, WAITING_MAX
from tests.fakes.clock import FakeClock
from tests.fakes.nodes import nodes_and_views
from tests.fakes.owned_jobs import register
from tests.fakes.owned_jobs import row as owned_row
from tests.fakes.owner import OwnerWorld
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until
from tests.fakes.webhooks import ACCEPT, FakeWebhook, HttpReceiver

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


BROKEN: list[Exception] = []


def notification(number: int = 0) -> Notification:
    return Notification(
        kind=NotificationKind.FAILED, id=f"i-{number}", at_s=0.0, cluster="c", owner="n", owner_rev=1, job_id="id-1"
    )


def sender(webhook: FakeWebhook, clock: FakeClock) -> WebhookSender:
    return WebhookSender(webhook, clock, lambda: 0.0, BROKEN.append)


def test_what_fails_is_sent_again_after_its_pause_and_only_then() -> None:
    clock, webhook = FakeClock(), FakeWebhook(faults=[Unavailable("500"), Unavailable("500")])
    made = sender(webhook, clock)
    made.add(notification())
    for pause_s in (RETRY_FIRST_S, 2 * RETRY_FIRST_S):
        assert made.turn()
        assert not made.turn()
        clock.advance(pause_s)
    assert made.turn()
    assert [each.id for each in webhook.accepted] == ["i-0"]
    assert (made.posted, made.waiting, made.dropped) == (1, 0, 0)


def test_what_is_refused_again_and_again_is_dropped_with_an_event(caplog: pytest.LogCaptureFixture) -> None:
    clock, webhook = FakeClock(), FakeWebhook(faults=[PermanentError("404") for _ in range(REFUSALS_MAX)])
    made = sender(webhook, clock)
    made.add(notification(1))
    made.add(notification(2))
    with caplog.at_level(logging.WARNING):
        while made.waiting:
            made.turn()
            clock.advance(RETRY_MAX_S)
    assert [each.id for each in webhook.accepted] == ["i-2"]
    assert made.dropped == 1
    (dropped,) = [vars(each) for each in caplog.records if each.message == "webhook.dropped"]
    assert (dropped["webhook"], dropped["id"], dropped["kind"], dropped["count"]) == ("receiver", "i-1", "failed", 1)


def test_too_many_drop_the_oldest_with_an_event_each(caplog: pytest.LogCaptureFixture) -> None:
    made = sender(FakeWebhook(), FakeClock())
    with caplog.at_level(logging.WARNING):
        for number in range(WAITING_MAX + 2):
            made.add(notification(number))
    assert (made.waiting, made.dropped) == (WAITING_MAX, 2)
    assert [vars(each)["id"] for each in caplog.records if each.message == "webhook.dropped"] == ["i-0", "i-1"]


def test_the_thread_sends_what_is_added_and_drops_what_waits_at_the_end() -> None:
    webhook = FakeWebhook()
    made = sender(webhook, FakeClock())
    made.start()
    for number in range(3):
        made.add(notification(number))
    until(lambda: made.posted == 3)
    webhook.faults.append(Unavailable("gone"))
    made.add(notification(3))
    until(lambda: not webhook.faults)
    made.close()
    assert [each.id for each in webhook.accepted] == ["i-0", "i-1", "i-2"]
    assert (made.waiting, made.dropped) == (0, 1)
    assert BROKEN == []


SECRET = b"s3cr3t"
NOTIFICATION = Notification(
    kind=NotificationKind.FAILED, id="i-1", at_s=7.0, cluster="c", owner="n-1", owner_rev=3, error_message="größer"
)
SHORT_S = 0.2


def waits(over: threading.Event) -> None:
    over.wait(60)


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


def webhook(receiver: HttpReceiver, secret: bytes = SECRET, timeout_s: float = 20.0) -> HttpWebhook:
    return HttpWebhook("notify.webhooks.0", receiver.url, secret, FakeClock(1_700_000_000.9), timeout_s)


def test_the_body_is_sent_whole_and_the_signature_is_of_time_and_body(receiver: HttpReceiver) -> None:
    webhook(receiver).post(NOTIFICATION)
    (received,) = receiver.received
    assert received.line == "POST /hooks?key=k-1 HTTP/1.1"
    assert received.headers["content-type"] == "application/json"
    assert received.headers[ID_HEADER] == "i-1"
    assert json.loads(received.body)["error_message"] == "größer"
    expected = hmac.new(SECRET, b"1700000000." + received.body, hashlib.sha256).hexdigest()
    assert received.headers[SIGNATURE_HEADER] == f"t=1700000000,v1={expected}"


def test_without_a_secret_nothing_is_signed(receiver: HttpReceiver) -> None:
    webhook(receiver, secret=b"").post(NOTIFICATION)
    assert SIGNATURE_HEADER not in receiver.received[0].headers


@pytest.mark.parametrize("status", [b"500 Oops", b"503 Later", b"429 Too many", b"408 Timeout"])
def test_a_receiver_that_fails_is_to_be_tried_again(receiver: HttpReceiver, status: bytes) -> None:
    receiver.answer = lambda connection: connection.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
    with pytest.raises(Unavailable, match=status[:3].decode()):
        webhook(receiver).post(NOTIFICATION)


def test_a_redirect_is_not_followed(receiver: HttpReceiver) -> None:
    elsewhere = HttpReceiver()
    location = b"HTTP/1.1 307 Elsewhere\r\nlocation: " + elsewhere.url.encode() + b"\r\n\r\n"
    receiver.answer = lambda connection: connection.sendall(location)
    with pytest.raises(PermanentError, match="answers 307"):
        webhook(receiver).post(NOTIFICATION)
    elsewhere.close()
    assert elsewhere.received == []


def test_a_receiver_that_refuses_is_reported_without_its_url(receiver: HttpReceiver) -> None:
    receiver.answer = lambda connection: connection.sendall(b"HTTP/1.0 404\r\n\r\n")
    with pytest.raises(PermanentError) as refused:
        webhook(receiver).post(NOTIFICATION)
    assert str(refused.value) == "notify.webhooks.0 (127.0.0.1) answers 404"


def test_nobody_listens(receiver: HttpReceiver) -> None:
    gone = webhook(receiver)
    receiver.close()
    with pytest.raises(Unavailable, match="does not accept notifications"):
        gone.post(NOTIFICATION)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n", b"x" * 100_000])
def test_what_is_no_answer_is_none(receiver: HttpReceiver, answer: bytes) -> None:
    receiver.answer = lambda connection: connection.sendall(answer)
    with pytest.raises(Unavailable):
        webhook(receiver).post(NOTIFICATION)


def test_a_receiver_that_does_not_answer_is_given_up(receiver: HttpReceiver) -> None:
    over = threading.Event()
    receiver.answer = lambda connection: waits(over)
    with pytest.raises(Unavailable, match="did not answer in time"):
        webhook(receiver, timeout_s=SHORT_S).post(NOTIFICATION)
    over.set()


def test_a_trickle_of_bytes_does_not_put_off_the_end(receiver: HttpReceiver) -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        while not over.wait(SHORT_S / 20):
            connection.sendall(b"H")

    receiver.answer = trickle
    with pytest.raises(Unavailable):
        webhook(receiver, timeout_s=SHORT_S).post(NOTIFICATION)
    over.set()


def test_an_endless_body_is_not_read(receiver: HttpReceiver) -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65_536)

    receiver.answer = flood
    webhook(receiver).post(NOTIFICATION)
    receiver.answer = lambda connection: connection.sendall(ACCEPT)
    webhook(receiver).post(NOTIFICATION)  # the receiver has seen the end of the first
    assert len(receiver.received) == 2


def test_the_secret_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" s3cr3t\n")
    assert read_secret(str(file)) == b"s3cr3t"
    assert read_secret("") == b""
    (made,) = webhooks_of(("https://u.example/t0ken",), str(file), FakeClock())
    assert made.name == "notify.webhooks.0 (u.example)"
    assert "s3cr3t" not in repr(made)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * (SECRET_BYTES_MAX + 1)])
def test_a_secret_that_cannot_be_one_is_refused_by_its_setting(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_secret(str(file))
    assert refused.value.field == "notify.secret_file"
    assert "xxx" not in str(refused.value)


@pytest.mark.parametrize("host", ["[2001:db8::abcd]", "[::1]"])
def test_the_end_of_an_ipv6_address_is_no_port(host: str) -> None:
    """The post goes to the port of the scheme, where nobody listens."""
    refused = HttpWebhook("notify.webhooks.0", f"https://{host}/hook", SECRET, FakeClock(), SHORT_S)
    with pytest.raises(Unavailable, match="does not accept notifications"):
        refused.post(NOTIFICATION)
