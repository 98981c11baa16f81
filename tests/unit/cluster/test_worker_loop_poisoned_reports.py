"""Reports with impossible values, as foreign code may make a node have them: each field of valid ones is changed.

What a node believes of them is handed to the owner's real machine, book and tables, none of which may fail on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.invariants import check_owner
from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.owner_machine import OwnerMachine
from iscp.delta.joblog.log_schema import history_table, job_rows, log_table
from iscp.model.job.iteration import exact_entry, exact_report
from iscp.model.job.job_row import JobState
from iscp.model.protocol.events import Elected, FromNode, RecordCheckpoint, Recorded, Tick
from iscp.model.protocol.messages import (
    Checkpoint,
    DispatchTableResponse,
    NodeMessage,
    NodeShard,
    NodeShardState,
    ShardCheckpoint,
    SourceSeen,
    Sync,
    exact_seen,
)
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import NodeRecord, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.server.node.node_messages import decode_node, encode_node
from iscp.wire.v1 import node_pb2 as pb
from tests.fakes.loopback import TIMES, entry, job, report

A = ShardId("a")
SPEC = JobSpec(ConsumerSpec("replica", "/copy", key=("id",))).to_json()
ROW = job("a", spec=SPEC)._replace(watermark=Watermark(1, 1.0), seq=1, status_json='{"to":1}')
OTHER = job("a", name="other", spec=SPEC)
NODE = NodeRecord("n1", 1, "x:1")

REPORTED = ShardCheckpoint(
    A, (report(ROW, 2, JobState.ERROR, "full"),), (entry(ROW, 2, "n1", "full"),), SourceSeen(A, 3, 4.0, 1.0)
)
VALID = Checkpoint(1, 1, 1, (REPORTED,))
SYNCED: list[NodeMessage] = [
    Sync(1, 1, "1", 1, 0, 1, 0, (NodeShard(A, TableEpoch(1, 1), NodeShardState.RUNNING),)),
    DispatchTableResponse(1, 1, TableEpoch(1, 1), A, NodeShardState.RUNNING),
]
V = TypeVar("V")

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


class OwnersSide:
    """The owner of a cluster with one other node, which runs A: its machine, its book, and what it writes."""

    def __init__(self) -> None:
        self.book = JobBook([ROW, OTHER])
        self.machine = OwnerMachine("n0", "1", TIMES)
        self.machine.step(Elected(1, 101, (NODE,), {A: (ROW, OTHER)}), 1.0)
        self.now_s = 1.0
        for said in SYNCED:
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


def parts_of(shard: pb.ShardCheckpoint) -> list[Any]:
    return [*shard.reports, *shard.history, shard.seen]


def poisoned() -> list[ShardCheckpoint]:
    """All that come of changing one field of a report, of an entry of the history, or of what was seen of a source."""
    found = []
    valid = encode_node(VALID)
    for place, part in enumerate(parts_of(pb.NodeMessage.FromString(valid).checkpoint.shards[0])):
        for path in leaves(part):
            for value in values(part, path):
                wire = pb.NodeMessage.FromString(valid)
                change(parts_of(wire.checkpoint.shards[0])[place], path, value)
                found.append(wire)
    return [shard for wire in found for shard in readable(wire)]


def readable(wire: pb.NodeMessage) -> Sequence[ShardCheckpoint]:
    """A number that is none of an enum has no value that a node could report."""
    try:
        message = decode_node(wire.SerializeToString())
    except ValueError:
        return ()
    assert isinstance(message, Checkpoint)
    return message.shards


def believed(check: Any, items: Sequence[V]) -> tuple[V, ...]:
    found = []
    for item in items:
        try:
            found.append(check(item))
        except ValueError:
            continue
    return tuple(found)


POISONED = poisoned()


def test_there_are_many_of_them() -> None:
    assert len(POISONED) > 250


@given(st.lists(st.sampled_from(POISONED), max_size=6))
def test_whatever_a_node_comes_to_know_the_owner_records_what_is_believed_and_what_follows(
    poison: list[ShardCheckpoint],
) -> None:
    owner = OwnersSide()
    for number, each in enumerate(poison, start=1):
        seen = believed(exact_seen, [each.seen] if each.seen else [])
        shard = ShardCheckpoint(
            A,
            believed(exact_report, each.reports),
            believed(exact_entry, each.history),
            seen[0] if seen else None,
        )
        owner.hear(Checkpoint(1, 1, number, (shard,)))
    owner.hear(Checkpoint(1, 1, len(poison) + 1, (ShardCheckpoint(A, (), (entry(ROW, 9),)),)))
    assert owner.machine.term is not None
    assert owner.machine.term.peers["n1"].recorded == len(poison) + 1
