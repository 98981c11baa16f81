"""The part of a request that the audit has: what it names, without what may be secret, and bounded whatever was
sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any

from google.protobuf.message import Message

from iscp.adapters.grpc.access.request_accounts import NAMED_MAX, NamedThing, named_count, named_things
from iscp.core.access.access_token import id_within, without_secrets
from iscp.core.values.ids import DEFAULT_ACCOUNT
from iscp.core.values.untrusted_values import printable
from iscp.wire.v1 import admin_pb2

THINGS_MAX = 20
"""Things that the audit names of one call in one account; of more it keeps their number."""

ACCOUNTS_MAX = 20
"""Accounts that have an entry each of one call; those beyond share one, which is of no account and says how many."""

TEXT_CHARS_MAX = 500
"""Characters that the audit keeps of a name, a note or a request's id; of a longer one its middle is left out."""

WHAT_CHARS_MAX = 8_000
"""Characters of JSON after which the audit names no further thing of a call."""

# Fields that the audit may have besides tables and jobs: never a spec, which may have secrets.
_AUDITED = (
    "verb",
    "node_id",
    "range_id",
    "merge",
    "repair",
    "dry_run",
    "interrupt",
    "token_id",
    "role",
    "ttl_s",
    "note",
)

Shown = dict[str, Any]


@dataclass(slots=True)
class _Things:
    """The first things that an entry names, and how many there are."""

    first: list[Shown] = field(default_factory=list)
    count: int = 0
    accounts: set[str] = field(default_factory=set)

    def add(self, thing: NamedThing, account: str = "") -> None:
        """Add a thing. `account` is shown with it where the entry belongs to another one."""
        self.count += 1
        if account:
            self.accounts.add(account)
        if len(self.first) < THINGS_MAX:
            self.first.append(_shown(thing) | ({"account": account} if account else {}))

    def shown(self, request: Message, **more: object) -> tuple[str, str]:
        shown: Shown = {"things": _fitting(self.first)}
        if self.count > len(shown["things"]):
            shown["count"] = self.count
        request_id = getattr(request, "request_id", "") or (self.first[0] if self.first else {}).get("request_id", "")
        return json.dumps(shown | more, ensure_ascii=False), audited_text(request_id)


def audited_of_caller(request: Message, own: str) -> tuple[str, str]:
    """Return what a request names, as JSON, and the id of its first request, for the account `own`, whichever it names.

    A request of many things takes no longer.
    """
    things = _Things()
    for thing in islice(named_things(request), THINGS_MAX):
        things.add(thing, audited_text(thing.account) if thing.account not in ("", own) else "")
    if not things.count:
        things.first = [_alone(request)]
    things.count = max(things.count, named_count(request))
    return things.shown(request)


def audited_by_account(request: Message, own: str) -> Mapping[str, tuple[str, str]]:
    """Return the same as audited_of_caller by account (empty: all, and those beyond ACCOUNTS_MAX).

    `own`: the account that is meant where none is named, but for jobs.
    """
    found: dict[str, _Things] = {}
    others = _Things()
    for thing in islice(named_things(request), NAMED_MAX):
        account = audited_text(
            thing.account or (DEFAULT_ACCOUNT if isinstance(thing.message, admin_pb2.JobName) else own)
        )
        if account in found or len(found) < ACCOUNTS_MAX:
            found.setdefault(account, _Things()).add(thing)
        else:
            others.add(thing, account)
    if not found:
        return {"": _Things([_alone(request)]).shown(request)}
    entries = {account: things.shown(request) for account, things in found.items()}
    return entries | ({"": others.shown(request, accounts=len(others.accounts))} if others.count else {})


def audited_text(text: str) -> str:
    """A text as the audit keeps it: of what has the form of a token its id alone, and bounded."""
    return printable(without_secrets(text), TEXT_CHARS_MAX)


def audited_uri(uri: str) -> str:
    """Return the URI without the user and password in it, and without what follows `?` or `#`; where it may be either,
    nothing but its scheme.
    """
    scheme, slashes, rest = uri.partition("//")
    if slashes and "@" in rest:
        user, _, place = rest.rpartition("@")
        uri = f"{scheme}//…" if "?" in user or "#" in user else f"{scheme}//…@{place}"
    end = min((at for mark in "?#" if (at := uri.find(mark)) >= 0), default=-1)
    return audited_text(uri if end < 0 else f"{uri[: end + 1]}…")


def _shown(thing: NamedThing) -> Shown:
    shown = _table(thing.message, "table")
    if name := getattr(thing.message, "name", ""):
        shown["job"] = audited_text(name)
    if thing.around is not thing.message:
        shown |= _table(thing.around, "to_table") | _audited_fields(thing.around)
        if request_id := getattr(thing.around, "request_id", ""):
            shown["request_id"] = audited_text(request_id)
    return shown | _audited_fields(thing.message)


def _alone(request: Message) -> Shown:
    """Return what is shown of a request that names nobody's account."""
    return _audited_fields(request) | _table(request, "table")


def _table(message: Message, name: str) -> Shown:
    table = getattr(message, "table", "")
    return {name: audited_uri(table)} if table else {}


def _audited_fields(message: Message) -> Shown:
    """Return the audited fields of a message that are set."""
    shown_fields: Shown = {}
    for each, value in message.ListFields():
        if each.name not in _AUDITED:
            continue
        if each.name == "token_id":
            shown_fields |= {each.name: token_id} if (token_id := id_within(value)) else {}
        elif isinstance(value, str):
            shown_fields[each.name] = audited_text(value)
        elif each.enum_type and value in each.enum_type.values_by_number:
            shown_fields[each.name] = each.enum_type.values_by_number[value].name
        else:  # of a verb that a newer client knows, its number; JSON knows no infinity
            shown_fields[each.name] = value if isfinite(value) else str(value)
    return shown_fields


def _fitting(things: list[Shown]) -> list[Shown]:
    """Return the first of them, and as many more as there is room for."""
    fitting: list[Shown] = []
    room = WHAT_CHARS_MAX
    for thing in things:
        room -= len(json.dumps(thing, ensure_ascii=False))
        if fitting and room < 0:
            break
        fitting.append(thing)
    return fitting
