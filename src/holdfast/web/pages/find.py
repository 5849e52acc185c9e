"""Search over the whole cluster: jobs, hosts, queues, pools, workflows, schedules and call sets, by a
part of the name or the beginning of the id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

import msgspec

from holdfast.client.methods.calls import CallMethods
from holdfast.client.methods.jobs import JobMethods
from holdfast.client.methods.workflows import WorkflowMethods
from holdfast.core.records import JobRecord
from holdfast.web.page import Page, PageRequest, read_items, together

SHOWN_JOBS = 50
SHOWN_HOSTS = 50
LOOKED_AT = 500
"""The newest runs and call sets among which a name is looked for."""
_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{4,20}")


class FoundThing(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that was found: its kind, its name, its id where it has one, its state, its page."""

    kind: str
    name: str
    link: str
    id: str = ""
    state: str = ""


async def show(ask: PageRequest) -> Page:
    """Make the page, or send the browser on: to the only thing that is meant, or to the list of jobs
    for a filter of words."""
    reader, text = ask.reader, ask.query.get("q", "").strip()
    if ":" in text or not text:
        return _send_on("/jobs?" + urlencode({"q": text}) if text else "/jobs")
    word = text.lower()
    named = JobMethods.jobs(reader, match=text[:128], page_size=SHOWN_JOBS)
    jobs, by_id, hosts, queues, pools, schedules, runs, sets = await together(
        read_items(reader, named),
        _find_by_id(ask, word),
        reader.hosts(include_terminated=True, match=text[:128], limit=SHOWN_HOSTS),
        reader.queues(waiting=False),
        reader.pools(),
        reader.schedules(),
        read_items(reader, WorkflowMethods.workflows(reader, page_size=LOOKED_AT)),
        read_items(reader, CallMethods.call_sets(reader, page_size=LOOKED_AT)),
    )
    cut = len(jobs) == SHOWN_JOBS
    jobs = [*by_id, *(job for job in jobs if job.id not in {each.id for each in by_id})]
    things = [
        *_named("host", "/hosts/", ((h.name, h.id, h.state.value) for h in hosts), word),
        *_named("queue", "/jobs?q=queue:", ((q.name, "", "") for q in queues), word),
        *_named("pool", "/pools/", ((p.name, "", "") for p in pools), word),
        *_named("schedule", "/schedules/", ((s.name, "", "") for s in schedules), word),
        *_found_by_id(
            "workflow", "/workflows/", ((r.name, r.id, r.state.value) for r in runs), word
        ),
        *_found_by_id(
            "call set", "/calls/", ((s.spec.function, s.id, str(s.state)) for s in sets), word
        ),
    ]
    meant = find_meant(word, jobs, things, cut=cut)
    if meant:
        return _send_on(meant)
    values = {"jobs": jobs, "things": things, "text": text, "most": SHOWN_JOBS}
    return Page(template="find.html", title=f"Found for {text}", values=values)


def find_meant(
    word: str, jobs: Sequence[JobRecord], things: Sequence[FoundThing], *, cut: bool = False
) -> str:
    """Return the page of the one thing that a word means: the only one found, or the only one whose
    whole name or id it is; empty where none or several are. cut: there are more jobs than these, of
    which some may have the name too."""
    found = [("" if cut else job.name.lower(), job.id, f"/jobs/{job.id}") for job in jobs]
    found += [(thing.name.lower(), thing.id, thing.link) for thing in things]
    exact = [link for name, id_, link in found if word in (name, id_)]
    chosen = exact if exact else [link for _, _, link in found]
    return chosen[0] if len(chosen) == 1 else ""


async def _find_by_id(ask: PageRequest, word: str) -> list[JobRecord]:
    if not _ID.fullmatch(word):
        return []
    return await read_items(ask.reader, JobMethods.jobs(ask.reader, prefix=word, page_size=10))


def _named(
    kind: str, link: str, names: Iterable[tuple[str, str, str]], word: str
) -> list[FoundThing]:
    return [
        FoundThing(kind=kind, name=name, id=id_, state=state, link=link + quote(name, safe=""))
        for name, id_, state in names
        if word in name.lower() or (id_ and id_.startswith(word))
    ]


def _found_by_id(
    kind: str, link: str, names: Iterable[tuple[str, str, str]], word: str
) -> list[FoundThing]:
    return [
        FoundThing(kind=kind, name=name, id=id_, state=state, link=link + id_)
        for name, id_, state in names
        if word in name.lower() or id_.startswith(word)
    ]


def _send_on(location: str) -> Page:
    return Page(template="find.html", title="", values={}, location=location)
