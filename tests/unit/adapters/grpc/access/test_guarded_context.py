"""What a node says to another one of a caller whose call it passes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iscp.adapters.grpc.access.guarded_context import GuardedContext, said_of_caller
from iscp.core.values.access_roles import KnownBy, Principal, Role


@pytest.mark.parametrize(
    ("known_by", "names"),
    [(KnownBy.CERTIFICATE, ["root"]), (KnownBy.NODE, ["root"]), (KnownBy.TOKEN, []), (KnownBy.OIDC, [])],
)
def test_only_what_a_certificate_shows_is_said(known_by: KnownBy, names: list[str]) -> None:
    """A token goes with the call and says it itself; what it says is never passed on as a certificate's name."""
    nowhere: Any = None
    principal = Principal("acme", Role.VIEWER, "root", known_by)
    said = said_of_caller(GuardedContext(nowhere, principal, "ipv4:1.2.3.4:5", lambda _: True))
    assert json.loads(said) == {"names": names, "peer": "ipv4:1.2.3.4:5"}
