"""Find who views the page, by the token in a cookie, or by the certificate of the connection."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from starlette.requests import HTTPConnection
from starlette.responses import Response

from iscp.core.access.access_token import TOKEN_CHARS_MAX
from iscp.core.values.errors import NotAuthenticated
from iscp.page.serving.page_security import new_form_key, refuse_foreign_host
from iscp.page.serving.viewer_calls import Viewer

TOKEN_COOKIE = "iscp_token"
"""The cookie that has the viewer's token. No script can read it, and no other site sends it."""

FORM_COOKIE = "iscp_form"
"""The cookie whose content the page's forms have to repeat."""

COOKIE_CHARS_MAX = 3_900
"""Characters of a token that a cookie can hold; browsers drop longer ones, so they are refused at the login."""

LOGIN_S = 12 * 3_600
"""Seconds for which a browser holds a token; then it has to be entered again."""

NAMES_STATE = "names"
"""The place in a connection's state where the names of its certificate are."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Viewers:
    """The viewers, by what their requests show. With `authentication` who shows no token and no certificate has to log
    in.
    """

    def __init__(self, authentication: bool, hosts: Collection[str], tls: bool) -> None:
        self.authentication = authentication
        self._hosts = frozenset(each.lower() for each in hosts)
        self._tls = tls

    def viewer(self, request: HTTPConnection) -> Viewer:
        """Return who makes the request. Raises NotAuthenticated, and NotAuthorized for a foreign name of the page."""
        names: frozenset[str] = request.scope.get("state", {}).get(NAMES_STATE, frozenset())
        if not self.authentication:
            refuse_foreign_host(request.headers.get("host", ""), self._hosts)
            return Viewer("", names, _peer_of(request))
        token = request.cookies.get(TOKEN_COOKIE, "")
        if token and not is_token(token):
            token = ""
        if not token and not names:
            raise NotAuthenticated("is missing", field="token", remedy="Log in with a token")
        return Viewer(token, names, _peer_of(request))

    def keep(self, response: Response, token: str) -> None:
        """Have the browser hold the token."""
        self._set(response, TOKEN_COOKIE, token, LOGIN_S)

    def drop(self, response: Response) -> None:
        response.delete_cookie(TOKEN_COOKIE, path="/", httponly=True, secure=self._tls, samesite="strict")

    def form_key(self, cookies: Mapping[str, str]) -> tuple[str, bool]:
        """Return the key for the forms of a page, and whether it is new."""
        key = cookies.get(FORM_COOKIE, "")
        return (key, False) if _TOKEN.fullmatch(key) and len(key) <= 100 else (new_form_key(), True)

    def keep_form_key(self, response: Response, key: str) -> None:
        self._set(response, FORM_COOKIE, key, None)

    def _set(self, response: Response, name: str, value: str, age_s: int | None) -> None:
        response.set_cookie(name, value, max_age=age_s, path="/", httponly=True, secure=self._tls, samesite="strict")


def is_token(text: str) -> bool:
    """Return whether a text may be a token that a cookie can hold."""
    return bool(_TOKEN.fullmatch(text)) and len(text) <= min(COOKIE_CHARS_MAX, TOKEN_CHARS_MAX)


def _peer_of(request: HTTPConnection) -> str:
    """Return where the request comes from, as gRPC writes addresses."""
    if request.client is None:
        return ""
    host, port = request.client.host, request.client.port
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
