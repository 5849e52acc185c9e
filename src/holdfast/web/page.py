"""The parts of every page: the request, the answer, and the template that draws it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from markupsafe import Markup

from holdfast.client.rest import PageCall
from holdfast.core.records import TokenRecord
from holdfast.core.words import say_bytes
from holdfast.web import acts, words
from holdfast.web.ansi import write_plain
from holdfast.web.reader import ApiReader
from holdfast.wire.operations.acts import ACTS
from holdfast.wire.states import find_hue

if TYPE_CHECKING:
    import jinja2  # imported at the first page, because a controller may never draw one

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
    last of each name. shared: the projects all of whose users may change its work (OWNER-1).
    hurry: a person waits for the page, which reads itself anew where a part is late."""

    reader: ApiReader
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    now: datetime
    shared: frozenset[str] = frozenset()
    hurry: bool = False

    @property
    def token(self) -> TokenRecord:
        """Return the token by which the browser acts."""
        return self.reader.token

    def may(self, role: str) -> bool:
        """Return whether the user's role reaches `role`."""
        return _RANKS.get(self.token.role, 0) >= _RANKS[role]

    def may_change(self, work: Any) -> bool:
        """Return whether the user may change a job, an array, a call set, a run or a schedule, as
        the API decides it (OWNER-1)."""
        if not self.may("submit") or self.may("admin"):
            return self.may("admin")
        spec = getattr(work, "spec", None)
        if getattr(spec, "executor", None):
            return False
        project = getattr(work, "project", None) or getattr(spec, "project", "")
        return work.owner in ("", self.token.acts_for) or project in self.shared

    def at(self, **changes: str | None) -> str:
        """Return the page's address with other parameters; the value None takes a parameter
        away."""
        kept = {**self.query, **changes}
        pairs = {name: value for name, value in kept.items() if value}
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: its template and what it shows.

    title: for the browser's tab. follows: names of changes after which the page is read anew
    (`live.name_changes`). every: seconds after which it is read anew in any case; 0: never. nonce:
    of the style elements that a script of the page makes; empty where there are none. location: the
    page to which the browser is sent instead. needed: how many things need a person, where it read them.
    """

    template: str
    title: str
    values: Mapping[str, Any]
    follows: tuple[str, ...] = ()
    every: int = 0
    status: int = 200
    nonce: str = ""
    location: str = ""
    needed: int | None = None


async def read_items(reader: ApiReader, call: PageCall[T]) -> list[T]:
    """Return the items of the first page of a list."""
    return (await reader.first(call)).items


def read_query(query_string: bytes) -> dict[str, str]:
    """Return the parameters of an address, the last of each name."""
    text = query_string.decode("latin-1")
    return dict(parse_qsl(text, keep_blank_values=False, max_num_fields=100))


async def read_shared(reader: ApiReader) -> frozenset[str]:
    """Return the projects whose work every user may change, where the user's role makes it matter."""
    if reader.token.role != "submit":
        return frozenset()
    projects = await reader.projects(waiting=False)
    return frozenset(each.name for each in projects if each.settings.get("shared"))


def draw_act(
    ask: PageRequest,
    name: str,
    what: str,
    params: Mapping[str, str] = MappingProxyType({}),
    *,
    work: Any = None,
    was: Any = None,
    button: str = "",
    main: bool = False,
    **more: Any,
) -> Markup:
    """Return the button of an act; nothing where the API would refuse it (ACT-1). work: what it
    changes, where that has an owner. was: what it changes, where the act's undo brings that back. button:
    another word on it. main: it is the page's first act. more: of `acts.write_act`."""
    act = ACTS[name]
    if not ask.may(act.role) or (work is not None and not ask.may_change(work)):
        return Markup("")
    if was is not None:
        more["undo_body"] = acts.make_way_back(name, was, ask.now)
    given = acts.write_act(name, what, params=params, **more)
    classes = "stop" if act.stops else "main" if main else ""
    return Markup('<button type="button" class="{}" data-act="{}">{}</button>').format(
        classes, given, button or act.button
    )


def _write_told(context: jinja2.runtime.Context, sentence: str) -> Markup:
    return words.write_told(sentence, context.get("now"))


def _write_bytes(count: float | None) -> str:
    return "–" if count is None else say_bytes(count)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        state=words.write_state,
        told=jinja2.pass_context(_write_told),
        plain=write_plain,
        reason=words.write_reason,
        wants=words.write_wants,
        browser=words.name_browser,
        setting=words.write_setting,
        hue=find_hue,
        number=words.write_number,
        span=words.write_span,
        bytes=_write_bytes,
        dollars=words.write_dollars,
        hours=words.write_hours,
        micros=words.write_micros,
    )
    made.globals.update(draw_line=words.draw_line, act=draw_act)
    return made


def write_yaml(value: object) -> str:
    """Return a value as YAML, for a person."""
    import yaml

    return yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True)


def draw(page: Page, ask: PageRequest, version: str, seen: str = "", needed: int = 0) -> bytes:
    """Return the page as HTML. version: of the fixed files, which browsers keep. seen: the word for the
    events before it was drawn. needed: how many things need a person."""
    template = _environment().get_template(page.template)
    text = template.render(
        ask=ask,
        page=page,
        places=PLACES,
        version=version,
        seen=seen,
        needed=needed,
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
    reader: ApiReader,
    path: str,
    params: Mapping[str, str],
    query_string: bytes,
    shared: frozenset[str] = frozenset(),
) -> PageRequest:
    """Return the request for a page, with the time at which it came."""
    return PageRequest(
        reader=reader,
        path=path,
        params=params,
        query=read_query(query_string),
        now=datetime.now(UTC),
        shared=shared,
    )


async def together(*reads: Any) -> list[Any]:
    """Wait for several reads at once, and return their results in order."""
    return list(await asyncio.gather(*reads))
