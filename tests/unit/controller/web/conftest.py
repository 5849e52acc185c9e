"""A browser in front of a controller that is served for real: cookies, the proof and an origin."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.unit.controller.conftest import Served


class Browser:
    """A browser that was signed in by a link, as the pages' script does it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.port = httpx.URL(served.url).port
        self.origin = f"http://holdfast.localhost:{self.port}"
        self.cookie = self.proof = ""

    async def sign_in(self, role: str = "admin") -> httpx.Response:
        link = (await self.served.call("POST", "/v1/sign-ins/links", role)).json()["url"]
        return await self.use(link)

    async def use(self, link: str) -> httpx.Response:
        page, _, secret = link.partition("#")
        assert page == f"{self.origin}/sign-in"
        answer = await self.send("POST", "/sign-in", json={"link": secret})
        if answer.status_code == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.proof = answer.json()["proof"]
        return answer

    async def send(
        self, method: str, path: str, *, proof: bool = False, **more: Any
    ) -> httpx.Response:
        """Send a request as a page of the dashboard would. headers: those that differ."""
        headers = {"Host": self.origin.partition("://")[2]}
        if self.cookie:
            headers["Cookie"] = self.cookie
        if method not in ("GET", "HEAD"):
            headers["Origin"] = self.origin
        if proof:
            headers["Holdfast-Proof"] = self.proof
        headers.update(more.pop("headers", {}))
        self.served.http.cookies.clear()  # each browser keeps its own
        return await self.served.http.request(method, path, headers=headers, **more)


async def sign_in_with(served: Served, token: dict[str, Any]) -> Browser:
    """Return a browser that acts by a new token, which is made as the body of the API says."""
    secret = (await served.call("POST", "/v1/tokens", json=token)).json()["secret"]
    headers = {"Authorization": f"Bearer {secret}"}
    link = (await served.http.post("/v1/sign-ins/links", headers=headers)).json()["url"]
    made = Browser(served)
    assert (await made.use(link)).status_code == 200
    return made


@pytest.fixture
async def browser(served: Served) -> Browser:
    made = Browser(served)
    assert (await made.sign_in()).status_code == 200
    return made
