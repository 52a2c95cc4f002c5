"""The dashboard's paths: pages, their streams, actions, sign-in, static files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import quote

import structlog
import trio
from attrs import define, field
from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fairq.errors import FairqError, TooLarge, TooMany, Unauthorized
from fairq.server.engine.net.auth import Identity
from fairq.server.engine.net.origin import Origin
from fairq.server.web.admin.health import Health
from fairq.server.web.admin.operators import Operators
from fairq.server.web.dashboard.actions import ACTIONS
from fairq.server.web.dashboard.dialogs import Action, read_form
from fairq.server.web.dashboard.finding import Finder
from fairq.server.web.dashboard.live import KEPT_S, MAX_GATHERING, MAX_OWN_STREAMS, MAX_STREAMS, PageStream
from fairq.server.web.dashboard.pages import PAGES
from fairq.server.web.dashboard.recent import Recent
from fairq.server.web.dashboard.sessions import COOKIE, Session, Sessions, give
from fairq.server.web.dashboard.shares import WAITS_S
from fairq.server.web.dashboard.simulation import KEPT_S as SIMULATED_S
from fairq.server.web.dashboard.view import Context, Page, Site, View
from fairq.server.web.dashboard.writing import STATIC, make_environment
from fairq.server.web.http.bodies import Gone
from fairq.server.web.http.guard import INBOX, asked_of
from fairq.server.web.http.problems import STATUS
from fairq.server.web.http.shared import Shared

log = structlog.get_logger("fairq.server")

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}
_MAX_FORM_BYTES = 262_144
Gather = Callable[[View], Awaitable[Context]]
PART: Context = {"layout": "live.html"}  # the changing part of a page alone
_MAX_QUERY_CHARS = 6_144  # Simulate asks about 20 tenants with perhaps long names
_ANSWER_S = 10.0


@define(eq=False)
class Dashboard:
    """All pages of one server."""

    site: Site
    sessions: Sessions
    templates: Environment = field(init=False)
    renderings: Shared[str] = field(factory=lambda: Shared(KEPT_S, MAX_GATHERING), init=False)
    streams: Counter[Identity] = field(factory=Counter, init=False)  # that are open, by identity

    def __attrs_post_init__(self) -> None:
        self.templates = make_environment(is_dev=self.site.operators.app.settings.dev)

    def routes(self) -> Iterable[Route | Mount]:
        """Yield the paths."""
        for page in PAGES:
            yield Route(page.path, partial(self._show, page))
            if page.is_live:
                yield Route(f"/live{page.path}", partial(self._stream, page))
            if page.gather_slowly:
                yield Route(f"/later{page.path}", partial(self._show_later, page, page.gather_slowly))
        for action in ACTIONS:
            yield Route(f"/do/{action.name}", partial(self._dialog, action))
            yield Route(f"/do/{action.name}", partial(self._act, action), methods=["POST"])
            yield Route(f"/ask/{action.name}", partial(self._dialog, action), methods=["POST"])
        yield Route("/sign-in", self._ask_token)
        yield Route("/sign-in", self._sign_in, methods=["POST"])
        yield Route("/sign-out", self._sign_out, methods=["POST"])
        yield Mount("/static", _Static(directory=STATIC))
        yield Route("/{path:path}", self._nowhere)

    async def _view(self, request: Request) -> View:
        """Return the view of a request. Raises: Unauthorized, BadRequest."""
        if len(request.url.query) > _MAX_QUERY_CHARS:
            raise TooLarge(f"the query has more than {_MAX_QUERY_CHARS} characters", field="query")
        session = await self.sessions.find(request) or await self.sessions.sign_in_alone(request)
        if session is None:
            raise Unauthorized("sign in first")
        origin = Origin(_address(request), "dashboard")
        path = request.url.path.removeprefix("/live").removeprefix("/later")
        return View(self.site, session, origin, path, request.path_params, dict(request.query_params))

    def _answer(self, request: Request, template: str, context: Context, status: int = 200) -> Response:
        html = self.templates.get_template(template).render(context)
        response = HTMLResponse(html, status, _HEADERS)
        session = context.get("session")
        if isinstance(session, Session) and request.cookies.get(COOKIE) != session.cookie:
            give(response, request, session)  # the session began without a token
        return response

    async def _guarded(self, request: Request, answer: Callable[[View], Awaitable[Response]]) -> Response:
        """Answer, or say on a page what is wrong."""
        view = None
        try:
            with trio.fail_after(_ANSWER_S):
                view = await self._view(request)
                return await answer(view)
        except Unauthorized:
            here = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
            if request.headers.get("hx-request"):
                return Response(None, 204, {"HX-Redirect": "/sign-in"})
            return RedirectResponse(f"/sign-in?next={quote(here)}", 303, _HEADERS)
        except FairqError as error:
            return self._trouble(request, error.message, STATUS.get(error.code, 500), view)
        except trio.TooSlowError:
            unknown = "; it may have been done: look at the audit" if request.method == "POST" else ""
            return self._trouble(request, f"the store has not answered for {_ANSWER_S:g} s{unknown}", 503, view)
        except Gone:
            raise
        except Exception:
            log.exception("page failed", **asked_of(request.scope))
            return self._trouble(request, "internal error; see the server's log", 500, view)

    def _trouble(self, request: Request, message: str, status: int, view: View | None) -> Response:
        is_asked, is_part = bool(request.headers.get("hx-request")), request.url.path.startswith("/later/")
        template = "dialog_trouble.html" if is_asked and not is_part else "trouble.html"
        code = 200 if is_asked else status  # htmx shows it
        context = {"message": message, "status": status, "session": view and view.session, "queue": "", "place": ""}
        context |= PART if is_asked and is_part else {}
        return self._answer(request, template, context, code)

    async def _show(self, page: Page, request: Request) -> Response:
        async def answer(view: View) -> Response:
            return self._answer(request, page.template, await self._context(page, view, page.gather))

        return await self._guarded(request, answer)

    async def _show_later(self, page: Page, gather: Gather, request: Request) -> Response:
        async def answer(view: View) -> Response:
            return self._answer(request, page.template, {**await self._context(page, view, gather), **PART})

        return await self._guarded(request, answer)

    async def _context(self, page: Page, view: View, gather: Gather) -> Context:
        gathered = await gather(view)
        return {
            "view": view, "session": view.session, "place": page.place, "is_live": page.is_live, "queue": view.queue,
            "here": f"{view.path}?{query}" if (query := _query_of(view)) else view.path, "app": view.app, **gathered,
        }  # fmt: skip

    async def _stream(self, page: Page, request: Request) -> Response:
        try:
            view = await self._view(request)
        except Unauthorized:
            return Response(None, 204, {"HX-Redirect": "/sign-in"})
        who = view.session.identity
        if self.streams.total() >= MAX_STREAMS or self.streams[who] >= MAX_OWN_STREAMS:
            message = f"at most {MAX_STREAMS} pages are followed at a time, {MAX_OWN_STREAMS} with one token"
            raise TooMany(message, retry_in_ms=1_000)

        async def render() -> str:
            context = await self._context(page, view, page.gather)
            return self.templates.get_template(page.template).render(context, **PART)

        async def check() -> None:
            if await self.sessions.find(request) is None:
                raise Unauthorized("the session has ended")

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            self.streams[who] += 1
            try:
                await PageStream(newest, check, self._is_over)(scope, receive, send)
            finally:
                self.streams -= Counter([who])

        key = f"{view.session.identity} {request.url.path}?{request.url.query}"
        newest = partial(self.renderings.get, key, render, trio.current_time())  # never older than the page before it
        return _Asgi(serve)

    def _is_over(self) -> bool:
        return self.site.operators.app.is_draining

    async def _dialog(self, action: Action, request: Request) -> Response:
        """Show a dialog; one about more than an address can name, such as many chosen rows, is asked for by a form."""

        async def answer(view: View) -> Response:
            if request.method == "POST":
                view.query = {name: values[0] for name, values in read_form(await _body(request)).items()}
            asked = await action.describe(view)
            return self._answer(request, "dialog.html", {"action": action, "session": view.session, **asked})

        return await self._guarded(request, answer)

    async def _act(self, action: Action, request: Request) -> Response:
        async def answer(view: View) -> Response:
            form = read_form(await _body(request))
            view.session.check_post(form.pop("csrf", [""])[0])
            message = await action.handle(view, form)
            return self._answer(request, "done.html", {"message": message, "session": view.session})

        return await self._guarded(request, answer)

    async def _ask_token(self, request: Request) -> Response:
        context = {"message": "", "next": _inside(request.query_params.get("next", "/")), "session": None}
        return self._answer(request, "sign_in.html", context)

    async def _sign_in(self, request: Request) -> Response:
        form = read_form(await _body(request))
        to = _inside(form.get("next", ["/"])[0])
        try:
            session = await self.sessions.sign_in(form.get("token", [""])[0].strip(), _address(request))
        except FairqError as error:
            context = {"message": error.message, "next": to, "session": None}
            return self._answer(request, "sign_in.html", context, STATUS.get(error.code, 500))
        response = RedirectResponse(to, 303, _HEADERS)
        give(response, request, session)
        return response

    async def _nowhere(self, request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith("/api/"):
            raise HTTPException(404)
        return self._trouble(request, f"there is no page {request.url.path!r:.80}", 404, None)

    async def _sign_out(self, request: Request) -> Response:
        session = await self.sessions.find(request)
        if session is not None:
            session.check_post(read_form(await _body(request)).get("csrf", [""])[0])
            await self.sessions.sign_out(session)
        response = RedirectResponse("/sign-in", 303, _HEADERS)
        response.delete_cookie(COOKIE)
        return response


class _Static(StaticFiles):
    """Static files; browsers ask whether their copy is current."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        response = super().file_response(*args, **more)
        response.headers["Cache-Control"] = "no-cache"
        return response


class _Asgi(Response):
    """A response that is an application of its own."""

    def __init__(self, serve: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        super().__init__()
        self._serve = serve

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._serve(scope, receive, send)


async def _body(request: Request) -> bytes:
    body: bytes = await request.scope[INBOX].read(_MAX_FORM_BYTES, int)
    return body


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _query_of(view: View) -> str:
    return "&".join(f"{quote(name)}={quote(value)}" for name, value in view.query.items())


def _inside(to: str) -> str:
    """Return a path of ours to go on to, never an address elsewhere."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable() else "/"


def make_dashboard(operators: Operators, health: Health, nursery: trio.Nursery) -> Iterable[Route | Mount]:
    """Make the paths of the dashboard."""
    recent, finder = Recent(operators.app, nursery), Finder(operators.app.store)
    simulations, waits = Shared[Any](SIMULATED_S, MAX_GATHERING), Shared[Any](WAITS_S, MAX_GATHERING)
    site = Site(operators, health, recent, finder, simulations, waits)
    return Dashboard(site, Sessions(operators)).routes()
