"""Make the page that is shown in place of a page that cannot be drawn: the reason, and where to go
from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError, NotFound
from holdfast.web.page import Page, PageRequest

HEADINGS: Mapping[int, str] = {
    403: "Your token may not see this",
    404: "Not found",
    500: "This page failed",
    503: "The cluster does not answer now",
}
OTHER_HEADING = "This page cannot be shown"


def name_error(status: int) -> dict[str, Any]:
    """Return the heading of an error, and whether the page is worth another look by itself."""
    return {"heading": HEADINGS.get(status, OTHER_HEADING), "again": status >= 500}


def show_error(ask: PageRequest, error: HoldfastError) -> Page:
    """Return the page that is shown in place of a page that cannot be drawn. It offers to search
    for the last word of the address, because a mistyped or shortened id or name is the most
    frequent mistake."""
    named = name_error(error.status)
    word = ask.path.rstrip("/").rpartition("/")[2] if error.status == NotFound.status else ""
    values = {"message": error.message, "word": word, "status": error.status, **named}
    return Page(
        template="error.html", title=named["heading"], values=values, status=error.status
    )  # fmt: skip


async def show_nothing(ask: PageRequest) -> Page:
    """Raise NotFound for an address that no page has."""
    raise NotFound(f"there is no page {ask.path}")
