"""Refuse what no page of ours would send, and have browsers refuse what is not ours.

A tenant's names, errors and SQL are shown to others: no script may run but the one file that is served with the page.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from iscp.model.values.errors import InvalidRequest, NotAuthorized

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`, with which browsers send forms with the origin `null`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer; an answer that may be kept has its own `cache-control`."""


class GuardedAnswers:
    """An application of HTTP with HEADERS in all of its answers, its framework's own redirects and errors too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if "status" in message:  # the beginning of an answer, as ASGI has it
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded)


FORM_FIELD = "form_key"
"""The field of a form that has to hold what FORM_COOKIE holds, which another site can neither read nor set."""

_FORM_KEY_BYTES = 24


def new_form_key() -> str:
    return secrets.token_urlsafe(_FORM_KEY_BYTES)


def refuse_foreign_host(host: str, hosts: Collection[str]) -> None:
    """Raise NotAuthorized for a name by which this page is not known, where callers are not authenticated.

    Otherwise another site could give its own name this machine's address, and read the page as its own. An address, and
    `localhost`, are nobody's name.
    """
    name = host_name(host)
    if name == "localhost" or name.endswith(".localhost") or name in hosts or _is_address(name):
        return
    raise NotAuthorized(
        "is not a name of this page",
        field="host",
        remedy="Use the address of the node, or add the name to the setting page.hosts",
    )


def host_name(host: str) -> str:
    """Return the name in a `host` header, without its port and in small letters; empty for nonsense."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def refuse_other_origin(headers: Mapping[str, str], form_key: str, cookie: str) -> None:
    """Raise NotAuthorized unless a form was sent by a page of this very origin."""
    site, origin, host = (headers.get(name, "") for name in ("sec-fetch-site", "origin", "host"))
    fault = ""
    if site and site != "same-origin":
        fault = "comes from a page of another site"
    elif origin and urlsplit_netloc(origin) != host.lower():
        fault = "comes from a page of another origin"
    elif not site and not origin:
        fault = "does not say which page it comes from"
    elif not cookie or not secrets.compare_digest(form_key.encode(), cookie.encode()):
        fault = "is of a page that is no longer valid"
    if fault:
        raise NotAuthorized(fault, field="form", remedy="Reload the page, and send it from there")


def comes_from_here(headers: Mapping[str, str], cookie: str) -> bool:
    """Return whether a request that costs work was made by a page of this origin, or by who typed its address.

    A browser sends the cookie (FORM_COOKIE) to no request that another site makes. It sends `sec-fetch-site`, which
    distinguishes ports as well, to addresses that it trusts alone.
    """
    return bool(cookie) and headers.get("sec-fetch-site", "") in ("", "same-origin", "none")


def refuse_foreign_work(headers: Mapping[str, str], cookie: str) -> None:
    """Raise NotAuthorized for what costs work unless it comes from here."""
    if not comes_from_here(headers, cookie):
        raise NotAuthorized(
            "comes from no page of this origin", field="address", remedy="Open the page itself, and follow its link"
        )


def urlsplit_netloc(origin: str) -> str:
    """Return host and port of an origin in small letters; empty for `null` and nonsense."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def own_path(text: str) -> str:
    """Return the path, with its query, to go on with after a login; raise InvalidRequest unless it is of this page."""
    plain = text.isascii() and text.isprintable() and not any(each in text for each in ("\\", " "))
    if not plain or not text.startswith("/") or text.startswith("//"):
        raise InvalidRequest("is no path of this page", field="next", remedy="Begin at /")
    return text


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
