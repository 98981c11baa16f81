"""The address of a node, and the bounds of messages between it and its users. Imports no gRPC."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import NoneType

from iscp.core.values.argument_checks import require
from iscp.core.values.errors import ConfigurationError

DEFAULT_ENDPOINT = "127.0.0.1:7430"
ENDPOINT_VARIABLE = "ISCP_ENDPOINT"

# What the wire's messages are written in; a node reads this and the one before.
FORMAT_VERSION = 1

MESSAGE_BYTES_MAX = 32 * 1024**2
"""Bytes of a message; a larger one is refused. A Register of REGISTRATIONS_MAX jobs fits, and everything longer travels
in pages.
"""

REGISTRATIONS_MAX = 20_000
"""Jobs in one request to register or to check them; more are refused."""

CHANGES_MAX = 10_000
"""Jobs in one request to change or to update them; more are refused."""

SPEC_BYTES_MAX = 256 * 1024
"""Characters of a spec, as JSON; a longer one is refused."""

WAIT_TIMEOUT_MAX_S = 24 * 3600.0
"""How long a wait or a comparison may be requested; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts: one's own certificate chain and key, and the authority that the other side's must come from.

    A server without `authority` requires no client certificate; a client without it trusts the public ones. A client
    expects a certificate for `server_name`, or, where it is empty, for the host that it calls.
    """

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    authority: bytes = b""
    server_name: str = ""

    def current(self) -> Tls:
        """Return these very texts, for ever."""
        return self


def endpoint_or_default(endpoint: str | None) -> str:
    """Return the given endpoint, else ISCP_ENDPOINT, else the default.

    Raises ConfigurationError unless it is HOST:PORT, or several with commas between them.
    """
    require(endpoint, (str, NoneType), "endpoint", "HOST:PORT")
    chosen = endpoint or os.environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT
    split_addresses(chosen)
    return chosen


def split_addresses(endpoint: str) -> list[tuple[str, int]]:
    """Take one HOST:PORT apart, or several with commas between them. Raises ConfigurationError, which says which one is
    wrong.
    """
    addresses, found = endpoint.split(","), []
    for number, address in enumerate(addresses, 1):
        try:
            found.append(split_address(address))
        except ConfigurationError as error:
            if len(addresses) > 1:
                error.message += f" (the endpoint {number} of {len(addresses)}, by the commas between them)"
            raise
    return found


def split_address(address: str) -> tuple[str, int]:
    """Take HOST:PORT apart; an IPv6 host stands in brackets and keeps them."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in address or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(
            f"{address!r} is not HOST:PORT",
            about="endpoint",
            remedy=f"Give it as in {DEFAULT_ENDPOINT}, without http://",
        )
    return host, int(port)


def reachable(address: str) -> str:
    """Return the address, HOST:PORT, at which a server of this machine that listens on all interfaces is reached."""
    host, port = split_address(address)
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"
