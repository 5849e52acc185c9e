"""The parts of every page: the request, the answer, and the template that draws it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import jinja2
import msgspec

from holdfast.client.rest import PageCall
from holdfast.core.records import TokenRecord
from holdfast.web import words
from holdfast.web.reader import ApiReader

T = TypeVar("T")
PLACES = (
    ("/", "Now"),
    ("/jobs", "Jobs"),
    ("/hosts", "Hosts"),
    ("/queues", "Queues"),
    ("/pools", "Pools"),
    ("/workflows", "Workflows"),
    ("/calls", "Calls"),
    ("/schedules", "Schedules"),
    ("/events", "Events"),
    ("/report", "Report"),
    ("/settings", "Settings"),
)
_RANKS = {"read": 1, "submit": 2, "admin": 3}


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a page. params: what the path names. query: the address's parameters, the
    last of each name."""

    reader: ApiReader
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    now: datetime

    @property
    def token(self) -> TokenRecord:
        """Return the token by which the browser acts."""
        return self.reader.token

    def may(self, role: str) -> bool:
        """Return whether the user's role reaches `role`."""
        return _RANKS.get(self.token.role, 0) >= _RANKS[role]

    def at(self, **changes: str | None) -> str:
        """Return the page's address with other parameters; None takes one away."""
        kept = {**self.query, **changes}
        pairs = {name: value for name, value in kept.items() if value}
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: its template and what it shows.

    title: for the browser's tab. follows: names of changes after which the page is read anew
    (`live.name_changes`). every: seconds after which it is read anew in any case; 0: never. nonce:
    of the style elements that a script of the page makes; empty where there are none.
    """

    template: str
    title: str
    values: Mapping[str, Any]
    follows: tuple[str, ...] = ()
    every: int = 0
    status: int = 200
    nonce: str = ""


async def read_items(reader: ApiReader, call: PageCall[T]) -> list[T]:
    """Return the items of the first page of a list."""
    return (await reader.first(call)).items


def read_query(query_string: bytes) -> dict[str, str]:
    """Return the parameters of an address, the last of each name."""
    text = query_string.decode("latin-1")
    return dict(parse_qsl(text, keep_blank_values=False, max_num_fields=100))


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        state=words.write_state,
        hue=words.find_hue,
        number=words.write_number,
        span=words.write_span,
        bytes=words.write_bytes,
        dollars=words.write_dollars,
        hours=words.write_hours,
        micros=words.write_micros,
    )
    made.globals.update(draw_line=words.draw_line)
    return made


def draw(page: Page, ask: PageRequest, version: str) -> bytes:
    """Return the page as HTML. version: of the fixed files, which browsers keep."""
    template = _environment().get_template(page.template)
    text = template.render(
        ask=ask,
        page=page,
        places=PLACES,
        version=version,
        age=functools.partial(words.write_age, now=ask.now),
        moment=words.read_moment,
        now=ask.now,
        **page.values,
    )
    return text.encode()


def draw_plain(template: str, **values: Any) -> bytes:
    """Return a page that needs no sign-in as HTML."""
    return _environment().get_template(template).render(**values).encode()


def make_request(
    reader: ApiReader, path: str, params: Mapping[str, str], query_string: bytes
) -> PageRequest:
    """Return the request for a page, with the time at which it came."""
    return PageRequest(
        reader=reader,
        path=path,
        params=params,
        query=read_query(query_string),
        now=datetime.now(UTC),
    )


async def together(*reads: Any) -> list[Any]:
    """Wait for several reads at once, and return their results in order."""
    return list(await asyncio.gather(*reads))
