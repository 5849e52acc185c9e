"""Plots show what the ledger says: columns on a round scale, and a line that breaks where nothing was
measured."""

from __future__ import annotations

import gzip
import math
import random
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.close_minutes import LedgerRow, Subject, close_span
from holdfast.core.ledger.values import LedgerName
from holdfast.web.plots import HEIGHT, find_top, stack
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@given(st.floats(1e-6, 1e9))
def test_a_scale_is_round_and_little_over_the_greatest_value(most: float) -> None:
    top = find_top(most)
    assert most <= top * (1 + 1e-9)
    assert top <= 2.6 * most
    step = top / 4
    digits = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
    assert any(math.isclose(digits, good, rel_tol=1e-6) for good in (1, 2, 2.5, 5, 10))


def test_columns_are_stacked_from_the_ground_up_and_reach_their_sums() -> None:
    found = {START: ({"kept": 6.0, "lost": 2.0}, 0.75), START + 2 * HOUR: ({"kept": 4.0}, 1.0)}
    plot = stack(START, HOUR, 3, found, ["kept", "lost", "idle"])
    assert [layer.name for layer in plot.layers] == ["kept", "lost"]
    assert (plot.top, plot.ticks[0], plot.ticks[-1]) == (8.0, 8.0, 0.0)
    kept, lost = (
        re.findall(r"M[\d.]+ ([\d.]+)h[\d.]+v([\d.]+)", each.path) for each in plot.layers
    )
    assert kept == [("25.00", "75.00"), ("50.00", "50.00")]
    assert lost == [("0.00", "25.00")]
    assert [column.total for column in plot.columns] == [8.0, 0.0, 4.0]
    assert plot.line.count("M") == 2  # it breaks off in the middle
    assert f"{HEIGHT * 0.25:.2f}" in plot.line


async def write_history(served: Served, agent: FakeAgent, hours: int, ago: int = 0) -> None:
    """Write a ledger of so many hours, the last of them so many days ago, as the loop that closes minutes
    does."""
    store, now = served.store.ledger, await served.store.now()
    later = now + timedelta(minutes=3)
    await store.read_span(now=later)
    facts = await store.read_span(now=later)
    assert facts is not None
    chance = random.Random(1)
    about = {"unit": "gpu", "host_id": "h", "host": "h1", "pool": "", "labels": ()}
    free = Subject(**about, settled=True)  # type: ignore[arg-type]  # as below
    job = Subject(
        **about, job_id="j", attempt=1, project="vision", owner="ada", queue="train", settled=True
    )  # type: ignore[arg-type]  # a dictionary of many types
    rows = []
    for hour in range(hours):
        at = (
            int((now - timedelta(days=ago) - (hour + 1) * HOUR).timestamp() * 1000)
            // 3_600_000
            * 3_600_000
        )
        busy = max(0.0, 0.55 + 0.35 * math.sin(hour / 24 * 2 * math.pi) + chance.uniform(-0.1, 0.1))
        lost = chance.uniform(0, 0.1) if chance.random() < 0.8 else 0.3
        parts = {
            LedgerName.KEPT: busy * (1 - lost - 0.1),
            LedgerName.LOST: busy * lost,
            LedgerName.LOADING: busy * 0.06,
            LedgerName.CHECKPOINTING: busy * 0.04,
        }
        whole = 64 * 3_600_000
        rows += [LedgerRow(job, at, name, int(part * whole)) for name, part in parts.items()]
        rows.append(LedgerRow(free, at, LedgerName.UNUSED, int((1 - busy) * whole)))
    await store.write_ledger(facts, msgspec.structs.replace(close_span(facts), rows=rows))


@pytest.mark.parametrize(
    ("hours", "ago", "span"), [(5, 0, "24h"), (60, 0, "7d"), (60, 10, "30d"), (0, 0, "24h")]
)
async def test_a_report_begins_with_the_span_that_has_data(
    served: Served, agent: FakeAgent, browser: Browser, hours: int, ago: int, span: str
) -> None:
    if hours:
        await write_history(served, agent, hours, ago)
    for asked, shown in (("", span), ("?last=7d", "7d")):
        page = (await browser.send("GET", f"/report{asked}")).text
        assert re.findall(r'class="button here"[^>]*>([^<]+)</a>', page) == ["GPUs", shown]


@pytest.mark.parametrize(
    ("span", "columns", "most"), [("24h", 24, 3_000), ("30d", 30, 3_000), ("7d", 168, 14_000)]
)
async def test_the_report_shows_the_hours_as_a_plot_and_as_a_table(
    served: Served, agent: FakeAgent, browser: Browser, span: str, columns: int, most: int
) -> None:
    empty = (await browser.send("GET", f"/report?last={span}")).text
    assert 'class="plot"' not in empty
    await write_history(served, agent, 800)
    answer = await browser.send("GET", f"/report?last={span}")
    assert answer.headers["content-encoding"] == "gzip"
    page = answer.text
    start = page.index('<figure class="plot"')
    plot = page[start : page.index("</details>", start)]
    assert plot.count('<path class="running n-kept"') == 1
    assert 'class="goodput"' in plot
    assert plot.count("<tr data-x") >= columns - 1  # a row for each hour that has something
    assert len(gzip.compress(plot.encode())) <= most
