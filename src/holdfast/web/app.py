"""The dashboard as an application in front of the API: its own pages are served here, and every other
path goes on to the API.

- A page is served only under an allowed host name. No GET changes anything: a link's secret
  stands in the address's fragment, and the page's script posts it.
- What a job made is never a page: logs are escaped into lines, and files are downloads, in a
  sandbox of their own.
"""

from __future__ import annotations

import functools
import gzip
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.core.records import TokenRecord
from holdfast.errors import Forbidden, HoldfastError, Unauthorized, ValidationError
from holdfast.web.browsers import (
    PROOF_HEADER,
    SECURITY_HEADERS,
    SIGN_IN_SECONDS,
    check_origin,
    find_header,
    is_ours,
    read_cookie,
    write_cookie,
    write_policy,
)
from holdfast.web.fixed import TYPES, compress_fixed, fixed_version, read_fixed_files
from holdfast.web.live import Changes
from holdfast.web.page import PageRequest, draw, draw_plain, make_request, read_shared
from holdfast.web.pages import (
    calls,
    errors,
    events,
    find,
    hosts,
    jobs,
    now,
    report,
    shell,
    workflows,
)
from holdfast.web.pages.job import again
from holdfast.web.pages.job import page as job
from holdfast.web.pages.job.files import open_output
from holdfast.web.pages.job.found import search_output
from holdfast.web.pages.job.gang import send_grid
from holdfast.web.pages.job.output import follow_output, send_part
from holdfast.web.pages.operate import pools, queues, schedules, settings
from holdfast.web.reader import ApiReader

log = logging.getLogger("holdfast.web")
MAX_BODY_BYTES = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_FOR = "public, max-age=31536000, immutable"
_PAGES: tuple[tuple[str, Callable[[PageRequest], Any]], ...] = (
    (r"/", now.show),
    (r"/jobs", jobs.show),
    (r"/jobs/(?P<job>[^/]+)", job.show),
    (r"/jobs/(?P<job>[^/]+)/shell", shell.show),
    (r"/jobs/(?P<job>[^/]+)/again", again.show),
    (r"/hosts", hosts.show_all),
    (r"/hosts/(?P<host>[^/]+)", hosts.show_one),
    (r"/queues", queues.show),
    (r"/pools", pools.show_all),
    (r"/pools/(?P<pool>[^/]+)", pools.show_one),
    (r"/workflows", workflows.show_all),
    (r"/workflows/(?P<run>[^/]+)", workflows.show_one),
    (r"/calls", calls.show_all),
    (r"/calls/(?P<set>[^/]+)", calls.show_one),
    (r"/schedules", schedules.show_all),
    (r"/schedules/(?P<schedule>[^/]+)", schedules.show_one),
    (r"/find", find.show),
    (r"/events", events.show),
    (r"/report", report.show),
    (r"/settings", settings.show),
    (r"/settings/webhooks/(?P<hook>[^/]+)", settings.show_webhook),
)
_STREAMS: dict[str, Any] = {"output": follow_output, "search": search_output}
_ANSWERS: dict[str, Any] = {"lines": send_part, "ranks": send_grid}
"""The parts of a job's page that its script reads: those that go on, and those that are whole."""
_FOUND: dict[str, Any] = {"/find/words": jobs.send_words, "/find/hosts": hosts.send_hosts}
"""Answers to a page that is drawn already: words that complete a filter, and all that it matches."""
_DOWNLOADS = {
    "log": ("/v1/jobs/{job}/logs", ("attempt", "rank", "stream")),
    "checkpoint": ("/v1/jobs/{job}/checkpoint", ("rank", "number")),
}
"""The files that a page offers: the API's path of each, and the parameters that go along."""


class NewSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A new sign-in: the secret for the browser's cookie, and the proof for its pages."""

    secret: str
    proof: str


class SignIns(Protocol):
    """The browsers that are signed in, as the controller knows them."""

    async def find(self, secret: str) -> TokenRecord:
        """Return the token by which a browser acts. Raises Unauthorized."""

    async def check(self, secret: str, proof: str) -> TokenRecord:
        """Return the token by which a browser acts, as `find` does, for a request that also shows
        the browser's proof."""

    async def sign_in(self, link: str, browser: str, address: str) -> NewSignIn:
        """Spend a link. Raises Unauthorized where the link is over."""

    async def sign_out(self, secret: str) -> None:
        """End a browser's sign-in."""


class WebApp:
    """The application as uvicorn calls it. origins: returns the origins of the pages, first the one
    that links name. is_closing: returns True once the server stops, so that streams end. seen:
    returns a word that changes with every event."""

    def __init__(
        self,
        api: ASGIApp,
        sign_ins: SignIns,
        origins: Callable[[], Sequence[str]],
        is_closing: Callable[[], bool] = lambda: False,
        seen: Callable[[], str] = lambda: "",
    ) -> None:
        self._api, self._sign_ins, self._origins = api, sign_ins, origins
        self._is_closing, self._seen = is_closing, seen
        watcher = TokenRecord(id="dashboard", role="read", name="dashboard", created_at=_EPOCH)
        self._needs = now.NeedCounts()
        self._changes = Changes(lambda: ApiReader(api, watcher), seen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._find_answer(scope) if scope["type"] == "http" else None
        visits = scope["type"] == "http" and self._is_visit(scope)
        if answer is None:
            if await self._ask_api(scope, receive, send, pages=visits):
                return
            answer = functools.partial(self._show_page, errors.show_nothing, {})
        try:
            response = await answer(scope, receive)
        except HoldfastError as error:
            response = _draw_alone(error.status, error.message) if visits else _refuse(error)
        except Exception:
            log.exception("the page %s failed", scope["path"])
            response = _draw_alone(500, "The server's log has why.")
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        _compress_page(scope, response)
        await response(scope, receive, send)

    def _is_visit(self, scope: Scope) -> bool:
        """Return whether a person's browser goes to an address among those of the pages."""
        visits = find_header(scope, b"sec-fetch-dest") == "document" and scope["method"] == "GET"
        return visits and not scope["path"].startswith("/v1/") and is_ours(scope, self._origins())

    async def _ask_api(self, scope: Scope, receive: Receive, send: Send, *, pages: bool) -> bool:
        """Let the API answer; return False, with nothing sent, where it has no such path and the
        dashboard shows a page in place of that. pages: the dashboard does."""
        known = True

        async def watch(message: Any) -> None:
            nonlocal known
            known = known and not (pages and message.get("status") == 404)
            if known:
                await send(message)

        await self._api(scope, receive, watch)
        return known

    def _find_answer(self, scope: Scope) -> Callable[[Scope, Receive], Any] | None:
        """Return the function of the dashboard that answers a request; None for a request of the
        API."""
        path, method = scope["path"], scope["method"]
        fixed: dict[tuple[str, str], Callable[[Scope, Receive], Any]] = {
            ("GET", "/sign-in"): self._show_sign_in,
            ("POST", "/sign-in"): self._sign_in,
            ("POST", "/sign-out"): self._sign_out,
            ("GET", "/live"): self._stream_changes,
        }
        found = fixed.get((method, path))
        if found is not None:
            return found
        if method not in ("GET", "HEAD"):
            return None
        if path.startswith("/static/"):
            return self._send_fixed
        part = re.fullmatch(r"/jobs/[^/]+/(output|search|lines|ranks)", path)
        if part is not None:
            streams, answers = _STREAMS.get(part[1]), _ANSWERS.get(part[1])
            if streams is not None:
                return functools.partial(self._stream_part, streams)
            return functools.partial(self._send_part, answers)
        if path in _FOUND:
            return functools.partial(self._send_part, _FOUND[path])
        if re.fullmatch(r"/jobs/[^/]+/download/[a-z]+", path):
            return self._download
        if path == "/" and not is_ours(scope, self._origins()):
            return None  # the API has a page of its own there, which needs no sign-in
        for pattern, show in _PAGES:
            match = re.fullmatch(pattern, scope["raw_path"].decode("latin-1"))
            if match is not None:
                params = {name: unquote(value) for name, value in match.groupdict().items()}
                return functools.partial(self._show_page, show, params)
        return None

    # ---- pages
    async def _show_page(
        self, show: Any, params: dict[str, str], scope: Scope, receive: Receive
    ) -> Response:
        if not is_ours(scope, self._origins()):
            return _plain(421, f"The dashboard's pages are at {self._origins()[0]}{scope['path']}")
        secret = read_cookie(scope)
        if secret is None:
            return _page(draw_plain("again.html", version=fixed_version()), 401)
        try:
            token = await self._sign_ins.find(secret)
        except Unauthorized:
            return self._sign_in_page(401)
        reader = ApiReader(self._api, token)
        shared = await read_shared(reader)
        ask = make_request(reader, scope["path"], params, scope["query_string"], shared)
        if find_header(scope, b"sec-fetch-dest") == "document":
            ask = msgspec.structs.replace(ask, hurry=True)
        seen = self._seen()  # before the facts are read, so that a later one is noticed
        try:
            page = await show(ask)
        except HoldfastError as error:
            page = errors.show_error(ask, error)
        if page.location:
            return Response(status_code=303, headers={"Location": page.location})
        needed = await self._needs.find(ask, page)
        response = _page(draw(page, ask, fixed_version(), seen, needed), page.status)
        if page.nonce:
            response.headers["Content-Security-Policy"] = write_policy(page.nonce)
        return response

    async def _show_sign_in(self, scope: Scope, receive: Receive) -> Response:
        if not is_ours(scope, self._origins()):
            return _plain(421, f"The dashboard's pages are at {self._origins()[0]}/")
        return self._sign_in_page(200)

    def _sign_in_page(self, status: int) -> Response:
        return _page(draw_plain("sign_in.html", version=fixed_version()), status)

    async def _send_fixed(self, scope: Scope, receive: Receive) -> Response:
        name = scope["path"].removeprefix("/static/")
        files = read_fixed_files()
        if name not in files:
            return _plain(404, "There is no such file.")
        headers = {"Cache-Control": _KEPT_FOR, "Vary": "Accept-Encoding"}
        body = files[name]
        if "gzip" in (find_header(scope, b"accept-encoding") or ""):
            body, headers["Content-Encoding"] = compress_fixed(name), "gzip"
        return Response(body, 200, headers, TYPES[name.rpartition(".")[2]])

    # ---- signing in and out
    async def _sign_in(self, scope: Scope, receive: Receive) -> Response:
        check_origin(scope, self._origins())
        link = _read_link(await _read_body(receive))
        browser = (find_header(scope, b"user-agent") or "")[:200]
        address = scope["client"][0] if scope.get("client") else ""
        made = await self._sign_ins.sign_in(link, browser, address)
        secure = self._is_secure(scope)
        response = Response(
            msgspec.json.encode({"proof": made.proof}), 200, None, "application/json"
        )
        cookie = write_cookie(made.secret, secure=secure, seconds=SIGN_IN_SECONDS)
        response.headers["Set-Cookie"] = cookie
        return response

    async def _sign_out(self, scope: Scope, receive: Receive) -> Response:
        await self._check_proof(scope)
        await self._sign_ins.sign_out(read_cookie(scope) or "")
        response = Response(status_code=204)
        response.headers["Set-Cookie"] = write_cookie("", secure=self._is_secure(scope))
        return response

    def _is_secure(self, scope: Scope) -> bool:
        """Return whether the browser reaches this page by TLS, also through a proxy."""
        origin = find_header(scope, b"origin") or ""
        return scope.get("scheme") == "https" or origin.startswith("https://")

    async def _check_proof(self, scope: Scope) -> TokenRecord:
        """Return the caller of a stream or an act. Raises Unauthorized without the proof, Forbidden
        for another origin's page (WEB-2)."""
        check_origin(scope, self._origins())
        proof = find_header(scope, PROOF_HEADER) or ""
        return await self._sign_ins.check(read_cookie(scope) or "", proof)

    # ---- streams and files
    async def _stream_changes(self, scope: Scope, receive: Receive) -> Response:
        await self._check_proof(scope)
        return self._stream(scope, self._changes.stream())

    async def _ask_part(self, scope: Scope) -> PageRequest:
        """Return the request for a part of a job's page. Raises Unauthorized without the proof."""
        token = await self._check_proof(scope)
        job_id = unquote(scope["raw_path"].decode("latin-1").split("/")[2])
        reader = ApiReader(self._api, token)
        return make_request(reader, scope["path"], {"job": job_id}, scope["query_string"])

    async def _stream_part(self, part: Any, scope: Scope, receive: Receive) -> Response:
        return self._stream(scope, part(await self._ask_part(scope)))

    async def _send_part(self, part: Any, scope: Scope, receive: Receive) -> Response:
        response: Response = await part(await self._ask_part(scope))
        return response

    def _stream(self, scope: Scope, pieces: AsyncIterator[bytes]) -> Response:
        secret, proof = read_cookie(scope) or "", find_header(scope, PROOF_HEADER) or ""

        async def checked() -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    await self._sign_ins.check(secret, proof)  # remembered for a moment
                    if self._is_closing():
                        return
                    yield piece
            except HoldfastError as error:
                told = msgspec.json.encode({"code": error.code, "detail": error.message})
                yield b"event: problem\ndata: " + told + b"\n\n"

        return StreamingResponse(checked(), media_type="text/event-stream")

    async def _download(self, scope: Scope, receive: Receive) -> Response:
        """Send what a job made as a file, which no browser opens as a page."""
        if not is_ours(scope, self._origins()):
            raise Forbidden("files of the dashboard are sent to its own pages only")
        token = await self._sign_ins.find(read_cookie(scope) or "")
        _, _, job_id, _, kind = scope["raw_path"].decode("latin-1").split("/")
        if kind == "output":
            reader = ApiReader(self._api, token)
            params = {"job": unquote(job_id)}
            ask = make_request(reader, scope["path"], params, scope["query_string"])
            name, pieces = await open_output(ask)
            return await attach(pieces, name)
        if kind not in _DOWNLOADS:
            return _plain(404, "There is no such file.")
        path, names = _DOWNLOADS[kind]
        reader = ApiReader(self._api, token)
        ask = make_request(reader, scope["path"], {"job": unquote(job_id)}, scope["query_string"])
        query = [(name, ask.query[name]) for name in names if name in ask.query]
        return await send_file(ask, path.replace("{job}", job_id), query, f"{job_id}.{kind}")


async def send_file(
    ask: PageRequest, path: str, query: Sequence[tuple[str, str]], name: str
) -> Response:
    """Return an answer of the API as a file to be kept."""
    from holdfast.client.rest import RestCall, read_nothing

    return await attach(ask.reader.pieces(RestCall("GET", path, read_nothing, tuple(query))), name)


async def attach(pieces: AsyncIterator[bytes], name: str) -> Response:
    """Return bytes as a file to be kept, which no browser opens as a page."""
    first = await anext(pieces, b"")  # a refusal comes before the first byte

    async def all_pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    shown = re.sub(r"[^\w.\[\]-]", "_", name)
    headers = {
        "Content-Disposition": f'attachment; filename="{shown}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return StreamingResponse(all_pieces(), 200, headers, "application/octet-stream")


def _compress_page(scope: Scope, response: Response) -> None:
    """Have a page sent compressed where the browser takes that. A page holds no secret whose length
    could tell it: cookie and proof stand in none."""
    html = response.headers.get("content-type", "").startswith("text/html")
    if html and "gzip" in (find_header(scope, b"accept-encoding") or ""):
        response.body = gzip.compress(response.body, 5, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))


def _page(body: bytes, status: int) -> Response:
    return Response(body, status, None, "text/html; charset=utf-8")


def _draw_alone(status: int, message: str) -> Response:
    """Return the page of an error for a browser that may not be signed in."""
    named = errors.name_error(status)
    return _page(
        draw_plain("alone.html", version=fixed_version(), message=message, **named), status
    )


def _plain(status: int, text: str) -> Response:
    return Response(f"{text}\n", status, None, "text/plain; charset=utf-8")


def _refuse(error: HoldfastError) -> Response:
    body = msgspec.json.encode({"code": error.code, "detail": error.message})
    return Response(body, error.status, None, "application/json")


def _read_link(body: bytes) -> str:
    try:
        link: str = msgspec.json.decode(body, type=_LinkBody).link
        return link
    except msgspec.DecodeError as error:
        raise ValidationError(f"the body is not a link: {error}", field="link") from None


class _LinkBody(msgspec.Struct, frozen=True):
    link: str


async def _read_body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise ValidationError(f"the body is over {MAX_BODY_BYTES} bytes")
        if message["type"] != "http.request" or not message.get("more_body", False):
            return body
