"""A real Chromium, and a person's sign-in to a controller that is served for real."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.unit.controller.conftest import Served

if TYPE_CHECKING:  # a machine without Chromium has no playwright either
    from playwright.async_api import Browser

    from tests.unit.controller.web.chromium.person import Person


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=os.environ["HOLDFAST_TEST_CHROMIUM"],
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield browser
        await browser.close()


@pytest.fixture
async def person(served: Served, chromium: Browser) -> AsyncIterator[Person]:
    """A person whose browser met no error of a script, none of the CSP, and asked no other server."""
    from tests.unit.controller.web.chromium.person import Person

    made = Person(served, chromium)
    yield made
    if made.context is not None:
        await made.context.close()
    assert made.wrong == []
    assert [url for url in made.foreign if "elsewhere" not in url] == []
