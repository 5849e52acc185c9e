"""Events: what happened, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.placement.ranks import say_ranks
from holdfast.core.records import EventRecord
from holdfast.web.page import Page, PageRequest, read_items

SHOWN_EVENTS = 200
ALIKE_SECONDS = timedelta(seconds=60)
"""Events that say the same within so long share a row."""
NAMED_RANKS = 6


class AlikeEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events that say the same: the newest of them, and in words their attempt and their ranks, where the
    message has them not, and how many they are."""

    newest: EventRecord
    place: str


def join_alike(events: Sequence[EventRecord]) -> list[AlikeEvents]:
    """Return rows of events, newest first: events that say the same about one job or thing share a
    row."""
    rows: dict[object, list[EventRecord]] = {}
    made = []
    for event in events:
        key = (event.kind, event.job_id, event.attempt, event.message, event.data.get("by"))
        found = rows.get(key)
        if found is None or found[0].at - event.at > ALIKE_SECONDS:
            found = rows[key] = []
            made.append(found)
        found.append(event)
    return [AlikeEvents(newest=each[0], place=_say_place(each)) for each in made]


def _say_place(events: Sequence[EventRecord]) -> str:
    newest, said = events[0], []
    if newest.attempt and f"attempt {newest.attempt}" not in newest.message:
        said.append(f"attempt {newest.attempt}")
    ranks = sorted({event.rank for event in events if event.rank is not None})
    if said and ranks:
        word = "rank" if len(ranks) == 1 else "ranks"
        said.append(f"{word} {say_ranks(ranks, most=NAMED_RANKS)}")
    if len(events) > max(1, len(ranks)):
        said.append(f"{len(events)} times")
    return ", ".join(said)


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    kind = ask.query.get("kind", "")
    call = JobMethods.events(  # a list, because it does not follow
        ask.reader, kinds=[kind] if kind else (), tail=SHOWN_EVENTS
    )
    found = await read_items(ask.reader, call)
    values = {"events": join_alike(found[::-1]), "kind": kind}
    return Page(template="events.html", title="Events", values=values, follows=("events",))
