"""Calls: the sets of calls of Python functions, how far each is, and the executors that are warm."""

from __future__ import annotations

from holdfast.client.methods.calls import CallMethods
from holdfast.client.methods.jobs import JobMethods
from holdfast.core.calls.values import CallState
from holdfast.web.page import Page, PageRequest, read_items, together

SHOWN_SETS = 100
SHOWN_FAILED = 50
SHOWN_EXECUTORS = 100
MAX_VALUE_CHARS = 600
_LIVE = ("waiting", "queued", "reserved", "running", "draining")


async def show_all(ask: PageRequest) -> Page:
    """Make the page of all call sets."""
    sets, executors, hosts = await together(
        read_items(ask.reader, CallMethods.call_sets(ask.reader)),
        read_items(
            ask.reader,
            JobMethods.jobs(ask.reader, states=_LIVE, executors="only", page_size=SHOWN_EXECUTORS),
        ),
        ask.reader.hosts(),
    )
    values = {
        "sets": sets[:SHOWN_SETS],
        "executors": executors,
        "models": [host for host in hosts if host.models],
    }
    return Page(template="calls.html", title="Calls", values=values, follows=("calls",), every=5)


async def show_one(ask: PageRequest) -> Page:
    """Make the page of one call set: its counts, its failed calls with their errors. Raises NotFound."""
    reader, set_id = ask.reader, ask.params["set"]
    found, failed = await together(
        reader.call_set(set_id), reader.call_results(set_id, states=["failed"], limit=SHOWN_FAILED)
    )
    views = await together(*(reader.call_view(set_id, each.index) for each in failed.results))
    waiting = None
    ended = found.succeeded + found.failed + found.cancelled
    if found.state != "ended" and ended < found.submitted:
        waiting = await _find_waiting(ask, set_id, ended)
    values = {
        "set": found,
        "over": ended,
        "failed": views,
        "waiting": waiting,
        "chars": MAX_VALUE_CHARS,
        "states": [state.name.lower() for state in CallState],
    }
    return Page(
        template="call_set.html",
        title=found.spec.function,
        values=values,
        follows=("calls",),
        every=0 if found.state == "ended" else 5,
    )


async def _find_waiting(ask: PageRequest, set_id: str, index: int) -> object:
    """Return a call that has not ended, because its state says what the set waits for; None where
    every call has ended."""
    view = await ask.reader.call_view(set_id, index)
    return view if view.state in ("ready", "running", "backing_off") else None
