"""The page as an application of HTTP: routes, logins, actions, live streams, and errors in words."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from anyio import fail_after
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from iscp.client.admin_client import Client
from iscp.model.values.errors import (
    InvalidRequest,
    IscpError,
    JobNotFound,
    NotAuthenticated,
    NotAuthorized,
    OutcomeUnknown,
    PermanentError,
    QueueFull,
    TableNotFound,
    TemporaryError,
    TimedOut,
)
from iscp.model.values.untrusted_values import escaped, is_shown
from iscp.ports.system import Clock
from iscp.server.boards import job_board
from iscp.server.boards.job_board import SPARK_BARS, JobFacts, sparkline
from iscp.server.page.page_boards import NAME_CHARS_MAX, OF_A_CLUSTER, Board, Offer, Visit, named_job
from iscp.server.page.page_viewers import (
    FORM_COOKIE,
    FORM_FIELD,
    GuardedAnswers,
    HeldAnswers,
    Query,
    Viewer,
    ViewerClients,
    Viewers,
    ViewerThreads,
    comes_from_here,
    is_token,
    own_path,
    refuse_foreign_work,
    refuse_other_origin,
    whole,
)

log = logging.getLogger(__name__)

# --- templates --------------------------------------------------------------------------------------------------------
# A name that a template does not get is an error. Whatever is put into a template is escaped for HTML, and has the
# escapes that it would have on a terminal. The value of a field of a form, which comes back as it is, has references to
# characters instead (`exact`).

HERE = Path(__file__).parent

ASSETS = HERE / "assets"


def environment() -> Environment:
    """Return the templates, with the functions that they use."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in (
        "span",
        "lag",
        "age",
        "until",
        "moment",
        "count",
        "some",
        "size",
        "version",
        "short",
        "last_part",
        "share",
    ):
        made.globals[name] = getattr(job_board, name)
    made.filters["exact"] = exact
    made.globals["address"] = address
    made.globals["job_address"] = job_address
    return made


def _shown(value: Any) -> Any:
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exact(value: str) -> Markup:
    """Return the value of a field, which a browser reads as it was, though no character in it steers what is shown."""
    return Markup("".join(each if is_shown(each) else f"&#{ord(each)};" for each in str(escape(value))))


def address(path: str, parameters: dict[str, str] | None = None) -> str:
    """Return a path with its parameters."""
    return f"{path}?{urlencode(parameters, errors='replace')}" if parameters else path


def job_address(job: JobFacts, path: str = "/job") -> str:
    """Return the address of a job's board, or of something else of it."""
    return address(path, {"table": job.table_id, "name": job.name, "account": job.account})


# --- errors -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownError:
    """An error as the page shows it, with a status of HTTP.

    `title` is for everybody, `message` and `remedy` are the server's own.
    """

    title: str
    message: str
    remedy: str
    code: str
    again: bool
    """Whether the page is worth reloading."""


_KINDS: tuple[tuple[type[IscpError], int, str], ...] = (
    (NotAuthenticated, 401, "You are not known here"),
    (NotAuthorized, 403, "You may not do this"),
    (JobNotFound, 404, "There is no such job"),
    (TableNotFound, 404, "There is no such table"),
    (InvalidRequest, 400, "This does not make sense"),
    (QueueFull, 503, "There is too much to do now"),
    (TimedOut, 504, "The cluster did not answer in time"),
    (OutcomeUnknown, 502, "It is not known whether this was done"),
    (TemporaryError, 503, "The cluster does not answer now"),
    (PermanentError, 409, "This cannot be done"),
)


def status_of_page(error: IscpError) -> int:
    """Return the status of HTTP; 500 for what is not foreseen."""
    return next((status for kind, status, _ in _KINDS if isinstance(error, kind)), 500)


def error_of(error: IscpError) -> ShownError:
    title = next((title for kind, _, title in _KINDS if isinstance(error, kind)), "This failed")
    return ShownError(title, error.sentence, error.remedy, error.code.name, isinstance(error, TemporaryError))


# --- live streams -----------------------------------------------------------------------------------------------------
# By a stream of server-sent events a board stays as it is in the cluster. The number of streams is bounded.

STREAMS_MAX = 64
"""Streams of a node at a time; one more is refused, and its page is not live."""

STREAMS_PER_VIEWER_MAX = 16
"""Streams of one viewer among these; one more is refused."""

PAUSE_S = 3.0
"""Seconds between two contents of a stream."""

STREAM_S = 600.0
"""Seconds after which a stream ends; its browser opens it again, and shows who it is."""

RETRY_MS = 3_000
"""Milliseconds that a browser waits before it opens a stream again."""


class LiveStreams:
    """The streams of a node, used by the thread of its event loop alone."""

    def __init__(self) -> None:
        self._by_viewer: Counter[str] = Counter()
        self._end = asyncio.Event()

    def refuse_beyond(self, scope: str) -> None:
        """Raise QueueFull where there is no place for one more stream of a viewer."""
        if self._by_viewer.total() >= STREAMS_MAX or self._by_viewer[scope] >= STREAMS_PER_VIEWER_MAX:
            raise QueueFull("there are too many live pages", remedy="Close others; this one can be reloaded")

    @contextmanager
    def place(self, scope: str) -> Iterator[None]:
        """Hold a place for a stream of a viewer. Raises QueueFull."""
        self.refuse_beyond(scope)
        self._by_viewer[scope] += 1
        try:
            yield
        finally:
            self._by_viewer[scope] -= 1
            if not self._by_viewer[scope]:
                del self._by_viewer[scope]

    @property
    def count(self) -> int:
        return self._by_viewer.total()

    def end_all(self) -> None:
        """End all streams at their next pause, which is cut short."""
        self._end.set()

    async def events(self, content: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        """Yield the content as events, each time it has changed, until the stream is old or all are to end."""
        yield f"retry: {RETRY_MS}\n\n"
        loop, last = asyncio.get_running_loop(), ""
        until_s = loop.time() + STREAM_S
        while loop.time() < until_s and not self._end.is_set():
            newest = await content()
            # A comment shows that the browser is still there.
            yield ": the same\n\n" if newest == last else event("board", newest)
            last = newest
            try:
                await asyncio.wait_for(self._end.wait(), PAUSE_S)
            except TimeoutError:
                continue


def event(name: str, content: str) -> str:
    """Return an event whose data is one line of JSON, so that no content can make another event."""
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"


# --- actions ----------------------------------------------------------------------------------------------------------
# A viewer requests by a form to pause, resume, retry or rebuild jobs, and to drain nodes and take them back.

OUTCOMES: Mapping[str, str] = {
    "pause": "The job is paused.",
    "resume": "The job goes on.",
    "retry": "The job is tried again at once.",
    "resync": "The job's target is built again from its source; readers see the old rows until then.",
    "drain": "The node gives up its shards, and gets no others.",
    "uncordon": "The node gets shards again.",
    "unchanged": "It was so already: nothing has changed.",
}
"""The sentences after an action, by the word that stands in the address."""


def act(client: Client, verb: str, form: Query) -> str:
    """Do what the form says, and return the word of its outcome. Raises IscpError."""
    if verb in _NODE_VERBS:
        node_id = form.get("node_id", "")
        if not node_id or len(node_id) > NAME_CHARS_MAX:
            raise InvalidRequest("is missing", field="node_id", remedy="Use the page's own buttons")
        changed = _NODE_VERBS[verb](client, node_id)
    elif verb in _JOB_VERBS:
        changed = _JOB_VERBS[verb](client, form)
    else:
        raise InvalidRequest("is not a verb of the page", field="verb", remedy="Use the page's own buttons")
    return verb if changed else "unchanged"


def _pause(client: Client, form: Query) -> bool:
    job = named_job(form)
    return client.pause(job.table, job.name, account=job.account)


def _resume(client: Client, form: Query) -> bool:
    job = named_job(form)
    return client.resume(job.table, job.name, account=job.account)


def _resync(client: Client, form: Query) -> bool:
    job = named_job(form)
    return client.resync(job.table, job.name, account=job.account).created


def _drain(client: Client, node_id: str) -> bool:
    client.operator.drain(node_id)
    return True


def _uncordon(client: Client, node_id: str) -> bool:
    return client.operator.uncordon(node_id)


_JOB_VERBS: Mapping[str, Callable[[Client, Query], bool]] = {
    "pause": _pause,
    "resume": _resume,
    # A job that fails goes on at once when it is resumed.
    "retry": _resume,
    "resync": _resync,
}
_NODE_VERBS: Mapping[str, Callable[[Client, str], bool]] = {"drain": _drain, "uncordon": _uncordon}


# --- the application --------------------------------------------------------------------------------------------------

FORM_BYTES_MAX = 32 * 1024
"""Bytes of a form; a larger one is refused."""

FORM_S = 10.0
"""Seconds that a form may take to come in; then it is refused."""

QUERY_CHARS_MAX = 16_000
"""Characters of the parameters of an address; more are refused."""

FIELDS_MAX = 50
"""Parameters of an address, or fields of a form; more are refused."""

ASSET_AGE_S = 86_400
"""Seconds that a browser may hold a style sheet or script, whose address has its hash."""

SPARK_AGE_S = 3_600
"""Seconds that a browser may hold a sparkline, whose address has the number of the job's last iteration."""

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class PageApp:
    """The application; `guarded` is what a server runs, and `streams` its live streams."""

    def __init__(
        self,
        clients: ViewerClients,
        answers: HeldAnswers,
        viewers: Viewers,
        clock: Clock,
        cluster: str,
        node_id: str,
        offer: Offer = OF_A_CLUSTER,
    ) -> None:
        self._clients = clients
        self._answers = answers
        self._viewers = viewers
        self._clock = clock
        self.streams = LiveStreams()
        self._threads = ViewerThreads()
        self._say = offer.say
        self._assets = {path.name: path.read_bytes() for path in sorted(ASSETS.iterdir()) if path.suffix in _TYPES}
        stamp = hashlib.sha256(b"".join(self._assets.values())).hexdigest()[:12]
        self._templates = environment()
        self._templates.globals.update(
            boards=[board for board in offer.boards if board.listed],
            changes=offer.changes,
            say=offer.say,
            cluster=cluster,
            node_id=node_id,
            stamp=stamp,
        )
        boards = [Route(board.path, partial(self._page, board)) for board in offer.boards]
        live = [Route(f"/live/{board.name}", partial(self._live, board)) for board in offer.boards if board.live]
        app = Starlette(
            routes=[
                *boards,
                *live,
                Route("/spark.svg", self._spark),
                Route("/explain", self._explain),
                Route("/assets/{name}", self._asset),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                *([Route("/act", self._act, methods=["POST"])] if offer.changes else []),
            ],
            exception_handlers={404: self._no_such_page, 405: self._no_such_page, Exception: self._unforeseen},
            lifespan=self._lifespan,
        )
        self.guarded = GuardedAnswers(app)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._threads.set_bound()
        yield
        self.streams.end_all()

    # --- boards --------------------------------------------------------------------------------------------------

    async def _page(self, board: Board, request: Request) -> Response:
        async def answer() -> Response:
            viewer = self._viewers.viewer(request)
            query = _query_of(request)
            return await self._threads.run(viewer, self._draw_page, board, viewer, query, request)

        return await self._answered(request, answer)

    def _draw_page(self, board: Board, viewer: Viewer, query: Mapping[str, str], request: Request) -> Response:
        here = comes_from_here(request.headers, request.cookies.get(FORM_COOKIE, ""))
        content = board.content(self._visit(viewer, query, here))
        outcome = OUTCOMES.get(query.get("done", ""), "")
        live = address(f"/live/{board.name}", {name: value for name, value in query.items() if name != "done"})
        return self._html(request, "board.html", {**content, "shown": board, "outcome": outcome, "live": live})

    async def _live(self, board: Board, request: Request) -> Response:
        async def answer() -> Response:
            viewer, query = self._viewers.viewer(request), _query_of(request)
            refuse_foreign_work(request.headers, request.cookies.get(FORM_COOKIE, ""))
            self.streams.refuse_beyond(viewer.scope)
            content = partial(self._threads.run, viewer, self._draw_live, board, viewer, query, request)

            # The place is taken in here: of a stream that never begins nothing would give it back.
            async def events() -> AsyncIterator[str]:
                try:
                    with self.streams.place(viewer.scope):
                        async for each in self.streams.events(content):
                            yield each
                except IscpError as error:
                    yield event(
                        "gone" if isinstance(error, NotAuthenticated) else "fault", escaped(self._say(str(error)))
                    )

            return StreamingResponse(events(), media_type="text/event-stream")

        return await self._answered(request, answer)

    def _draw_live(self, board: Board, viewer: Viewer, query: Mapping[str, str], request: Request) -> str:
        content = board.content(self._visit(viewer, query))
        return self._drawn(request, f"{board.name}.html", {**content, "shown": board})

    def _visit(self, viewer: Viewer, query: Mapping[str, str], here: bool = True) -> Visit:
        return Visit(viewer, self._clients.client(viewer), self._answers, query, self._clock.now_s(), here)

    async def _spark(self, request: Request) -> Response:
        async def answer() -> Response:
            viewer, job = self._viewers.viewer(request), named_job(_query_of(request))
            refuse_foreign_work(request.headers, request.cookies.get(FORM_COOKIE, ""))

            def draw() -> Response:
                client = self._clients.client(viewer)
                history = client.history(job.table, job.name, account=job.account, limit=SPARK_BARS)
                drawn = self._drawn(request, "spark.svg", {"spark": sparkline(history)})
                headers = {"cache-control": f"private, max-age={SPARK_AGE_S}", "vary": "cookie"}
                return Response(drawn, media_type=_TYPES[".svg"], headers=headers)

            return await self._threads.run(viewer, draw)

        return await self._answered(request, answer)

    async def _explain(self, request: Request) -> Response:
        async def answer() -> Response:
            viewer, job = self._viewers.viewer(request), named_job(_query_of(request))
            refuse_foreign_work(request.headers, request.cookies.get(FORM_COOKIE, ""))

            def draw() -> Response:
                explanation = self._clients.client(viewer).explain(job.table, job.name, account=job.account)
                return self._html(request, "explain.html", {"job": job, "explanation": explanation})

            return await self._threads.run(viewer, draw)

        return await self._answered(request, answer)

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._assets:
            return self._failed(request, InvalidRequest("there is no such file", remedy="Begin at /"), 404)
        headers = {"cache-control": f"public, max-age={ASSET_AGE_S}"}
        return Response(self._assets[name], media_type=_TYPES[f".{name.rpartition('.')[2]}"], headers=headers)

    # --- who views, and what they do -----------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        async def answer() -> Response:
            query = _query_of(request)
            if request.method == "GET":
                return self._html(request, "login.html", {"fault": "", "next": query.get("next", "/")})
            form = await self._form(request)
            token, target = form.get("token", "").strip(), own_path(form.get("next", "/"))
            try:
                if not is_token(token):
                    raise NotAuthenticated(
                        "is none that a browser can hold", field="token", remedy="Enter what `token create` has shown"
                    )
                # The server alone says whether it is good.
                entering = Viewer(token)
                await self._threads.run(entering, self._clients.client(entering).count)
            except NotAuthenticated as error:
                return self._html(request, "login.html", {"fault": str(error), "next": target}, 401)
            response = RedirectResponse(target, 303)
            self._viewers.keep(response, token)
            return response

        return await self._answered(request, answer)

    async def _logout(self, request: Request) -> Response:
        async def answer() -> Response:
            await self._form(request)
            response = RedirectResponse("/login", 303)
            self._viewers.drop(response)
            return response

        return await self._answered(request, answer)

    async def _act(self, request: Request) -> Response:
        async def answer() -> Response:
            viewer = self._viewers.viewer(request)
            form = await self._form(request)
            client = whole(self._clients.client(viewer))
            outcome = await self._threads.run(viewer, act, client, form.get("verb", ""), form)
            self._answers.forget(viewer)
            back = {name: form[name] for name in ("table", "name", "account") if name in form} | {"done": outcome}
            return RedirectResponse(address("/job" if "table" in form else "/cluster", back), 303)

        return await self._answered(request, answer)

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of this page. Raises InvalidRequest, NotAuthorized, TimedOut."""
        body = b""
        try:
            with fail_after(FORM_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > FORM_BYTES_MAX:
                        raise InvalidRequest("is too large", field="form", remedy="Use the page's own forms")
        except TimeoutError:
            raise TimedOut("the form did not come in time", remedy="Send it again") from None
        form = _fields(body.decode("utf-8", "replace"))
        refuse_other_origin(request.headers, form.get(FORM_FIELD, ""), request.cookies.get(FORM_COOKIE, ""))
        return form

    # --- answers -------------------------------------------------------------------------------------------------

    async def _answered(self, request: Request, answer: Callable[[], Any]) -> Response:
        """Return the answer, or what went wrong in words; who is not known is led to the login."""
        try:
            response: Response = await answer()
            return response
        except NotAuthenticated as error:
            if (
                request.method == "GET"
                and self._viewers.authentication
                and "text/html" in request.headers.get("accept", "")
            ):
                here = str(request.url.path) + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(address("/login", {"next": here}), 303)
            return self._failed(request, error, status_of_page(error))
        except IscpError as error:
            return self._failed(request, error, status_of_page(error))

    def _failed(self, request: Request, error: IscpError, status: int) -> Response:
        retry = {"retry-after": "5"} if isinstance(error, QueueFull) else {}
        return self._html(request, "error.html", {"error": error_of(error), "status": status}, status, retry)

    async def _no_such_page(self, request: Request, error: Exception) -> Response:
        status = int(getattr(error, "status_code", 404))
        return self._failed(request, InvalidRequest("there is no such page", remedy="Begin at /"), status)

    async def _unforeseen(self, request: Request, error: Exception) -> Response:
        log.error("page.request_failed", exc_info=error)
        named = IscpError(f"unforeseen {type(error).__name__}", remedy="See the node's log")
        return self._failed(request, named, 500)

    def _html(
        self,
        request: Request,
        template: str,
        content: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        key, new = self._viewers.form_key(request.cookies)
        text = self._drawn(request, template, content, key)
        response = Response(text, status, headers, "text/html; charset=utf-8")
        if new:
            self._viewers.keep_form_key(response, key)
        return response

    def _drawn(self, request: Request, template: str, content: Mapping[str, Any], key: str = "") -> str:
        drawn = self._templates.get_template(template).render(
            now_s=self._clock.now_s(),
            form_key=key or self._viewers.form_key(request.cookies)[0],
            authentication=self._viewers.authentication,
            **content,
        )
        # Half of a surrogate pair, which JSON can hold in a damaged spec, has no bytes in UTF-8.
        return drawn.encode("utf-8", "replace").decode()


def _query_of(request: Request) -> dict[str, str]:
    return _fields(request.url.query)


def _fields(text: str) -> dict[str, str]:
    """Return the fields of an address or a form, the last of each name. Raises InvalidRequest."""
    if len(text) > max(QUERY_CHARS_MAX, FORM_BYTES_MAX):
        raise InvalidRequest("is too long", field="query", remedy="Follow a link of the page")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        raise InvalidRequest("has too many fields", field="query", remedy="Follow a link of the page") from None
