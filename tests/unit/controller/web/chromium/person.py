"""A person at a real browser, and how long a test waits for what a person would see."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.controller.conftest import Served

CHROMIUM = os.environ.get("HOLDFAST_TEST_CHROMIUM", "")
if not CHROMIUM:
    pytest.skip("`make browser` runs these, because they need Chromium", allow_module_level=True)

from playwright.async_api import Browser, Page, expect  # noqa: E402

__all__ = ["SECOND", "Person", "expect", "serve_elsewhere"]

SECOND = 5_000
"""A patience for what should take a second, in milliseconds: machines of tests are crowded."""


class Person:
    """A person at a browser: the pages that are open, and what went wrong in them."""

    def __init__(self, served: Served, chromium: Browser) -> None:
        self.served, self.chromium = served, chromium
        self.base = served.controller.origins[0]
        self.wrong: list[str] = []
        self.foreign: list[str] = []
        self.lives = 0
        self.context: Any = None

    async def open(self, **options: Any) -> Page:
        """Return a new page, not signed in yet."""
        if self.context is None:
            self.context = await self.chromium.new_context(**options)
        page: Page = await self.context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._hear)
        page.on("request", self._count)
        return page

    def _hear(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.wrong.append(message.text)

    def _count(self, request: Any) -> None:
        if not request.url.startswith(self.base):
            self.foreign.append(request.url)
        if request.url == f"{self.base}/live":
            self.lives += 1

    async def link(self, role: str = "admin") -> str:
        made = await self.served.call("POST", "/v1/sign-ins/links", role)
        url: str = made.json()["url"]
        return url

    async def sign_in(self, role: str = "admin", **options: Any) -> Page:
        page = await self.open(**options)
        await page.goto(await self.link(role))
        await page.wait_for_url(f"{self.base}/")
        return page


@asynccontextmanager
async def serve_elsewhere(page: str) -> AsyncIterator[tuple[int, list[str]]]:
    """Serve a page at another port of this machine, as a job's server behind a forward is. Yields the
    port, and the heads of the requests that come."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = page.encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
