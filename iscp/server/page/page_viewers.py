"""The viewers of the page: who they are, the calls of the cluster in their names, the threads in which these are made,
and the answers that are held for them.

Refuse what no page of ours would send, and have browsers refuse what is not ours.

A tenant's names, errors and SQL are shown to others: no script may run but the one file that is served with the page.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import re
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio.to_thread
import grpc
from anyio import CapacityLimiter
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import CALLER_KEY, Metadata, from_rpc, open_channel
from iscp.client.channel.silent_calls import Caller
from iscp.client.service_clients import AccessClient, BuildClient, FeedClient, OperatorClient
from iscp.model.access.authorization import TOKEN_CHARS_MAX, AuditEntry
from iscp.model.api.api_requests import EventView, JobView, LeftOutRows, SearchAnswer
from iscp.model.build.build_progress import BuildView
from iscp.model.job.iteration import HistoryEntry
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import InvalidRequest, IscpError, NotAuthenticated, NotAuthorized, TemporaryError
from iscp.ports.system import Clock
from iscp.server.access.call_audit import TOKEN_KEY, statement
from iscp.server.http.http_server import NAMES_STATE
from iscp.system.tls.tls_files import TlsSource, reachable
from iscp.wire.v1 import admin_pb2_grpc, search_pb2_grpc

log = logging.getLogger(__name__)

R = TypeVar("R")

CALL_TIMEOUT_S = 20.0
"""Seconds that a call for the page may take; then the page says that the cluster did not answer in time."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer of the page, known by a token (empty: none) and the names in the certificate of the connection.

    `peer` is its address, as gRPC writes it.
    """

    token: str = ""
    names: frozenset[str] = frozenset()
    peer: str = ""

    @property
    def scope(self) -> str:
        """Return what is equal for the requests of one caller, and shows no token."""
        text = "\n".join((self.token, *sorted(self.names)))
        return hashlib.sha256(text.encode()).hexdigest()


class Operates(Protocol):
    def events(self) -> Sequence[EventView]: ...


class Audits(Protocol):
    def audit(self, *, limit: int) -> Sequence[AuditEntry]: ...


class ListsBuilds(Protocol):
    def list(self) -> Sequence[BuildView]: ...


class ViewerClient(Protocol):
    """The calls of boards that need no cluster, as `Client` has them."""

    @property
    def operator(self) -> Operates: ...

    @property
    def builds(self) -> ListsBuilds: ...

    @property
    def access(self) -> Audits: ...

    def jobs(self, *, limit: int) -> Sequence[JobView]: ...

    def count(self) -> int: ...

    def status(self, table: str, name: str, *, account: str) -> JobView: ...

    def history(self, table: str, name: str, *, limit: int, account: str) -> Sequence[HistoryEntry]: ...

    def dead_letters(self, table: str, name: str, *, account: str) -> LeftOutRows: ...

    def explain(self, table: str, name: str, *, account: str) -> QueryExplanation: ...

    def search(self, uri: str, text: str, *, k: int, highlight: bool, account: str) -> SearchAnswer: ...


class ViewerClients(Protocol):
    """The clients of the cluster, one for each viewer."""

    def client(self, viewer: Viewer) -> ViewerClient: ...

    def close(self) -> None: ...


def whole(client: ViewerClient) -> Client:
    """Return the client with all of its calls, as that of a cluster has them; only the page of one makes others."""
    return cast(Client, client)


class _ViewerCaller(Caller):
    """The caller of one viewer over the channel that all share. It calls once: who views the page reloads it."""

    def __init__(self, channel: Any, metadata: Metadata, endpoint: str) -> None:
        self.channel = channel
        self._metadata = metadata
        self._endpoint_name = endpoint

    def close(self) -> None:
        """Leave the channel to the others."""

    def call(
        self,
        method: Callable[..., R],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        within_s = CALL_TIMEOUT_S if timeout_s is None else min(timeout_s, CALL_TIMEOUT_S)
        try:
            return method(request, timeout=within_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, self._endpoint_name, changes=changes) from error


class _ViewerClient(Client):
    """The Python client, with the calls of a viewer."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._admin = admin_pb2_grpc.AdminStub(caller.channel)
        self._search = search_pb2_grpc.SearchStub(caller.channel)
        self.operator = OperatorClient(caller)
        self.builds = BuildClient(caller)
        self.feeds = FeedClient(caller)
        self.access = AccessClient(caller)


class PageClients(ViewerClients):
    """The clients of the node whose gRPC server listens on `address`, HOST:PORT."""

    def __init__(self, address: str, tls: TlsSource | None) -> None:
        self._endpoint = reachable(address)
        self._channel = open_channel(self._endpoint, tls)
        self._said = tls is not None

    def client(self, viewer: Viewer) -> Client:
        return _ViewerClient(_ViewerCaller(self._channel, metadata_of_viewer(viewer, self._said), self._endpoint))

    def close(self) -> None:
        self._channel.close()


def metadata_of_viewer(viewer: Viewer, said: bool) -> Metadata:
    """Return the metadata of a viewer's calls. `said`: by TLS, in which this node's statement is believed; without it
    the calls would be the node's own.
    """
    token = ((TOKEN_KEY, f"Bearer {viewer.token}"),) if viewer.token else ()
    return (*token, (CALLER_KEY, statement(viewer.names, viewer.peer))) if said else token


# --- who views the page -----------------------------------------------------------------------------------------------
# A viewer is known by the token in a cookie, or by the certificate of the connection.

Query = Mapping[str, str]
"""The parameters of an address."""


TOKEN_COOKIE = "iscp_token"
"""The cookie that has the viewer's token. No script can read it, and no other site sends it."""

FORM_COOKIE = "iscp_form"
"""The cookie whose content the page's forms have to repeat."""

COOKIE_CHARS_MAX = 3_900
"""Characters of a token that a cookie can hold; browsers drop longer ones, so they are refused at the login."""

LOGIN_S = 12 * 3_600
"""Seconds for which a browser holds a token; then it has to be entered again."""

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


# --- threads ----------------------------------------------------------------------------------------------------------
# Threads fetch and draw what viewers request; no viewer who is known has all of them.

P = ParamSpec("P")

THREADS_MAX = 16
"""Threads that fetch and draw boards; further requests wait for one."""

THREADS_PER_VIEWER_MAX = 6
"""Threads of one viewer among these, as calls may take long; viewers who are not authenticated have all of them."""


class ViewerThreads:
    """The threads of a node's page, used by its event loop alone."""

    def __init__(self) -> None:
        self._limits: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    def set_bound(self) -> None:
        """Bound the threads of the running event loop."""
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX

    async def run(self, viewer: Viewer, work: Callable[P, R], *args: P.args, **given: P.kwargs) -> R:
        """Return what `work` does, in a thread, once the viewer may have one."""
        known = viewer.token or viewer.names
        limit = self._limits.get(viewer.scope)
        if limit is None:
            limit = self._limits[viewer.scope] = CapacityLimiter(THREADS_PER_VIEWER_MAX if known else THREADS_MAX)
        async with limit:
            result: Any = await run_in_threadpool(work, *args, **given)
            return result  # type: ignore[no-any-return]


# --- the memory that a value takes ------------------------------------------------------------------------------------
# Whoever holds a value has to know how many bytes it takes with all that it has.

_SINGLE = (int, float, bool, type(None), Enum)
"""Types whose values are shared, or so small that their holder's own size stands for them."""


def bytes_of(value: object) -> int:
    """Return the bytes that a value takes, with those of its fields, items, keys and values.

    What is there several times counts as often: it is never less than what the value really takes but for numbers. Each
    text, sequence and mapping is looked at, so that no part of it is large and not counted.
    """
    total, open_ones = 0, [value]
    while open_ones:
        each = open_ones.pop()
        if isinstance(each, str):
            total += sys.getsizeof(each)
        elif isinstance(each, _SINGLE):
            continue
        else:
            total += sys.getsizeof(each)
            open_ones.extend(_parts_of(each))
    return total


def _parts_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    kind: Any = type(value)
    return _getter(kind)(value) if is_dataclass(value) else ()


@cache
def _getter(kind: Any) -> Any:
    """Return what takes the values of all fields off an object of a dataclass."""
    names = [each.name for each in fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


# --- answers that are held --------------------------------------------------------------------------------------------
# The answers of the cluster that boards show, such as the list of all jobs, are held for seconds for each viewer. A
# list of ten thousand jobs takes the owner longer than a page may take. So a page shows the last answer, and one that
# has become old is fetched again while it is shown.

T = TypeVar("T")

ANSWERS_MAX = 48
"""Answers that are held, of all viewers; for one more the answer that was unused for longest is dropped."""

BYTES_MAX = 256 * 1024**2
"""Bytes that all of these may take together; beyond them the answers that were unused for longest are dropped. One that
alone has more is held alone.
"""

FRESH_S = 2.0
"""Seconds for which an answer counts as new, at least."""

FETCH_SHARE = 0.1
"""Part of the time that fetching one answer may take up: one that took 0.5 s counts as new for 5 s."""

STALE_S = 20.0
"""Seconds beyond which an answer is not shown while the next one is fetched; the page waits for that instead."""

FETCHES_MAX = 2
"""Answers that are fetched in the background at a time; others wait for their turn."""


@dataclass(frozen=True, slots=True)
class HeldAnswer(Generic[T]):
    """An answer of the cluster, as of `taken_at_s` (Unix seconds).

    `fault` says why there is no newer answer; empty: there is nothing wrong.
    """

    value: T
    taken_at_s: float
    fault: str = ""


@dataclass(slots=True)
class _Held:
    """One answer for one viewer. `lock` is held while it is fetched, for somebody who waits or behind."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: HeldAnswer[Any] | None = None
    taken_s: float = 0.0
    cost_s: float = 0.0
    bytes: int = 0
    under_way: bool = False


class HeldAnswers:
    """The answers by viewer and by what was fetched; several threads may use it. `close` waits for no fetch."""

    def __init__(self, clients: ViewerClients, clock: Clock, bytes_max: int = BYTES_MAX) -> None:
        self._clients = clients
        self._clock = clock
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[str, str], _Held] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="iscp-page-list")

    def newest(self, viewer: Viewer, what: str, fetch: Callable[[ViewerClient], T]) -> HeldAnswer[T]:
        """Return an answer that is new enough; raise the error of fetching it where there is none to show.

        `fetch` is always the same for the same `what`. Where the cluster does not answer now, the last answer is
        returned with that `fault`.
        """
        held = self._place(viewer.scope, what)
        now_s = self._clock.monotonic_s()
        if (shown := held.answer) is not None:
            age_s = now_s - held.taken_s
            if age_s < max(FRESH_S, held.cost_s / FETCH_SHARE):
                return shown
            if age_s < max(STALE_S, 2 * held.cost_s / FETCH_SHARE):
                self._fetch_behind(held, viewer, fetch)
                return shown
        with held.lock:
            # Who has waited for another's fetch takes what that has brought.
            if held.answer is None or held.taken_s < now_s:
                self._fetch(held, viewer, fetch)
            return cast(HeldAnswer[T], held.answer)

    def forget(self, viewer: Viewer) -> None:
        """Drop a viewer's answers, after a change that the next page has to show."""
        with self._lock:
            for place in [each for each in self._held if each[0] == viewer.scope]:
                del self._held[place]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _place(self, scope: str, what: str) -> _Held:
        with self._lock:
            held = self._held.setdefault((scope, what), _Held())
            self._held.move_to_end((scope, what))
            while len(self._held) > ANSWERS_MAX:
                self._held.popitem(last=False)
            return held

    def _make_room(self, held: _Held) -> None:
        """Drop the answers that were unused for longest, but not `held`, until the others fit."""
        with self._lock:
            left = self._bytes_max - sum(each.bytes for each in self._held.values())
            for place, each in list(self._held.items()):
                if left >= 0:
                    return
                if each is not held:
                    left += each.bytes
                    del self._held[place]

    def _fetch_behind(self, held: _Held, viewer: Viewer, fetch: Callable[[ViewerClient], object]) -> None:
        with self._lock:
            if held.under_way:
                return
            held.under_way = True

        def work() -> None:
            try:
                with held.lock:
                    self._fetch(held, viewer, fetch)
            except IscpError as error:
                log.info("page.refused", extra={"error": str(error)})
            except Exception:
                log.exception("page.fetch_failed")
            finally:
                held.under_way = False

        try:
            self._pool.submit(work)
        except RuntimeError:  # the page is being closed
            held.under_way = False

    def _fetch(self, held: _Held, viewer: Viewer, fetch: Callable[[ViewerClient], object]) -> None:
        """Fetch the answer, or note why it cannot be had. Raises IscpError where there is no former one to show."""
        begun_s = self._clock.monotonic_s()
        try:
            held.answer = HeldAnswer(fetch(self._clients.client(viewer)), self._clock.now_s())
            held.bytes = bytes_of(held.answer)
            self._make_room(held)
        except TemporaryError as error:
            if held.answer is None:
                raise
            held.answer = replace(held.answer, fault=str(error))
        except IscpError:
            held.answer, held.bytes = None, 0  # who may not see it any more is refused by the next page too
            raise
        held.taken_s = self._clock.monotonic_s()
        held.cost_s = held.taken_s - begun_s


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
