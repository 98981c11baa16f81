"""Messages between nodes, in the real queues, frames and codec; each frame may be lost, doubled or late.

Stands for the streams of `iscp/server/node`, which may break and be opened again at any moment: so frames come
in any order. A way is cut in one direction or both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from iscp.cluster.membership.assignments import Holder
from iscp.model.protocol.messages import Acknowledge, Alive, Checkpoint, NodeMessage, OwnerMessage
from iscp.model.values.ids import NodeRecord
from iscp.server.node.node_messages import decode_node, decode_owner, encode_node, encode_owner
from iscp.server.node.node_server import GATHER_S, QUEUE_MESSAGES_MAX, FrameReader, Unreadable, WaitingMessages
from iscp.wire.v1 import node_pb2 as pb
from tests.simulation.poison import GARBAGE
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

LATE_S = 6.0

Delivery = Callable[["Process"], None]
Hear = Callable[[str, pb.Frame], None]
M = TypeVar("M", OwnerMessage, NodeMessage)


class Streams:
    """What one process says to nodes, as their owner, and to owners, as a node."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._unreadable = Unreadable()
        self._to_nodes: dict[Holder, WaitingMessages[OwnerMessage]] = {}
        self._to_owners: dict[str, WaitingMessages[NodeMessage]] = {}

    def tell_node(self, record: NodeRecord, message: OwnerMessage) -> None:
        """To the one life of it that `record` is of."""
        life = Holder(record.node_id, record.epoch)
        waiting = self._to_nodes.setdefault(life, WaitingMessages(encode_owner, record.node_id))
        self._put(waiting, message, record.node_id, lambda process: process.streams.hear_owner)

    def tell_owner(self, owner_id: str, message: NodeMessage) -> None:
        waiting = self._to_owners.setdefault(owner_id, WaitingMessages(encode_node, owner_id))
        self._put(waiting, message, owner_id, lambda process: process.streams.hear_node)

    def hear_owner(self, _owner_id: str, frame: pb.Frame) -> None:
        for message in FrameReader(decode_owner, self._unreadable).take(frame):
            self._process.worker.heard(message)
        self._expect_all_readable()

    def hear_node(self, node_id: str, frame: pb.Frame) -> None:
        self._process.owner.heard(node_id, FrameReader(decode_node, self._unreadable).take(frame))
        self._expect_all_readable()

    def _expect_all_readable(self) -> None:
        unread = self._unreadable.count > 0 and not self._world.trouble_drawn.poison
        expect(not unread, "{} cannot read what another says", self._process.node_id)

    def _put(self, waiting: WaitingMessages[M], message: M, to: str, hear: Callable[[Process], Hear]) -> None:
        if not _is_said_without_reason(message):
            self._world.wire.sent += 1
        waiting.messages_max = self._world.trouble.outgoing_max or QUEUE_MESSAGES_MAX
        begins = not len(waiting)
        waiting.put(message)
        if begins:
            self._process.after(GATHER_S, lambda: self._send(waiting, to, hear))

    def _send(self, waiting: WaitingMessages[M], to: str, hear: Callable[[Process], Hear]) -> None:
        source = self._process.node_id
        for frame in waiting.frames_of(waiting.take()):
            if self._world.happens(self._world.trouble.poison):
                frame.messages.insert(0, self._world.aside.choice(GARBAGE))
            self._world.wire.send(source, to, partial(_read, frame.SerializeToString(), source, hear))


def _read(raw: bytes, source: str, hear: Callable[[Process], Hear], process: Process) -> None:
    hear(process)(source, pb.Frame.FromString(raw))


def _is_said_without_reason(message: OwnerMessage | NodeMessage) -> bool:
    """That it is there, and that a source has not moved, a node says also when nothing happens."""
    if isinstance(message, Checkpoint):
        return not any(each.reports or each.history for each in message.shards)
    return isinstance(message, (Alive, Acknowledge))


class Wire:
    """`cuts` counts for each direction the faults that cut it. A node reaches itself whatever the network does.

    `sent`: messages that were to be sent, but for those that are said without a reason.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.cuts: Counter[tuple[str, str]] = Counter()
        self.sent = 0

    def send(self, source: str, target: str, delivery: Delivery) -> None:
        """To whatever process has the target's address when it arrives."""
        world, random = self._world, self._world.random
        if source == target:
            world.agenda.after(0.0, lambda: self._arrive(source, target, delivery))
            return
        if random.random() < world.trouble.drop:
            return
        world.agenda.after(self._lag_s(), lambda: self._arrive(source, target, delivery))
        if random.random() < world.trouble.double:
            world.agenda.after(random.random() * LATE_S, lambda: self._arrive(source, target, delivery))

    def _lag_s(self) -> float:
        random = self._world.random
        if random.random() < self._world.trouble.late:
            return random.random() * LATE_S
        return 0.001 + random.random() * 0.01

    def _arrive(self, source: str, target: str, delivery: Delivery) -> None:
        if source != target and self.cuts[source, target]:
            return
        process = self._world.processes.get(target)
        if process is not None:
            process.act(lambda: delivery(process))
