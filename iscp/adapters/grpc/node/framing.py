"""Queues messages between owner and nodes, cuts them into frames, and puts frames together again.

Decides what is dropped: everything is repeated by those who sent it, so the newest message counts. Knows no streams.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from iscp.adapters.grpc.codec.quarantine import Quarantine
from iscp.coordination.protocol.messages import (
    Acknowledge,
    Alive,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    OwnerMessage,
    Sync,
)
from iscp.core.values.untrusted_values import named_error
from iscp.wire.v1 import node_pb2 as pb

log = logging.getLogger(__name__)
M = TypeVar("M", bound=OwnerMessage | NodeMessage)

FRAME_BYTES_MAX = 1024 * 1024
"""Bytes of a frame; a message that does not fit travels in parts."""

MESSAGE_PARTS_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of a message that travels in parts; a larger one is dropped, and logged."""

QUEUE_MESSAGES_MAX = 10_000
"""Messages that wait for one other node; beyond them the oldest are dropped, and sent again by the machines."""

GATHER_S = 0.002
"""How long messages are gathered for one frame: a frame for each costs both sides more than the message."""

_HEAD_BYTES = 8
"""More than protobuf spends on a field's number and length."""


def cut(encoded: Iterable[bytes]) -> Iterator[pb.Frame]:
    """Cut messages into frames, in order, as many as fit into each."""
    batch: list[bytes] = []
    batch_bytes = 0
    for raw in encoded:
        raw_bytes = len(raw) + _HEAD_BYTES
        if batch and batch_bytes + raw_bytes > FRAME_BYTES_MAX:
            yield pb.Frame(messages=batch)
            batch, batch_bytes = [], 0
        if raw_bytes > FRAME_BYTES_MAX:
            yield from _parts(raw)
        else:
            batch.append(raw)
            batch_bytes += raw_bytes
    if batch:
        yield pb.Frame(messages=batch)


def _parts(raw: bytes) -> Iterator[pb.Frame]:
    if len(raw) > MESSAGE_PARTS_BYTES_MAX:
        log.error("coordinate.too_large", extra={"bytes": len(raw)})
        return
    step = FRAME_BYTES_MAX - 2 * _HEAD_BYTES
    for start in range(0, len(raw), step):
        yield pb.Frame(part=raw[start : start + step], last=start + step >= len(raw))


class FrameReader(Generic[M]):
    """The messages of one stream's frames, in order; what cannot be read is left out."""

    def __init__(self, decode: Callable[[bytes, Quarantine], M], quarantine: Quarantine) -> None:
        self._decode = decode
        self._quarantine = quarantine
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._reported = False

    def take(self, frame: pb.Frame) -> list[M]:
        found = []
        for raw in self._whole(frame):
            try:
                found.append(self._decode(raw, self._quarantine))
            except Exception as error:  # noqa: BLE001  (whatever it is, those after it are to be read)
                self._quarantine.count += 1
                self._report(named_error(error))
        return found

    def _whole(self, frame: pb.Frame) -> Iterable[bytes]:
        if not frame.part:
            return frame.messages
        self._parts_bytes += len(frame.part)
        if self._parts_bytes > MESSAGE_PARTS_BYTES_MAX:
            self._parts.clear()
        else:
            self._parts.append(frame.part)
        if not frame.last:
            return ()
        parts, self._parts = self._parts, []
        parts_bytes, self._parts_bytes = self._parts_bytes, 0
        if parts_bytes > MESSAGE_PARTS_BYTES_MAX:
            self._report(f"a message has {parts_bytes} bytes")
            return ()
        return (b"".join(parts),)

    def _report(self, reason: str) -> None:
        """Log once a stream, as a newer node may send what is unknown here again and again."""
        if not self._reported:
            self._reported = True
            log.warning("coordinate.unreadable", extra={"reason": reason})


def about(message: OwnerMessage | NodeMessage) -> Hashable:
    """Return the subject of a message: the newer of two about the same subject has all that is still true."""
    match message:
        case DispatchTable() | DispatchTableResponse():
            return message.shard
        case Checkpoint():
            return message.number
        case Sync():
            return "Sync", message.part
        case Announce() | Acknowledge() | Alive():
            return type(message).__name__


class WaitingMessages(Generic[M]):
    """The messages that wait for one other node, `to`, and are cut into frames when they are taken; for one thread at a
    time.

    A newer message takes an older one's place, at the end. Above `messages_max` the oldest are dropped, and counted in
    `dropped`.
    """

    def __init__(self, encode: Callable[[M], bytes], to: str, messages_max: int = QUEUE_MESSAGES_MAX) -> None:
        self._encode = encode
        self._to = to
        self._waiting: OrderedDict[Hashable, M] = OrderedDict()
        self._overflowing = False
        self.messages_max = messages_max
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: M) -> None:
        subject = about(message)
        self._waiting.pop(subject, None)
        self._waiting[subject] = message
        if len(self._waiting) > self.messages_max:
            self._waiting.popitem(last=False)
            self.dropped += 1
            if not self._overflowing:
                self._overflowing = True
                log.warning("coordinate.overflow", extra={"to": self._to, "messages": self.messages_max})

    def take(self) -> list[M]:
        """Take all messages that wait."""
        batch = list(self._waiting.values())
        self._waiting.clear()
        self._overflowing = False
        return batch

    def frames_of(self, batch: list[M]) -> Iterator[pb.Frame]:
        return cut(self._encode_batch(batch))

    def _encode_batch(self, batch: list[M]) -> Iterator[bytes]:
        for message in batch:
            try:
                yield self._encode(message)
            except Exception:  # a value that the wire has no form for; the others must not suffer
                log.exception("coordinate.unsayable", extra={"to": self._to})


class Outgoing(Generic[M]):
    """WaitingMessages for one stream after another; safe to use from several threads."""

    def __init__(self, encode: Callable[[M], bytes], to: str) -> None:
        self._waiting = WaitingMessages(encode, to)
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        return self._waiting.dropped

    def put(self, message: M) -> None:
        """Never waits."""
        with self._changed:
            self._waiting.put(message)
            self._changed.notify()

    def frames(self, ended: threading.Event) -> Iterator[pb.Frame]:
        """Yield all that waits at a time, cut into frames, until `ended`; whoever sets that calls `wake`."""
        while batch := self._take(ended):
            yield from self._waiting.frames_of(batch)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _take(self, ended: threading.Event) -> list[M]:
        with self._changed:
            while not (self._waiting or ended.is_set()):
                self._changed.wait()
        if ended.wait(GATHER_S):  # a moment more, so that what comes in a burst goes out in few frames
            return []
        with self._changed:
            return self._waiting.take()
