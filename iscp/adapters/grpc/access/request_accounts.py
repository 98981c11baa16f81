"""Whose accounts a request names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from iscp.core.access.service_table import RULES
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, feeds_pb2, operator_pb2, search_pb2

METHODS: Mapping[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for module in (access_pb2, admin_pb2, builds_pb2, feeds_pb2, operator_pb2, search_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""The methods of all services for users, by gRPC's full names of them."""

NAMED_MAX = 20_000
"""Jobs that a request may name where callers are authenticated; one that names more is refused before it is read
further.
"""


@dataclass(frozen=True, slots=True)
class NamedThing:
    """A message of a request that says whose it is, and the one around it."""

    message: Message
    around: Message

    @property
    def account(self) -> str:
        return str(self.message.account)  # type: ignore[attr-defined]

    @property
    def table(self) -> str:
        """Return the table, or the place of an index, that it is about; empty where it names none."""
        return str(getattr(self.message, "table", "") or getattr(self.message, "uri", ""))


def named_things(request: Message) -> Iterator[NamedThing]:
    """Yield all things of a request, also without an account: then the caller's own account is meant."""
    yield from _within(request, request)


def named_count(request: Message) -> int:
    """Return how many messages are in lists of the request, each of which names something, without reading them."""
    return sum(len(value) for field, value in request.ListFields() if field.is_repeated and field.message_type)


def _within(message: Message, around: Message) -> Iterator[NamedThing]:
    if "account" in message.DESCRIPTOR.fields_by_name:
        yield NamedThing(message, around)
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        value = getattr(message, field.name)
        for each in value if field.is_repeated else (value,):
            yield from _within(each, message)


def fill_accounts(request: Message, account: str) -> bool:
    """Name the caller's account wherever the request names none; return whether it did."""
    filled = False
    for thing in named_things(request):
        if not thing.account:
            thing.message.account = account  # type: ignore[attr-defined]
            filled = True
    return filled


def concerns_everybody(method: str, request: Message) -> bool:
    """Return whether a call that may concern one account is meant for all of them."""
    if (rule := RULES.get(method)) is None:
        return False
    named, unnamed = rule.everybody_with, rule.everybody_without
    return bool(named and attrgetter(named)(request)) or bool(unnamed and not attrgetter(unnamed)(request))
