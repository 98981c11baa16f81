"""Messages between owner and nodes survive encoding and decoding field by field; unknown ones are refused."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import SECONDS_MOST, HistoryEntry, Usage, UsagePart
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason
from iscp.model.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    FurtherSeen,
    NodeMessage,
    NodeShard,
    OwnerMessage,
    ShardCheckpoint,
    SourceSeen,
    Sync,
    VersionAge,
)
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.progress import UNKNOWN, SnapshotSize
from iscp.model.values.untrusted_values import AT_S_MOST, COUNT_MOST, printable
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.server.node import node_messages as wire
from iscp.server.node.node_server import FrameReader, Unreadable, WaitingMessages, cut
from iscp.wire.v1 import node_pb2 as pb

# All that can be of a job: what cannot is not sent (tests/unit/cluster/test_worker_loop_poisoned_reports.py).
OF_TYPE = {
    "int": st.integers(0, COUNT_MOST),
    "float": st.floats(0.0, AT_S_MOST),
    "str": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(printable),
    "bool": st.booleans(),
}


def every(kind: type, **given_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """All fields of a dataclass or named tuple vary, those with defaults too."""
    if is_dataclass(kind):
        types = {each.name: str(each.type) for each in fields(kind)}
    else:
        types = {name: getattr(hint, "__name__", str(hint)) for name, hint in get_type_hints(kind).items()}
    chosen = {name: given_fields.get(name, OF_TYPE.get(of, ...)) for name, of in types.items()}
    return st.builds(kind, **chosen)


CODES = st.integers(0, 2**31 - 1)
RANGES = st.integers(1, 127)
TERMS = st.integers(9, COUNT_MOST)
SHARDS, EPOCHS, KEYS, MARKS = (
    every(ShardId, range_id=RANGES),
    every(TableEpoch, owner_rev=st.integers(0, 9)),
    every(JobKey, range_id=RANGES),
    every(Watermark, version=st.integers(-1, COUNT_MOST), step=st.integers(0, 9), steps=st.integers(9, 99)),
)
SOURCES = st.dictionaries(OF_TYPE["str"], every(SourceMark, watermark=MARKS), max_size=3)
PARTS = st.dictionaries(OF_TYPE["str"], OF_TYPE["float"], max_size=3)
USAGES = st.none() | every(Usage, **{f"{part}_s": st.floats(0.0, SECONDS_MOST) for part in UsagePart})
COUNTS = st.integers(UNKNOWN, COUNT_MOST)
BUILDS = st.none() | every(
    BuildRequest, depth=st.integers(0, 16), size=st.builds(SnapshotSize, COUNTS, COUNTS, pieces=COUNTS)
)
ROWS = every(JobRow, key=KEYS, watermark=MARKS, drop_at_s=st.none() | OF_TYPE["float"])
REPORTS = every(
    JobReport,
    key=KEYS,
    watermark=MARKS,
    state=st.none() | st.sampled_from(JobState),
    reason=st.none() | st.sampled_from(Reason),
    status=st.none() | every(JobStatus, error_code=CODES, sources=SOURCES, build=BUILDS),
)
AGES = st.lists(
    every(VersionAge, version=st.integers(-1, COUNT_MOST)), max_size=3, unique_by=attrgetter("version")
).map(lambda ages: tuple(sorted(ages, key=attrgetter("version"))))
CHECKPOINTS = every(
    ShardCheckpoint,
    shard=SHARDS,
    reports=st.lists(REPORTS, max_size=3).map(tuple),
    history=st.lists(every(HistoryEntry, error_code=CODES, parts_s=PARTS, usage=USAGES), max_size=3).map(tuple),
    seen=st.none()
    | every(
        SourceSeen, shard=SHARDS, further=st.lists(every(FurtherSeen, ages=AGES), max_size=2).map(tuple), ages=AGES
    ),
)
HELD = every(NodeShard, shard=SHARDS, table_epoch=EPOCHS)

OWNER_MESSAGES = {
    Announce: every(Announce),
    DispatchTable: every(
        DispatchTable, owner_rev=TERMS, shard=SHARDS, table_epoch=EPOCHS, jobs=st.lists(ROWS, max_size=3).map(tuple)
    ),
    Acknowledge: every(Acknowledge),
}
NODE_MESSAGES = {
    Sync: every(
        Sync,
        owner_rev=TERMS,
        part=st.integers(0, 4),
        parts=st.integers(5, 9),
        shards=st.lists(HELD, max_size=3).map(tuple),
    ),
    DispatchTableResponse: every(DispatchTableResponse, owner_rev=TERMS, shard=SHARDS, table_epoch=EPOCHS),
    Alive: every(Alive),
    Checkpoint: every(Checkpoint, shards=st.lists(CHECKPOINTS, max_size=3).map(tuple)),
}


@pytest.mark.parametrize("kind", OWNER_MESSAGES)
def test_what_an_owner_says_comes_back_the_same(kind: type) -> None:
    @given(OWNER_MESSAGES[kind])
    def holds(message: OwnerMessage) -> None:
        assert wire.decode_owner(wire.encode_owner(message)) == message

    holds()


@pytest.mark.parametrize("kind", NODE_MESSAGES)
def test_what_a_node_says_comes_back_the_same(kind: type) -> None:
    @given(NODE_MESSAGES[kind])
    def holds(message: NodeMessage) -> None:
        assert wire.decode_node(wire.encode_node(message)) == message

    holds()


def test_every_kind_of_message_is_tried() -> None:
    assert set(OWNER_MESSAGES) == set(OwnerMessage.__args__)
    assert set(NODE_MESSAGES) == set(NodeMessage.__args__)


@pytest.mark.parametrize("decode", [wire.decode_owner, wire.decode_node])
@pytest.mark.parametrize("raw", [b"", b"\xff\xff\xff", b"\x7a\x00"], ids=["nothing", "garbage", "of a newer node"])
def test_what_is_no_known_message_is_refused(decode: Any, raw: bytes) -> None:
    with pytest.raises(ValueError, match="message"):
        decode(raw)


def test_states_of_a_newer_node_are_refused_not_guessed() -> None:
    response = pb.DispatchTableResponse.FromString(b"\x38\x63")  # state = 99
    response.table_id, response.range_id = "t", 1
    with pytest.raises(ValueError, match="cannot be read"):
        wire.decode_node(pb.NodeMessage(response=response).SerializeToString())


def test_a_dispatch_is_small() -> None:
    row = JobRow(JobKey("default", "t" * 36, "copy"), "018bcfe56800", "{}", "/t", "file:///t", seq=3)
    message = DispatchTable(3, 7, TableEpoch(3, 100), ShardId("t" * 36), is_delete=False, jobs=(row,))
    assert len(wire.encode_owner(message)) < 200


@given(st.lists(st.one_of(st.binary(max_size=60), st.integers(0, 40).map(lambda size: b"\x0a" * size)), max_size=6))
def test_whatever_bytes_come_the_messages_between_them_are_heard(garbage: list[bytes]) -> None:
    unreadable, alive = Unreadable(), wire.encode_node(Alive(1, 1))
    reader = FrameReader(wire.decode_node, unreadable)
    frames = cut([each for raw in garbage for each in (raw, alive)])
    heard = [message for frame in frames for message in reader.take(frame)]
    assert sum(message == Alive(1, 1) for message in heard) >= len(garbage)
    assert unreadable.count + len(heard) == 2 * len(garbage)


def test_a_message_that_cannot_be_said_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    waiting: WaitingMessages[NodeMessage] = WaitingMessages(wire.encode_node, "n0")
    bad: list[Any] = ["5", None, 2**70, 1.5, "\ud800", object()]
    for number, value in enumerate(bad):
        waiting.put(Checkpoint(1, 1, number, (ShardCheckpoint(ShardId("a", value)),)))
    waiting.put(Alive(1, 1))
    reader = FrameReader(wire.decode_node, Unreadable())
    heard = [message for frame in waiting.frames_of(waiting.take()) for message in reader.take(frame)]
    assert heard[-1] == Alive(1, 1)
    assert any(record.message == "coordinate.unsayable" for record in caplog.records)
