"""The outbox: newest state of each job, all history, bounded chunks that never change once numbered."""

from __future__ import annotations

from dataclasses import replace

from iscp.model.job.job_row import JobState
from iscp.model.protocol.messages import CHECKPOINT_BYTES_MAX, SourceSeen
from iscp.model.values.ids import ShardId
from iscp.schedule.reports import IN_FLIGHT_MAX, Outbox, merge_reports
from tests.fakes.loopback import entry, job, report

A = ShardId("a")
ROW = job("a")


def test_the_newest_report_of_a_job_counts_and_every_history_entry() -> None:
    outbox = Outbox()
    outbox.gather(A, [report(ROW, 1, JobState.RUNNING)], [entry(ROW, 1)])
    outbox.gather(A, [report(ROW, 2, JobState.COMPLETED)], [entry(ROW, 2)])
    chunk = outbox.cut()
    assert chunk is not None
    (told,) = chunk.shards
    assert [r.state for r in told.reports] == [JobState.COMPLETED]
    assert [e.seq for e in told.history] == [1, 2]


def test_a_watermark_alone_does_not_take_a_state_away() -> None:
    outbox = Outbox()
    outbox.gather(A, [report(ROW, 1, JobState.ERROR, "disk full")], [])
    outbox.gather(A, [report(ROW, 2, None)], [])
    chunk = outbox.cut()
    assert chunk is not None
    (told,) = chunk.shards[0].reports
    assert (told.state, told.watermark.version) == (JobState.ERROR, 2)
    assert told.status is not None
    assert told.status.error_msg == "disk full"


def test_a_state_that_is_repeated_without_a_status_has_the_one_that_it_had() -> None:
    fault = report(ROW, 1, JobState.ERROR, "no such column")
    repeated, begun = replace(fault, status=None), replace(fault, state=JobState.RUNNING, status=None)
    assert merge_reports(fault, repeated) == fault
    assert merge_reports(fault, begun) == begun


def test_a_report_of_a_new_registration_is_not_mixed_with_the_old_one() -> None:
    outbox = Outbox()
    again = report(ROW, 0, None)
    outbox.gather(A, [report(ROW, 5, JobState.ERROR)], [])
    outbox.gather(A, [type(again)(again.key, "another", again.watermark, 0)], [])
    chunk = outbox.cut()
    assert chunk is not None
    assert chunk.shards[0].reports[0].state is None


def test_chunks_are_bounded_in_bytes_and_in_number_and_nothing_is_lost() -> None:
    outbox = Outbox()
    text = "x" * (CHECKPOINT_BYTES_MAX // 4)
    outbox.gather(A, [report(ROW, 60)], [entry(ROW, seq, error_msg=text) for seq in range(60)])
    seen: list[int] = []
    while (chunk := outbox.cut()) is not None:
        size = sum(len(e.error_msg) for item in chunk.shards for e in item.history)
        assert size <= CHECKPOINT_BYTES_MAX * 1.25
        seen += [e.seq for item in chunk.shards for e in item.history]
        if len(outbox.chunks) == IN_FLIGHT_MAX:
            assert outbox.cut() is None
            outbox.record(chunk.number)
    assert seen == list(range(60))
    outbox.record(1_000)
    assert outbox.history_waiting == 0
    assert outbox.flushed(A)


def test_a_shard_is_flushed_when_all_it_said_is_recorded() -> None:
    outbox = Outbox()
    assert outbox.flushed(A)
    outbox.gather(A, [report(ROW, 1)], [])
    assert not outbox.flushed(A)
    outbox.cut()
    assert not outbox.flushed(A)
    assert outbox.record(1)
    assert outbox.flushed(A)
    assert not outbox.record(1)


def test_a_new_epoch_numbers_from_one_and_keeps_the_content() -> None:
    outbox = Outbox()
    for seq in (1, 2, 3):
        outbox.gather(A, [], [entry(ROW, seq)])
        outbox.cut()
    outbox.record(1)
    outbox.renumber()
    assert [chunk.number for chunk in outbox.chunks] == [1, 2]
    assert [chunk.shards[0].history[0].seq for chunk in outbox.chunks] == [2, 3]


def test_the_source_seen_last_is_reported() -> None:
    outbox = Outbox()
    outbox.see(SourceSeen(A, 1, 10.0, 0.0), 10.0)
    outbox.see(SourceSeen(A, 2, 11.0, 3.0), 11.0)
    chunk = outbox.cut()
    assert chunk is not None
    assert chunk.shards[0].seen == SourceSeen(A, 2, 11.0, 3.0)


def test_a_report_that_waits_is_older_each_time_that_it_is_sent() -> None:
    outbox = Outbox()
    outbox.see(SourceSeen(A, 1, 10.0, 0.0, reported_at_s=12.0), 500.0)
    outbox.cut()
    outbox.renumber()
    (chunk,) = outbox.chunks
    sent = [chunk.as_sent(now_s)[0].seen for now_s in (500.0, 546.0)]
    assert sent == [SourceSeen(A, 1, 10.0, 0.0, reported_at_s=at_s) for at_s in (12.0, 58.0)]
