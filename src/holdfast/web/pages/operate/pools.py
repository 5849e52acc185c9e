"""Pools: hosts that come and go with the queue, their cycles and their money."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

import msgspec

from holdfast.core.fleet.actions import CycleSummary
from holdfast.web.page import Page, PageRequest, together
from holdfast.wire.operations.acts import ACTS, ActField
from holdfast.wire.pools import PoolStatus

SHOWN_CYCLES = 50
_TIME = re.compile(r"\b[0-9.]+ (?:s|min|h)\b")


def list_bounds(pool: PoolStatus) -> list[ActField]:
    """Return the fields of a pool's bounds with their present values."""
    return [
        ActField(
            name=each.name,
            label=each.label,
            kind="number",
            value=str(getattr(pool.spec, each.name)),
        )
        for each in ACTS["pool.scale"].fields
    ]


def make_way_back(pool: PoolStatus) -> dict[str, int]:
    """Return the bounds that a pool has now, as the API takes them."""
    return {each.name: getattr(pool.spec, each.name) for each in ACTS["pool.scale"].fields}


async def show_all(ask: PageRequest) -> Page:
    """Make the page of all pools."""
    values = {"pools": await ask.reader.pools(), "bounds": list_bounds, "back": make_way_back}
    return Page(
        template="pools.html", title="Pools", values=values, follows=("pools", "hosts"), every=10
    )


class AlikeCycles(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles one after the other that did the same for the same reasons: the newest, how many there
    were, and when the first of them was."""

    newest: CycleSummary
    count: int
    since: datetime


def drop_times(sentence: str) -> str:
    """Return a sentence without the lengths of time in it, which differ from cycle to cycle."""
    return _TIME.sub("", sentence)


def join_alike(cycles: Sequence[CycleSummary]) -> list[AlikeCycles]:
    """Return the cycles, newest first, with neighbours joined that did and said the same."""

    def key(each: CycleSummary) -> object:
        return each.actions, [drop_times(reason) for reason in each.reasons], each.error

    rows = []
    for _, those in groupby(cycles, key=key):
        newest, *others = those
        oldest = others[-1] if others else newest
        rows.append(AlikeCycles(newest=newest, count=1 + len(others), since=oldest.timestamp))
    return rows


async def show_one(ask: PageRequest) -> Page:
    """Make the page of one pool. Raises NotFound."""
    reader, name = ask.reader, ask.params["pool"]
    pool, cycles, plan, hosts = await together(
        reader.pool(name),
        reader.pool_cycles(name, limit=SHOWN_CYCLES),
        reader.plan_pool(name),
        reader.hosts(),
    )
    known = {drop_times(sentence) for sentence in (pool.blocked, plan.blocked)}
    values = {
        "pool": pool,
        "bounds": list_bounds,
        "back": make_way_back,
        "cycles": join_alike([each for each in cycles if each.reasons or each.error]),
        "quiet": len([each for each in cycles if not each.reasons and not each.error]),
        "plan": plan,
        "would": [each for each in plan.summary.reasons if drop_times(each) not in known],
        "hosts": [host for host in hosts if host.pool == name],
    }
    return Page(
        template="pool.html",
        title=f"Pool {name}",
        values=values,
        follows=("pools", "hosts"),
        every=10,
    )
