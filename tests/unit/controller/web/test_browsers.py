"""A browser opens pages with its cookie, and changes things only with its proof, from our own pages
(WEB-1, WEB-2)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.controller.runtime.auth import hash_secret, make_new_id
from holdfast.errors import Unauthorized
from holdfast.web.browsers import SIGN_IN_SECONDS, read_cookie
from tests.unit.controller.conftest import Served
from tests.unit.controller.web.conftest import Browser
from tests.waits import within


async def test_a_link_signs_one_browser_in_once(served: Served) -> None:
    link = (await served.call("POST", "/v1/sign-ins/links")).json()["url"]
    first, second = Browser(served), Browser(served)
    answer = await first.use(link)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Domain" not in cookie
    assert (await first.send("GET", "/jobs")).status_code == 200
    again = await second.use(link)
    assert again.status_code == 401
    assert "was used" in again.json()["detail"]
    assert (await second.send("GET", "/jobs")).status_code == 401


async def test_a_database_that_is_away_is_no_fault_of_the_browser(served: Served) -> None:
    """503 and not 400, which would say that the browser asked wrongly."""
    browser = Browser(served)
    link = (await served.call("POST", "/v1/sign-ins/links")).json()["url"]
    await served.store.session.close()
    answer = await browser.use(link)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_a_link_ends_after_ten_minutes(served: Served) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    token = (await served.store.tokens.list_tokens())[0]
    link, cookie, proof = (hash_secret(word) for word in ("link", "cookie", "proof"))
    sign_ins = served.store.sign_ins
    until = await sign_ins.create_link(link, token.id, 600, now=at)
    assert until == at + timedelta(minutes=10)
    with pytest.raises(Unauthorized):
        await sign_ins.spend_link(
            link, make_new_id(), cookie, proof, 60, browser="", address="", now=until
        )
    assert await sign_ins.list_sign_ins(now=until) == []


async def test_a_sign_in_is_over_after_twelve_hours(served: Served) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    until = at + timedelta(hours=12)
    token = (await served.store.tokens.list_tokens())[0]
    link, cookie, proof = (hash_secret(word) for word in ("link", "cookie", "proof"))
    sign_ins = served.store.sign_ins
    await sign_ins.create_link(link, token.id, 600, now=at)
    words = {"browser": "", "address": ""}
    await sign_ins.spend_link(link, make_new_id(), cookie, proof, SIGN_IN_SECONDS, **words, now=at)
    early = until - timedelta(seconds=1)
    assert await sign_ins.find_sign_in(cookie, now=early) is not None
    assert [each.expires_at for each in await sign_ins.list_sign_ins(now=early)] == [until]
    assert await sign_ins.find_sign_in(cookie, now=until) is None
    assert await sign_ins.list_sign_ins(now=until) == []


async def test_over_tls_a_cookie_is_of_this_host_alone(served: Served) -> None:
    """By its name, which a browser holds to; over plain HTTP no browser takes such a cookie."""
    served.controller.origins = ("https://holdfast.example",)
    browser = Browser(served)
    browser.origin = "https://holdfast.example"
    answer = await browser.sign_in()
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-holdfast_sign_in=")
    assert {"Path=/", "Secure", "HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert (await browser.send("GET", "/jobs")).status_code == 200


def test_by_tls_a_cookie_that_a_neighbour_could_set_counts_for_nothing() -> None:
    plain, own = b"holdfast_sign_in=theirs", b"__Host-holdfast_sign_in=ours"

    def read(scheme: str, *cookies: bytes) -> str | None:
        return read_cookie({"scheme": scheme, "headers": [(b"cookie", b"; ".join(cookies))]})

    assert read("http", plain) == "theirs"
    assert read("http", plain, own) == "ours", "a proxy ended the TLS"
    assert read("https", plain) is None
    assert read("wss", plain, own) == "ours"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("PUT", "/v1/queues/q"),
        ("PATCH", "/v1/config"),
        ("DELETE", "/v1/queues/q"),
        ("GET", "/live"),
        ("POST", "/sign-out"),
    ],
)
async def test_a_cookie_alone_is_no_proof(browser: Browser, method: str, path: str) -> None:
    body = {} if method == "GET" else {"json": {}}
    answer = await browser.send(method, path, **body)
    assert (answer.status_code, answer.json()["code"]) == (401, "no_proof")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:6006"},
        {"Origin": "http://holdfast.localhost:6006"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1"},
        {"Host": "elsewhere.example"},
    ],
)
async def test_another_pages_act_is_refused(browser: Browser, headers: dict[str, str]) -> None:
    """Also with the proof, which a page of another origin never has."""
    answer = await browser.send(
        "POST", "/v1/jobs", proof=True, json={"argv": ["true"]}, headers=headers
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")


async def test_the_proof_opens_the_api(browser: Browser) -> None:
    answer = await browser.send("POST", "/v1/jobs", proof=True, json={"argv": ["true"]})
    assert answer.status_code == 201
    assert answer.json()["owner"] == "tester"


async def test_a_page_at_another_name_is_not_served(browser: Browser) -> None:
    """A forward of a job's server is at 127.0.0.1, so no cookie of ours may belong there."""
    for host in (f"127.0.0.1:{browser.port}", f"localhost:{browser.port}", "elsewhere.example"):
        answer = await browser.send("GET", "/jobs", headers={"Host": host})
        assert answer.status_code == 421
        assert browser.origin in answer.text


async def test_a_link_from_another_site_is_read_once_more_from_our_own(served: Served) -> None:
    """SameSite=Strict keeps the cookie back from a navigation that begins elsewhere."""
    answer = await Browser(served).send("GET", "/jobs/x")
    assert answer.status_code == 401
    assert "/static/again.js" in answer.text
    assert "<p" not in answer.text


async def test_a_sign_in_ends_with_its_token_and_by_itself(served: Served) -> None:
    made = (await served.call("POST", "/v1/tokens", json={"role": "admin", "name": "gone"})).json()
    headers = {"Authorization": f"Bearer {made['secret']}"}
    link = (await served.http.post("/v1/sign-ins/links", headers=headers)).json()["url"]
    browser = Browser(served)
    await browser.use(link)
    assert (await browser.send("GET", "/")).status_code == 200
    await served.call("DELETE", f"/v1/tokens/{made['id']}")
    assert (await browser.send("GET", "/")).status_code == 401
    other = Browser(served)
    await other.sign_in()
    assert (await other.send("POST", "/sign-out", proof=True)).status_code == 204
    assert (await other.send("GET", "/")).status_code == 401


async def test_an_admin_ends_another_browsers_sign_in_and_its_streams(served: Served) -> None:
    browser = Browser(served)
    await browser.sign_in("submit")
    headers = {
        "Host": browser.origin.partition("://")[2],
        "Cookie": browser.cookie,
        "Holdfast-Proof": browser.proof,
    }
    async with served.http.stream("GET", "/live", headers=headers) as stream:
        assert stream.status_code == 200
        (found,) = (await served.call("GET", "/v1/sign-ins")).json()["items"]
        assert (found["role"], found["user"]) == ("submit", "tester")
        assert (await served.call("DELETE", f"/v1/sign-ins/{found['id']}")).status_code == 204
        async with within(5):
            data = b"".join([piece async for piece in stream.aiter_bytes()])
    assert b"event: problem" in data
    assert (await browser.send("GET", "/jobs")).status_code == 401


async def test_users_see_and_end_only_their_own_sign_ins(served: Served) -> None:
    made = (
        await served.call("POST", "/v1/tokens", json={"role": "submit", "user": "someone"})
    ).json()
    await Browser(served).sign_in()
    (admins,) = (await served.call("GET", "/v1/sign-ins")).json()["items"]
    headers = {"Authorization": f"Bearer {made['secret']}"}
    assert (await served.http.get("/v1/sign-ins", headers=headers)).json()["items"] == []
    ended = await served.http.delete(f"/v1/sign-ins/{admins['id']}", headers=headers)
    assert ended.status_code == 404


async def test_a_change_is_told_within_a_second(browser: Browser) -> None:
    headers = {
        "Host": browser.origin.partition("://")[2],
        "Cookie": browser.cookie,
        "Holdfast-Proof": browser.proof,
    }
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen() -> None:
        async with browser.served.http.stream("GET", "/live", headers=headers) as stream:
            async for piece in stream.aiter_bytes():
                await heard.put(piece)

    listening = asyncio.create_task(listen())
    try:
        assert b"event: open" in await heard.get()
        job = await browser.served.submit()
        async with within(5):
            while f"job:{job['id']}".encode() not in await heard.get():
                pass
    finally:
        listening.cancel()
