"""The facts about a call that its decision and its audit need: whose accounts the request names, what of the request
may be written down, and the evidence of who calls.

`CallAudit` writes the audit's entries for a call that changes something, once the call has ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from operator import attrgetter
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from iscp.client.channel.grpc_calls import CALLER_KEY, DETAIL_KEY, FORWARDED_KEY
from iscp.model.access.authorization import AuditEntry, id_within, without_secrets
from iscp.model.access.service_table import RULES, Credentials, Principal
from iscp.model.values.errors import ErrorCode, NotAuthenticated
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.untrusted_values import exact_name, printable
from iscp.ports.admin import AuditSink
from iscp.system.tls.renewing_channel import names_shown
from iscp.wire.v1 import access_pb2, admin_pb2, builds_pb2, feeds_pb2, operator_pb2, search_pb2

log = logging.getLogger(__name__)

# --- the accounts that a request names --------------------------------------------------------------------------------

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
    return sum(len(value) for part, value in request.ListFields() if part.is_repeated and part.message_type)


def _within(message: Message, around: Message) -> Iterator[NamedThing]:
    if "account" in message.DESCRIPTOR.fields_by_name:
        yield NamedThing(message, around)
    for part in message.DESCRIPTOR.fields:
        if part.message_type is None or part.message_type.GetOptions().map_entry:
            continue
        value = getattr(message, part.name)
        for each in value if part.is_repeated else (value,):
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


# --- the part of a request that the audit has -------------------------------------------------------------------------
# The audit has what a request names, without what may be secret, and bounded whatever was sent.

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


# --- the evidence of who makes a call ---------------------------------------------------------------------------------
# The evidence is a token, a certificate, and a node's statement about a caller whose call that node passes on. Only a
# node is believed such a statement, and only where its certificate shows that it is a node: others' statements are not
# read.

TOKEN_KEY = "authorization"
_BEARER = "bearer "

NAMES_MAX = 32
"""Names of a certificate that a gateway passes on; a caller whose certificate has more is refused there."""


UNSAID = "1"
"""The value of FORWARDED_KEY from a node with no statement about the caller: of an earlier version, or without
authentication.
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """`peer`: where the call came from first. `passed_on`: by a node, at which it was decided and audited already."""

    credentials: Credentials
    peer: str
    passed_on: bool = False


def evidence_of(context: grpc.ServicerContext, node_name: str) -> Evidence:
    """`node_name`: what nodes are known by; empty: by nothing. Raises NotAuthenticated where it makes no sense."""
    metadata = tuple(context.invocation_metadata())
    shown, token = names_shown(context), _token_of(metadata)
    names = shown.dns | shown.others
    if not node_name or node_name.lower() not in (name.lower() for name in shown.dns):
        return Evidence(Credentials(token, _but_of_nodes(names, node_name)), context.peer())
    if passed_on := [value for key, value in metadata if key == FORWARDED_KEY]:
        # Nodes of earlier versions pass on whatever else a client sends, CALLER_KEY too; but no call that has this key.
        if passed_on == [UNSAID]:
            return Evidence(Credentials(token), context.peer())
        names, peer = _read(passed_on)
        return Evidence(Credentials(token, names), peer, passed_on=True)
    if by_gateway := [value for key, value in metadata if key == CALLER_KEY]:
        names, peer = _read(by_gateway)
        # Whether somebody is a node its gateway does not know: it says the common name too.
        return Evidence(Credentials(token, _but_of_nodes(names, node_name)), peer)
    return Evidence(Credentials(token, names), context.peer())


def _but_of_nodes(names: Iterable[str], node_name: str) -> frozenset[str]:
    """Return the names without that of nodes, which are known by a DNS name; a common name makes nobody one."""
    return frozenset(name for name in names if name.lower() != node_name.lower() or not node_name)


def statement(names: Iterable[str], peer: str) -> str:
    """Return a node's statement about a caller whose call it passes on."""
    return json.dumps({"names": sorted(names), "peer": peer})


def _read(statements: list[str | bytes]) -> tuple[frozenset[str], str]:
    try:
        (text,) = statements
        found = json.loads(text)
        names = frozenset(exact_name(name, "a name") for name in found["names"])
        return names, exact_name(found["peer"], "peer")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAuthenticated("says nothing of whom it passes a call on", field="node", remedy="Retry") from error


def _token_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    found = [value for key, value in metadata if key == TOKEN_KEY]
    if not found:
        return ""
    text = found[0]
    if len(found) > 1 or not isinstance(text, str) or not text.lower().startswith(_BEARER):
        raise NotAuthenticated("must be `Bearer` and one token", field=TOKEN_KEY, remedy="Send it once, and so")
    # Never empty: who sends one is known by it, or not at all.
    return text[len(_BEARER) :].strip() or "-"


# --- the context of a call whose caller is known ----------------------------------------------------------------------


class GuardedContext:
    """A call's context with who makes the call, as the methods of services get it where callers are authenticated.

    All else is gRPC's. A call whose caller is not let in any more counts as one for which nobody waits.
    """

    def __init__(
        self, context: grpc.ServicerContext, principal: Principal, peer: str, still_valid: Callable[[Principal], bool]
    ) -> None:
        self._context = context
        self._still_valid = still_valid
        self.principal = principal
        self.peer_named = peer
        self.noted: dict[str, object] = {}
        self.foreign = False
        """True if the call names another account than the caller's."""

    def is_active(self) -> bool:
        return bool(self._context.is_active()) and self._still_valid(self.principal)

    def note_foreign(self) -> None:
        self.foreign = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def principal_of(context: grpc.ServicerContext | GuardedContext) -> Principal | None:
    """Return the caller; None: callers are not authenticated."""
    return context.principal if isinstance(context, GuardedContext) else None


def note_for_audit(context: grpc.ServicerContext | GuardedContext, **noted: object) -> None:
    """Note something for this call's audit besides what its request names; nothing secret."""
    if isinstance(context, GuardedContext):
        context.noted.update(noted)


def said_of_caller(context: grpc.ServicerContext | GuardedContext) -> str:
    """Return the statement about the caller for the node that a call is passed on to; a token goes with it, and names
    him.
    """
    if not isinstance(context, GuardedContext):
        return UNSAID
    return statement([] if context.principal.by_token else [context.principal.name], context.peer_named)


# --- the audit's entries ----------------------------------------------------------------------------------------------


class CallAudit:
    """The audit of one call that changes something, written once the call has ended.

    The caller is known: an unknown caller has changed nothing, and could fill the audit.
    """

    def __init__(self, sink: AuditSink, method: str, context: GuardedContext, request: Message | None) -> None:
        self._sink = sink
        self._method = method
        self._context = context
        self._request = request

    def end(self, now_s: float, node_id: str, error: BaseException | None) -> None:
        """Write the entries of the call; never raise, as the call has been made, and is answered.

        A request that cannot be read has an entry without its content.
        """
        status, code = "UNKNOWN" if error else grpc.StatusCode.OK.name, int(ErrorCode.INTERNAL) if error else 0
        own = self._context.principal.account
        entries_by_account: Mapping[str, tuple[str, str]] = {own: ("{}", "")}
        try:
            status, code = _outcome(self._context, error)
            entries_by_account = {
                account: (self._with_notes(what), named) for account, (what, named) in self._named_things(own).items()
            }
        except Exception:
            log.exception("audit.unreadable", extra={"method": self._method})
        caller = self._context.principal
        entries = [
            AuditEntry(
                at_s=now_s,
                node_id=node_id,
                account=account,
                caller_account=caller.account,
                caller_role=caller.role,
                caller=caller.name,
                known_by=caller.known_by,
                peer=self._context.peer_named,
                method=self._method,
                what=what,
                request_id=request_id,
                result=status,
                error_code=int(ErrorCode.NOT_AUTHORIZED) if self._context.foreign else code,
            )
            for account, (what, request_id) in entries_by_account.items()
        ]
        self._sink.add(entries)

    def _named_things(self, own: str) -> Mapping[str, tuple[str, str]]:
        """Return by account what the call named. A caller who may act in one account alone writes into the audit of no
        other.
        """
        if self._request is None:
            return {own: ("{}", "")}
        if self._context.principal.everywhere:
            return audited_by_account(self._request, own)
        return {own: audited_of_caller(self._request, own)}

    def _with_notes(self, what: str) -> str:
        noted = self._context.noted
        return json.dumps(json.loads(what) | noted, ensure_ascii=False) if noted else what


def _outcome(context: GuardedContext, error: BaseException | None) -> tuple[str, int]:
    """Return gRPC's status and the error's code, as the caller got them."""
    if error is None:
        return grpc.StatusCode.OK.name, 0
    status = context.code()
    name = status.name if isinstance(status, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name
    for key, value in context.trailing_metadata() or ():
        if key == DETAIL_KEY:
            return name, int(admin_pb2.ErrorDetail.FromString(value).code)
    return name, int(ErrorCode.INTERNAL)
