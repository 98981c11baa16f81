"""The page as an application of HTTP: routes, logins, actions, live streams, and errors in words."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from anyio import fail_after
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from iscp.core.values.errors import InvalidRequest, IscpError, NotAuthenticated, QueueFull, TimedOut
from iscp.core.values.untrusted_values import escaped
from iscp.page.boards.job_board import SPARK_BARS, sparkline
from iscp.page.serving.error_pages import error_of, status_of_page
from iscp.page.serving.held_answers import HeldAnswers
from iscp.page.serving.live_streams import LiveStreams, event
from iscp.page.serving.page_actions import OUTCOMES, act
from iscp.page.serving.page_boards import OF_A_CLUSTER, Board, Offer, Visit, named_job
from iscp.page.serving.page_security import (
    FORM_FIELD,
    GuardedAnswers,
    comes_from_here,
    own_path,
    refuse_foreign_work,
    refuse_other_origin,
)
from iscp.page.serving.page_templates import ASSETS, address, environment
from iscp.page.serving.page_viewers import FORM_COOKIE, Viewers, is_token
from iscp.page.serving.viewer_calls import Viewer, ViewerClients, whole
from iscp.page.serving.viewer_threads import ViewerThreads
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

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
