"""A report as one page: whole, without scripts, and safe against hostile names (PAGE-1)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.report.page import draw_page
from tests.unit.cli.report.samples import ledger_sum, lost_of, make_report, usual_report

MADE = datetime(2026, 11, 26, 12, tzinfo=UTC)
HOSTILE = (
    "<script>alert(1)</script>",
    "</title></svg><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "' style='background:url(//evil.example/x)",
    "]]><!--",
    "&lt;script&gt;",
    "javascript:alert(1)",
)
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "b", "span", "svg",
    "text", "rect", "line", "table", "tr", "th", "td", "ul", "li",
}  # fmt: skip
VOID = {"meta"}


class Reader(HTMLParser):
    """Reads a page: its elements, what they are nested in, its attributes and its texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def assert_safe(page: str) -> Reader:
    """The page has the elements that it draws, and no other; nothing is loaded and nothing runs."""
    found = read(page)
    assert found.seen <= ALLOWED
    for name, value in found.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href", "style", "action", "xlink:href")
        assert name == "xmlns" or "//" not in value or name in ("aria-label",)
    return found


def test_the_page_has_its_figures_pictures_and_losses() -> None:
    page = draw_page(usual_report(), MADE)
    found = assert_safe(page)
    text = " ".join(found.texts)
    for words in (
        "Where the GPU-hours went",
        "steps done again after 4 stalls of `train`",
        "goodput of measured work",
        "made 26 Nov 2026 12:00 UTC",
        "13.0 h are without a price",
    ):
        assert words in text
    assert page.count("<svg") == 2
    assert page.count("<rect") >= 10


def test_the_page_is_light_and_dark_and_lets_nothing_load() -> None:
    page = draw_page(usual_report(), MADE)
    assert "prefers-color-scheme: dark" in page
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert re.findall(r"https?://[^\"' ]+", page) == ["http://www.w3.org/2000/svg"] * 2


def test_a_report_by_day_is_drawn_as_columns_in_the_order_of_time() -> None:
    days = [f"2026-11-{day:02d}T00:00:00+00:00" for day in (21, 19, 20)]
    report = make_report(*(ledger_sum(d, "p", "h1", kept=9, lost=1) for d in days), by=("time",))
    page = draw_page(report, MADE)
    places = [page.index(f"2026-11-{day}: kept") for day in (19, 20, 21)]
    assert places == sorted(places)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_and_nothing_else(name: str) -> None:
    """PAGE-1"""
    sums = ledger_sum(name, name, name, "h1", kept=1, lost=5)
    page = draw_page(make_report(sums, by=("job", "owner"), losses=(lost_of(name),)), MADE)
    found = assert_safe(page)
    assert any(name in text for text in found.texts)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_name_changes_what_the_page_is_made_of(owner: str, job: str) -> None:
    """PAGE-1"""
    sums = ledger_sum(owner, "p", "h1", kept=1, lost=5)
    assert_safe(draw_page(make_report(sums, losses=(lost_of(job),)), MADE))


def test_an_empty_report_is_a_page_as_well() -> None:
    assert "No hours are on record" in draw_page(make_report(), MADE)
