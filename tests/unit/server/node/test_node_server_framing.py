"""Frames are bounded and lossless; queues are bounded and drop only what is outdated."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import (
    Acknowledge,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
    OwnerMessage,
    Sync,
)
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.server.node import node_server
from iscp.server.node.node_messages import decode_node, decode_owner, encode_node, encode_owner
from iscp.server.node.node_server import FRAME_BYTES_MAX, FrameReader, Outgoing, Unreadable, cut
from iscp.wire.v1 import node_pb2 as pb

ENDED = threading.Event()
ENDED.set()


def dispatch(table: str, counter: int = 1, spec: str = "{}") -> DispatchTable:
    row = JobRow(JobKey("default", table, "j"), "1", spec, table, table)
    return DispatchTable(1, 1, TableEpoch(1, counter), ShardId(table), is_delete=False, jobs=(row,))


def reader() -> FrameReader[bytes]:  # type: ignore[type-var]
    return FrameReader(lambda raw: raw, Unreadable())  # type: ignore[type-var]


def taken(outgoing: Outgoing[OwnerMessage]) -> list[OwnerMessage]:
    """What waits, as the other side reads it."""
    found: FrameReader[OwnerMessage] = FrameReader(decode_owner, Unreadable())
    ended = threading.Event()
    messages: list[OwnerMessage] = []
    for frame in outgoing.frames(ended):
        messages += found.take(frame)
        if not len(outgoing):
            ended.set()
    return messages


@settings(max_examples=30)
@given(st.lists(st.integers(1, 3 * FRAME_BYTES_MAX), max_size=8))
def test_frames_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    found, read = reader(), []
    for frame in cut(messages):
        assert frame.ByteSize() <= FRAME_BYTES_MAX
        read += found.take(pb.Frame.FromString(frame.SerializeToString()))
    assert read == messages


def test_small_messages_share_a_frame() -> None:
    assert [len(frame.messages) for frame in cut([b"x" * 100] * 5_000)] == [5_000]


def test_a_message_beyond_the_limit_is_lost_and_no_other() -> None:
    too_large = bytes(node_server.MESSAGE_PARTS_BYTES_MAX + 1)
    found = reader()
    assert [raw for frame in cut([b"a", too_large, b"b"]) for raw in found.take(frame)] == [b"a", b"b"]


def test_a_reader_holds_no_more_parts_than_the_limit() -> None:
    found, part = reader(), bytes(node_server.MESSAGE_PARTS_BYTES_MAX // 4)
    for _ in range(6):
        assert found.take(pb.Frame(part=part)) == []
        assert sum(map(len, found._parts)) <= node_server.MESSAGE_PARTS_BYTES_MAX
    assert found.take(pb.Frame(part=part, last=True)) == []
    assert found.take(pb.Frame(part=b"a")) == []
    assert found.take(pb.Frame(part=b"b", last=True)) == [b"ab"]


def test_what_cannot_be_read_spoils_no_other_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    found: FrameReader[OwnerMessage] = FrameReader(decode_owner, Unreadable())
    raw = encode_owner(dispatch("t"))
    for _ in range(3):
        assert found.take(pb.Frame(messages=[b"\xff\xff", raw])) == [dispatch("t")]
    assert [record.message for record in caplog.records] == ["coordinate.unreadable"]


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    outgoing = Outgoing(encode_owner, "n1")
    messages: list[OwnerMessage] = [Announce("o", 1, 2, "1"), *(dispatch(str(n)) for n in range(100))]
    for message in (*messages, Acknowledge(1, 1, 1, 1)):
        outgoing.put(message)
    assert taken(outgoing) == [*messages, Acknowledge(1, 1, 1, 1)]


def test_a_newer_word_takes_the_place_of_an_older_one_at_the_end() -> None:
    outgoing = Outgoing(encode_owner, "n1")
    for message in (dispatch("a"), dispatch("b"), dispatch("a", counter=2), dispatch("a", counter=3)):
        outgoing.put(message)
    assert taken(outgoing) == [dispatch("b"), dispatch("a", counter=3)]


def test_only_what_is_about_the_same_thing_takes_a_place() -> None:
    sync = Sync(1, 1, "1", number=1, part=0, parts=2, recorded=0, shards=())
    response = DispatchTableResponse(1, 1, TableEpoch(1, 1), ShardId("a"), NodeShardState.ADDING)
    messages: list[NodeMessage] = [
        sync,
        replace(sync, part=1),
        response,
        replace(response, shard=ShardId("a", 2)),
        Checkpoint(1, 1, 1, ()),
        Checkpoint(1, 1, 2, ()),
    ]
    outgoing = Outgoing(encode_node, "o")
    for message in (*messages, *messages):
        outgoing.put(message)
    assert len(outgoing) == len(messages)


def test_above_the_limit_the_oldest_is_dropped_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    outgoing = Outgoing(encode_owner, "n1")
    for number in range(node_server.QUEUE_MESSAGES_MAX + 7):
        outgoing.put(dispatch(str(number)))
    assert (len(outgoing), outgoing.dropped) == (node_server.QUEUE_MESSAGES_MAX, 7)
    assert [record.message for record in caplog.records] == ["coordinate.overflow"]
    left = taken(outgoing)
    assert (left[0], left[-1]) == (dispatch("7"), dispatch(str(node_server.QUEUE_MESSAGES_MAX + 6)))


def test_what_cannot_be_said_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    outgoing = Outgoing(encode_owner, "n1")
    for message in (dispatch("a"), dispatch("b", spec="\ud800"), dispatch("c", counter=2**70), dispatch("d")):
        outgoing.put(message)
    assert taken(outgoing) == [dispatch("a"), dispatch("d")]
    assert [record.message for record in caplog.records] == ["coordinate.unsayable"] * 2


def test_what_comes_together_travels_together() -> None:
    outgoing = Outgoing(encode_node, "o")

    class Meanwhile(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            for shard in ("a", "b", "c"):
                outgoing.put(DispatchTableResponse(1, 1, TableEpoch(1, 1), ShardId(shard), NodeShardState.RUNNING))
            return False

    outgoing.put(DispatchTableResponse(1, 1, TableEpoch(1, 1), ShardId("a"), NodeShardState.ADDING))
    frame = next(outgoing.frames(Meanwhile()))
    states = [message.state for message in FrameReader(decode_node, Unreadable()).take(frame)]  # type: ignore[union-attr]
    assert states == [NodeShardState.RUNNING] * 3, "that it was being added is not worth a message any more"


def test_who_waits_for_messages_is_woken_by_one_and_by_the_end() -> None:
    outgoing, ended = Outgoing(encode_owner, "n1"), threading.Event()
    read: list[pb.Frame] = []
    came = threading.Semaphore(0)

    def drain() -> None:
        for frame in outgoing.frames(ended):
            read.append(frame)
            came.release()

    waiting = threading.Thread(target=drain)
    waiting.start()
    outgoing.put(dispatch("a"))
    assert came.acquire(timeout=10)
    ended.set()
    outgoing.wake()
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(read) == 1
    outgoing.put(dispatch("b"))
    assert list(outgoing.frames(ENDED)) == []
