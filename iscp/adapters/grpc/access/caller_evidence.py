"""The evidence of who makes a call: a token, a certificate, and a node's statement about a caller whose call it passes
on.

Only a node is believed that, and only where its certificate shows that it is one: others' statements are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from iscp.adapters.grpc.channel.call_metadata import CALLER_KEY, FORWARDED_KEY
from iscp.adapters.tls.server_credentials import names_shown
from iscp.core.values.access_roles import Credentials
from iscp.core.values.errors import NotAuthenticated
from iscp.core.values.untrusted_values import exact_name

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
