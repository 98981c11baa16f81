"""Turns the evidence of who makes a request by HTTP into metadata of the call that it leads to.

The call goes to this node's own gRPC port, where it is decided; the node is believed there by its certificate.
"""

from __future__ import annotations

import ssl
from email.message import Message
from typing import Any

from iscp.adapters.grpc.access.caller_evidence import NAMES_MAX, TOKEN_KEY, statement
from iscp.adapters.grpc.channel.call_metadata import CALLER_KEY, Metadata
from iscp.adapters.tls.certificate_names import shown_names
from iscp.core.values.errors import NotAuthenticated


def metadata_of(headers: Message, connection: Any, client_address: tuple[Any, ...]) -> Metadata:
    """Raises NotAuthenticated for what cannot be passed on."""
    tokens = [str(value) for value in headers.get_all(TOKEN_KEY, [])]
    if any(not (value.isascii() and value.isprintable()) for value in tokens):
        raise NotAuthenticated("must be `Bearer` and one token", field=TOKEN_KEY, remedy="Send it once, and so")
    metadata = tuple((TOKEN_KEY, value) for value in tokens)
    if not isinstance(connection, ssl.SSLSocket):
        return metadata  # nobody would believe the rest of the statement
    host, port = client_address[:2]
    family = "ipv6" if ":" in host else "ipv4"
    shown = f"[{host}]" if family == "ipv6" else host
    return (*metadata, (CALLER_KEY, statement(_names_of(connection), f"{family}:{shown}:{port}")))


def _names_of(connection: ssl.SSLSocket) -> frozenset[str]:
    shown = shown_names(connection.getpeercert(binary_form=True) or b"")
    names = shown.dns | shown.others
    if len(names) > NAMES_MAX:
        raise NotAuthenticated(
            f"has {len(names)} names, more than {NAMES_MAX}", field="certificate", remedy="Use gRPC, or another one"
        )
    return names
