"""Whose accounts a request names, and what else of it the audit may keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from iscp.core.ids import DEFAULT_ACCOUNT
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, operator_pb2

METHODS: Mapping[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for module in (access_pb2, admin_pb2, builds_pb2, operator_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

THINGS_MAX = 20
"""Things that the audit names of one call in one account; of more it keeps their number."""

# What the audit may keep of a request, besides tables and jobs: never a spec, which may hold secrets.
_KEPT = ("verb", "node_id", "range_id", "merge", "repair", "dry_run", "interrupt", "token_id", "role", "ttl_s", "note")
_USER_IN_URI = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class NamedThing:
    """A message of a request that says whose it is, and the one around it."""

    said: Message
    around: Message

    @property
    def account(self) -> str:
        return str(self.said.account)  # type: ignore[attr-defined]

    @property
    def table(self) -> str:
        return str(getattr(self.said, "table", ""))


def named_things(request: Message) -> Iterator[NamedThing]:
    """All of a request, also where they are not set: then it is the caller's own account that is meant."""
    yield from _within(request, request)


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
    """Name the caller's account wherever the request names none; whether it did."""
    filled = False
    for thing in named_things(request):
        if not thing.account:
            thing.said.account = account  # type: ignore[attr-defined]
            filled = True
    return filled


def concerns_everybody(method: str, request: Message) -> bool:
    """Whether a call that may concern one account is meant for all of them."""
    match method.rpartition("/")[2]:
        case "GetLogs":
            return bool(request.node_id)  # type: ignore[attr-defined]
        case "AbortBuild":
            return not request.job.name  # type: ignore[attr-defined]
    return False


def audited_things(request: Message, own: str) -> dict[str, tuple[str, str]]:
    """By account (empty: all): what the request names, as JSON, and the id of its first request.

    `own`: the account that is meant where none is named, but for jobs.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for thing in named_things(request):
        account = thing.account or (DEFAULT_ACCOUNT if isinstance(thing.said, admin_pb2.JobName) else own)
        found.setdefault(account, []).append(_shown(thing))
    if not found:
        found[""] = [_kept(request) | _table(request, "table")]
    return {account: (_as_json(things), _request_id(things, request)) for account, things in found.items()}


def _shown(thing: NamedThing) -> dict[str, Any]:
    shown = _table(thing.said, "table")
    if name := getattr(thing.said, "name", ""):
        shown["job"] = name
    if thing.around is not thing.said:
        shown |= _table(thing.around, "to_table") | _kept(thing.around)
        if request_id := getattr(thing.around, "request_id", ""):
            shown["request_id"] = request_id
    return shown | _kept(thing.said)


def _table(message: Message, name: str) -> dict[str, Any]:
    table = getattr(message, "table", "")
    return {name: _USER_IN_URI.sub("//…@", table)} if table else {}


def _kept(message: Message) -> dict[str, Any]:
    """Those that are set."""
    kept: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name in _KEPT:
            kept[field.name] = field.enum_type.values_by_number[value].name if field.enum_type else value
    return kept


def _as_json(things: list[dict[str, Any]]) -> str:
    said: dict[str, Any] = {"things": things[:THINGS_MAX]}
    if len(things) > THINGS_MAX:
        said["count"] = len(things)
    return json.dumps(said, ensure_ascii=False)


def _request_id(things: list[dict[str, Any]], request: Message) -> str:
    return str(getattr(request, "request_id", "") or things[0].get("request_id", ""))
