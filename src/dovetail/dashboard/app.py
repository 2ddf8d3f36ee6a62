"""The web application: routes and handlers. Reads run in threads, a few at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from dovetail.audit.server_names import name_server, name_server_briefly, named_by
from dovetail.audit.tables import Tables
from dovetail.dashboard import message, pages
from dovetail.dashboard.audit import (
    MAX_OFFSET,
    Cause,
    Choice,
    Listing,
    Verdict,
    locate,
    read_findings_about,
    read_listing,
    read_verdicts,
)
from dovetail.dashboard.audit_page import audit_page
from dovetail.dashboard.guard import COOKIE, COOKIE_AGE_S, Access, Guard
from dovetail.dashboard.hub import MAX_LISTENERS, Hub, Sources
from dovetail.dashboard.markup import Html
from dovetail.dashboard.message_page import message_page
from dovetail.dashboard.query import Query, parse_query
from dovetail.dashboard.search import MIN_INDEXED_BYTES, Answer, search
from dovetail.dashboard.site_sources import Damage
from dovetail.model.address import URI_PREFIX, Address, AddressPrefix, parse_address, parse_name
from dovetail.model.errors import DovetailError, UsageError
from dovetail.receipt.build import build_receipt
from dovetail.report.text import name_briefly, show
from dovetail.runtime.server_health import OK

T = TypeVar("T")
READERS_AT_A_TIME = 4
_HERE = Path(__file__).parent / "static"
_STATIC = {
    "dashboard.css": (_HERE / "dashboard.css", "text/css"),
    "dashboard.js": (_HERE / "dashboard.js", "text/javascript"),
    "report.css": (_HERE.parent.parent / "report" / "static" / "report.css", "text/css"),
}


def build_app(sources: Sources, access: Access, hub: Hub) -> Starlette:
    """The application over these sources."""
    dashboard = Dashboard(sources, access, hub)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with hub.running():
            yield

    return Starlette(
        routes=[
            Route("/", dashboard.show_live),
            Route("/search", dashboard.show_search),
            Route("/message/{address}", dashboard.show_message),
            Route("/message/{address}/raw", dashboard.send_raw),
            Route("/message/{address}/receipt", dashboard.send_receipt),
            Route("/audit", dashboard.show_audit),
            Route("/login", dashboard.log_in),
            Route("/healthz", dashboard.send_health),
            Route("/static/{name}", send_static),
            Route("/api/live", dashboard.send_live),
            Route("/api/events", dashboard.stream),
            Route("/api/search", dashboard.search),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={404: _not_found},
        lifespan=lifespan,
    )


class Dashboard:
    """The handlers."""

    def __init__(self, sources: Sources, access: Access, hub: Hub) -> None:
        self._sources = sources
        self._access = access
        self._hub = hub
        self._limiter = anyio.CapacityLimiter(READERS_AT_A_TIME)

    async def show_live(self, request: Request) -> Response:  # noqa: ARG002
        return HTMLResponse(pages.live_page())

    async def send_health(self, request: Request) -> Response:  # noqa: ARG002
        health = self._hub.health
        return PlainTextResponse(f"{health}\n", 200 if health == OK else 503)

    async def send_live(self, request: Request) -> Response:  # noqa: ARG002
        return Response(self._hub.latest, media_type="application/json")

    async def stream(self, request: Request) -> Response:  # noqa: ARG002
        if self._hub.listeners >= MAX_LISTENERS:
            return PlainTextResponse(f"{MAX_LISTENERS} pages are open already; close one\n", 503)
        return StreamingResponse(self._hub.listen(), media_type="text/event-stream")

    async def show_search(self, request: Request) -> Response:
        given = dict(request.query_params)
        servers = await self._read(self._servers)
        try:
            return HTMLResponse(pages.search_page(parse_query(given), servers, given))
        except UsageError as error:
            return HTMLResponse(pages.search_page(Query(), servers, given, str(error)), 400)

    async def search(self, request: Request) -> Response:
        given = dict(request.query_params)
        try:
            query = parse_query(given)
            answer = await self._read(partial(self._search, query, given.get("token", "")))
        except UsageError as error:
            return _json({"error": str(error)}, 400)
        with named_by(self._hub.names):
            return _json(describe_answer(answer))

    async def show_message(self, request: Request) -> Response:
        address = _address_in(request)
        if address is None:
            return await self._find_message(request)
        page, damages = await self._read(partial(self._message_page, address))
        return _unknown_message(request, damages) if page is None else HTMLResponse(page)

    async def _find_message(self, request: Request) -> Response:
        """An address prefix leads to its message, or to the search if it is ambiguous."""
        given = request.path_params["address"]
        try:
            prefix = parse_name(_with_scheme(given)).address
        except ValueError:
            return _unknown_message(request)
        if prefix is not None and len(prefix.coarse) >= MIN_INDEXED_BYTES:
            found = await self._read(partial(self._find, prefix))
            if len(found) == 1:
                return RedirectResponse(f"/message/{found.pop().hex()}")
        return RedirectResponse(f"/search?{urlencode({'address': given})}")

    async def send_raw(self, request: Request) -> Response:
        address = _address_in(request)
        raw = await self._read(partial(self._raw, address)) if address else None
        if address is None or raw is None:
            return _unknown_message(request)
        return _attachment(raw, f"{address.hex()[:16]}.bin", "application/octet-stream")

    async def send_receipt(self, request: Request) -> Response:
        address = _address_in(request)
        if address is None:
            return _unknown_message(request)
        try:
            data = await self._read(partial(self._receipt, address))
        except (DovetailError, OSError) as error:
            return HTMLResponse(pages.problem_page("No receipt", str(error)), 409)
        return _attachment(data, f"{address.hex()[:16]}.receipt.json", "application/json")

    async def show_audit(self, request: Request) -> Response:
        given = request.query_params
        offset = int(given["offset"]) if given.get("offset", "").isdecimal() and len(given["offset"]) < 10 else 0
        choice = Choice(
            given.get("check", ""), given.get("severity", ""), given.get("show") == "each", min(offset, MAX_OFFSET)
        )
        overview, listing = self._hub.overview, Listing()
        if overview.tables is not None:
            # from the same run as the numbers above them, even while the next run is being written
            try:
                listing = await self._read(partial(self._listing, overview.tables, choice))
            except (DovetailError, OSError) as error:
                return HTMLResponse(pages.problem_page("Audit", str(error)), 503)
        with named_by(self._hub.names):
            return HTMLResponse(audit_page(overview, listing, choice))

    async def log_in(self, request: Request) -> Response:
        if "authorization" not in request.headers:
            return HTMLResponse(pages.login_page())
        if not self._access.admits(request.headers):
            return PlainTextResponse("wrong token\n", 401)
        answer = Response(status_code=204)
        answer.set_cookie(
            COOKIE, self._access.cookie(), max_age=COOKIE_AGE_S, httponly=True, samesite="strict", path="/"
        )
        return answer

    async def _read(self, act: Callable[[], T]) -> T:
        with named_by(self._hub.names):
            return await anyio.to_thread.run_sync(act, limiter=self._limiter)

    def _servers(self) -> dict[str, str]:
        with self._sources.site.open() as (sources, _):
            return {source.server: name_server_briefly(source.server) for source in sources}

    def _find(self, prefix: AddressPrefix) -> set[Address]:
        found: set[Address] = set()
        with self._sources.site.open() as (sources, _):
            for source in sources:
                with contextlib.suppress(DovetailError, OSError):  # reported by the search, which comes next
                    found.update(filter(prefix.matches, source.find(prefix.coarse)))
        return found

    def _search(self, query: Query, token: str) -> Answer:
        with self._sources.site.open() as (sources, damages):
            answer = search(sources, query, token)
            answer.damages = [*damages, *answer.damages]
            return answer

    def _message_page(self, address: Address) -> tuple[Html | None, list[Damage]]:
        with self._sources.site.open() as (sources, opening):
            trace, damages = message.trace_message(sources, address)
            if trace is None:
                return None, [*opening, *damages]
            trace.damages = [*opening, *trace.damages]
            verdicts, findings = self._judge(address)
            return message_page(trace, message.draw(trace, sources), verdicts, findings), []

    def _judge(self, address: Address) -> tuple[list[Verdict], list[Cause]]:
        """What the latest audit says about a message; nothing if there is none or it cannot be read now."""
        tables = self._sources.tables
        if tables is None:
            return [], []
        try:
            return read_verdicts(tables, address), read_findings_about(tables, address)
        except (DovetailError, OSError, pa.ArrowException) as error:
            return [Verdict("unsure", f"the audit's tables cannot be read now: {error}")], []

    def _listing(self, tables: Tables, choice: Choice) -> Listing:
        listing = read_listing(tables, choice)
        with self._sources.site.open() as (sources, _):
            locate(listing.causes, sources)
        return listing

    def _raw(self, address: Address) -> bytes | None:
        with self._sources.site.open() as (sources, _):
            for source in sources:
                with contextlib.suppress(DovetailError, OSError):
                    raw = source.raw(address)
                    if raw is not None:
                        return raw
        return None

    def _receipt(self, address: Address) -> bytes:
        with self._sources.site.open() as (sources, _):
            return build_receipt(sources, address).data


def describe_answer(answer: Answer) -> dict[str, Any]:
    """An answer as plain data, with peers' text escaped for display."""
    return {
        "results": [
            {
                "address": found.hop.message.hex(),
                "name": name_briefly(found.hop.message, found.hop.fabric),
                "fabric": str(found.hop.fabric),
                "server": show(found.hop.server),
                "server_name": show(name_server_briefly(found.hop.server)),
                "seq": found.hop.seq,
                "at_us": found.hop.at_us,
                "stage": str(found.hop.stage),
                "reason": None if found.hop.reason is None else str(found.hop.reason),
                "counterpart": show(name_server(found.hop.counterpart or "")),
                "type": show(found.type),
                "hops": found.hops,
            }
            for found in answer.found.values()
        ],
        "damages": [{"where": show(each.where), "text": show(each.text)} for each in answer.damages],
        "hops_read": answer.hops_read,
        "hops_left": answer.hops_left,
        "without_bytes": answer.without_bytes,
        "reached_us": answer.reached_us,
        "token": answer.token,
    }


async def send_static(request: Request) -> Response:
    """One of the few files of the page."""
    known = _STATIC.get(request.path_params["name"])
    if known is None:
        return await _not_found(request, Exception())
    return FileResponse(known[0], media_type=known[1])


async def _not_found(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return HTMLResponse(pages.problem_page("Not here", "There is no such page."), 404)


def _address_in(request: Request) -> Address | None:
    given = request.path_params["address"]
    try:
        return parse_address(_with_scheme(given))
    except ValueError:
        return None


def _with_scheme(given: str) -> str:
    """A message in its address form: the path of a page cannot contain the slash of a URI."""
    return f"{URI_PREFIX}{given}" if given.startswith("Qm") else given


def _unknown_message(request: Request, damages: Sequence[Damage] = ()) -> Response:
    given = request.path_params["address"]
    remarks = [f"{damage.where} cannot be read in full: {damage.text}" for damage in damages]
    words = f"No journal here knows a message {given[:100]!r}."
    return HTMLResponse(pages.problem_page("Not here", words, *remarks), 404)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _attachment(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
