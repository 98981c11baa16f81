"""Well-formed messages with impossible values: each field of valid ones is changed, and the receiver carries on.

What the codec accepts is handed to the real machines, book, schedule and tables, none of which may fail on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.invariants import check_owner, check_worker
from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.worker_machine import WorkerMachine
from iscp.delta.joblog.log_schema import history_table, job_rows, log_table
from iscp.model.job.job_row import JobState, JobStatus, Reason, apply_report
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.events import (
    Elected,
    ElectionChecked,
    FromNode,
    FromOwner,
    RecordCheckpoint,
    Recorded,
    StartShard,
    Tick,
    UpdateShard,
)
from iscp.model.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShard,
    NodeShardState,
    OwnerMessage,
    ShardCheckpoint,
    SourceSeen,
    Sync,
)
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec, TriggerSpec, TriggerType
from iscp.model.values.ids import Leader, NodeRecord, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.schedule.schedule_events import ProbeAnswered
from iscp.schedule.schedule_machine import Schedule
from iscp.server.node.node_messages import Quarantine, decode_node, decode_owner, encode_node, encode_owner
from iscp.server.node.node_server import FrameReader, WaitingMessages, cut
from iscp.wire.v1 import node_pb2 as pb
from tests.fakes.loopback import TIMES, entry, job, report

A, B = ShardId("a"), ShardId("b")
SPEC = JobSpec(ConsumerSpec("replica", "/copy", key=("id",))).to_json()
ROW = job("a", spec=SPEC)._replace(watermark=Watermark(1, 1.0), seq=1, status_json='{"to":1}')
OTHER = job("a", name="other", spec=SPEC)
PERIODIC = JobSpec(ConsumerSpec("replica", "/copy"), TriggerSpec(TriggerType.PERIODIC, interval_s=5.0)).to_json()
FAILING = ROW._replace(
    spec_json=PERIODIC, state=JobState.ERROR, reason=Reason.RETRYING, status_json=JobStatus(error_code=9).to_json()
)
NODE = NodeRecord("n1", 1, "x:1")

REPORTED = ShardCheckpoint(
    A, (report(ROW, 2, JobState.ERROR, "full"),), (entry(ROW, 2, "n1", "full"),), SourceSeen(A, 3, 4.0, 1.0)
)
NODE_MESSAGES: list[NodeMessage] = [
    Sync(1, 1, "1", 1, 0, 1, 0, (NodeShard(A, TableEpoch(1, 1), NodeShardState.RUNNING),)),
    DispatchTableResponse(1, 1, TableEpoch(1, 1), A, NodeShardState.RUNNING),
    Checkpoint(1, 1, 1, (REPORTED,)),
    Alive(1, 1),
]
OWNER_MESSAGES: list[OwnerMessage] = [
    Announce("n0", 1, 101, "1"),
    DispatchTable(1, 1, TableEpoch(1, 1), A, False, (ROW, OTHER)),
    DispatchTable(1, 1, TableEpoch(1, 1), A, False, (FAILING, OTHER)),
    Acknowledge(1, 1, 1, 1),
]

Path = tuple[str, ...]
WHOLE_NUMBERS = (-(2**63), -1, 0, 1, 2, 127, 128, 2**31, 2**62 + 1, 2**63 - 1)
OF_TYPE: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_INT64: WHOLE_NUMBERS,
    FieldDescriptor.TYPE_INT32: (-(2**31), -1, 0, 1, 2, 127, 128, 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 1, 2, 127, 128, 2**32 - 1),
    FieldDescriptor.TYPE_DOUBLE: (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e18, 1e300),
    FieldDescriptor.TYPE_ENUM: (-1, 0, 1, 99, 2**31 - 1),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_STRING: (
        "",
        "\x00",
        "\x1b[2J",
        "x" * 100_000,
        "{",
        '{"a":[',
        "NaN",
        "a/b",
        "\u202e",
        "[1]",
        '{"trigger":5}',
        '{"error_code":"x"}',
        "[" * 100_000,
    ),
}


def leaves(message: Any, path: Path = ()) -> Iterator[Path]:
    """Every field that is there or could be, in the messages within too."""
    for of in message.DESCRIPTOR.fields:
        if of.type != FieldDescriptor.TYPE_MESSAGE:
            yield (*path, of.name)
        elif of.is_repeated:
            if getattr(message, of.name):
                yield from leaves(getattr(message, of.name)[0], (*path, of.name))
        elif message.HasField(of.name):
            yield from leaves(getattr(message, of.name), (*path, of.name))
            yield (*path, of.name)


def change(message: Any, path: Path, value: Any) -> None:
    """Set the field, or take the message away that stands there."""
    for name in path[:-1]:
        inner = getattr(message, name)
        message = inner[0] if message.DESCRIPTOR.fields_by_name[name].is_repeated else inner
    if message.DESCRIPTOR.fields_by_name[path[-1]].type == FieldDescriptor.TYPE_MESSAGE:
        message.ClearField(path[-1])
    else:
        setattr(message, path[-1], value)


def values(message: Any, path: Path) -> tuple[Any, ...]:
    for name in path[:-1]:
        inner = getattr(message, name)
        message = inner[0] if message.DESCRIPTOR.fields_by_name[name].is_repeated else inner
    return OF_TYPE.get(message.DESCRIPTOR.fields_by_name[path[-1]].type, (None,))


def changed(kind: type[Any], raw: bytes) -> list[bytes]:
    """All messages that come of changing one field of one."""
    found = []
    for path in leaves(kind.FromString(raw)):
        for value in values(kind.FromString(raw), path):
            message = kind.FromString(raw)
            change(message, path, value)
            found.append(message.SerializeToString())
    return found


POISONED_BY_NODES = [raw for said in NODE_MESSAGES for raw in changed(pb.NodeMessage, encode_node(said))]
POISONED_BY_OWNERS = [raw for said in OWNER_MESSAGES for raw in changed(pb.OwnerMessage, encode_owner(said))]
GARBAGE = [b"", b"\xff\xff\xff", b"\x7a\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" * 10_000]


def test_there_are_many_of_them() -> None:
    assert len(POISONED_BY_NODES) > 300
    assert len(POISONED_BY_OWNERS) > 200


class OwnersSide:
    """The owner of a cluster with one other node, which runs A: its machine, its book, and what it writes."""

    def __init__(self) -> None:
        self.book = JobBook([ROW, OTHER])
        self.machine = OwnerMachine("n0", "1", TIMES)
        self.machine.step(Elected(1, 101, (NODE,), {A: (ROW, OTHER)}), 1.0)
        self.now_s = 1.0
        for said in (NODE_MESSAGES[0], NODE_MESSAGES[1]):
            self.hear(said)

    def hear(self, said: NodeMessage) -> None:
        self.now_s += 0.001
        effects = self.machine.step(FromNode("n1", said), self.now_s)
        for each in effects:
            if isinstance(each, RecordCheckpoint):
                self.book.apply(each.reports)
                rows = self.book.due(100)
                assert len(job_rows(log_table(rows, [()] * len(rows)))) == len(rows)
                history_table(each.history)
                assert self.machine.step(Recorded(each.node_id, each.epoch, each.number), self.now_s)
        self.machine.step(Tick(), self.now_s)
        if self.machine.term is not None:
            check_owner(self.machine)


@given(st.lists(st.sampled_from(POISONED_BY_NODES + GARBAGE), max_size=6))
def test_whatever_a_node_says_the_owner_goes_on_and_hears_the_next_one(poison: list[bytes]) -> None:
    owner, reader = OwnersSide(), FrameReader(decode_node, Quarantine())
    good = encode_node(Alive(1, 1))
    frames = cut([each for raw in poison for each in (raw, good)])
    heard = [message for frame in frames for message in reader.take(frame)]
    assert sum(message == Alive(1, 1) for message in heard) >= len(poison)
    for message in heard:
        owner.hear(message)
    peer = owner.machine.term.peers["n1"] if owner.machine.term else None
    assert peer is not None
    number = peer.accepted + 1
    owner.hear(Checkpoint(1, 1, number, (ShardCheckpoint(A, (), (entry(ROW, 9),)),)))
    assert peer.recorded == number, "a report after it is recorded"


class NodesSide:
    """A node: its machine, and the schedule that obeys it."""

    def __init__(self) -> None:
        self.machine = WorkerMachine("n1", 1, "1", TIMES)
        self.schedule = Schedule("n1", ProbeConfig(), BackoffConfig(), lambda: 0.5)
        self.now_s = 1.0
        self.hear(OWNER_MESSAGES[0])
        self.machine.step(ElectionChecked(Leader("n0", 101)), self.now_s)
        self.hear(Acknowledge(1, 1, 1, 0))

    def hear(self, said: OwnerMessage) -> None:
        self.now_s += 0.001
        for effect in self.machine.step(FromOwner(said), self.now_s):
            if isinstance(effect, (StartShard, UpdateShard)):
                self.schedule.step(effect, self.now_s, 1_000.0)
                for row in effect.jobs:
                    answer = ProbeAnswered(effect.shard, row.table_uri, ProbeState(5, b"1", 900.0))
                    self.schedule.step(answer, self.now_s, 1_000.0)
        self.schedule.step(Tick(), self.now_s, 1_000.0)
        check_worker(self.machine)


@given(st.lists(st.sampled_from(POISONED_BY_OWNERS + GARBAGE), max_size=6))
def test_whatever_an_owner_says_the_node_goes_on_and_hears_the_next_one(poison: list[bytes]) -> None:
    node, reader = NodesSide(), FrameReader(decode_owner, Quarantine())
    good = encode_owner(DispatchTable(1, 1, TableEpoch(1, 2**61), B, False, (job("b", spec=SPEC),)))
    frames = cut([*poison, good])
    heard = [message for frame in frames for message in reader.take(frame)]
    assert heard
    for message in heard:
        node.hear(message)
    assert B in node.machine.shards


def test_one_report_that_cannot_be_is_left_out_with_a_word_and_its_neighbours_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beside = replace(REPORTED, shard=B)
    wire = pb.NodeMessage.FromString(encode_node(Checkpoint(1, 1, 1, (REPORTED, beside))))
    wire.checkpoint.shards[0].reports[0].watermark.at_s = float("nan")
    wire.checkpoint.shards[0].history[0].rows = -1
    quarantine = Quarantine()
    with caplog.at_level(logging.ERROR):
        message = decode_node(wire.SerializeToString(), quarantine)
    assert message == Checkpoint(1, 1, 1, (ShardCheckpoint(A, (), (), REPORTED.seen), beside))
    assert quarantine.count == 2
    told = [(each.message, each.__dict__["what"], each.__dict__["error"]) for each in caplog.records]
    assert [(event, what) for event, what, _ in told] == [("message.quarantined", w) for w in ("report", "history")]
    assert "watermark.at_s is nan" in told[0][2]
    assert "rows is -1" in told[1][2]


def test_one_job_that_cannot_be_is_left_out_of_a_dispatch_and_its_neighbours_run() -> None:
    wire = pb.OwnerMessage.FromString(encode_owner(OWNER_MESSAGES[1]))
    wire.dispatch.jobs[0].state = 99  # type: ignore[assignment]
    quarantine = Quarantine()
    assert decode_owner(wire.SerializeToString(), quarantine) == DispatchTable(
        1, 1, TableEpoch(1, 1), A, False, (OTHER,)
    )
    assert quarantine.count == 1


@pytest.mark.parametrize("text", ["\x00 and \x1b[2J", "x" * 1_000_000])
def test_a_message_of_another_node_is_fit_to_be_kept(text: str) -> None:
    wire = pb.NodeMessage.FromString(encode_node(NODE_MESSAGES[2]))
    wire.checkpoint.shards[0].reports[0].status.error_msg = text
    message = decode_node(wire.SerializeToString(), Quarantine())
    assert isinstance(message, Checkpoint)
    (told,) = message.shards[0].reports
    assert told.status is not None
    assert len(told.status.error_msg) < 5_000
    assert told.status.error_msg.isprintable()
    assert apply_report(ROW, told) is not None


def test_a_message_that_cannot_be_said_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    waiting: WaitingMessages[NodeMessage] = WaitingMessages(encode_node, "n0")
    bad: list[Any] = ["5", None, 2**70, 1.5, "\ud800", object()]
    for number, value in enumerate(bad):
        waiting.put(Checkpoint(1, 1, number, (replace(REPORTED, shard=ShardId("a", value)),)))
    waiting.put(Alive(1, 1))
    reader = FrameReader(decode_node, Quarantine())
    heard = [message for frame in waiting.frames_of(waiting.take()) for message in reader.take(frame)]
    assert heard[-1] == Alive(1, 1)
    assert any(record.message == "coordinate.unsayable" for record in caplog.records)
