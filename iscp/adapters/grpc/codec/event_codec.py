"""Owners' events as messages of `Operator`, and back. A node's are checked as they come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from iscp.adapters.grpc.codec.convert import pages
from iscp.core.api.api_views import EventView
from iscp.core.values.untrusted_values import Check, exact_float, exact_int, exact_message
from iscp.wire.v1 import operator_pb2 as pb

_FIELDS: Mapping[str, Check] = {
    "owner_rev": exact_int,
    "number": exact_int,
    "at_s": exact_float,
    **dict.fromkeys(("what", "node_id", "shard", "why", "table"), exact_message),
}


def event_pages(events: Iterable[EventView]) -> Iterator[pb.EventPage]:
    for page in pages(pb.OwnerEvent(**asdict(event)) for event in events):
        yield pb.EventPage(events=page)


def event_from_wire(message: pb.OwnerEvent) -> EventView:
    """Raises ValueError for one that cannot be."""
    return EventView(**{name: check(getattr(message, name), name) for name, check in _FIELDS.items()})
