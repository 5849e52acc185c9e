"""A browser opens a shell only from a page of ours, and with a ticket that is good once (WEB-3)."""

from __future__ import annotations

import hashlib
import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast import web
from holdfast.controller.runtime.auth import hash_secret
from holdfast.core.sessions.rights import CLOSED_LABEL
from holdfast.store.postgres.sign_ins import BrowserTicket
from holdfast.web.fixed import join_module
from holdfast.wire.sessions.frames import PROTOCOL, REFUSAL, REFUSED, STDOUT, frame
from holdfast.wire.sessions.messages import SessionStatus
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser, sign_in_with
from tests.waits import within

STATIC = Path(web.__file__).parent / "static"
KEPT = STATIC / "kept"


class Opening:
    """A browser that opens the WebSocket of a job's shell, with what it offers."""

    def __init__(self, browser: Browser, job_id: str) -> None:
        self.browser, self.job_id = browser, job_id
        self.origin: str | None = browser.origin
        self.cookie = browser.cookie
        self.more: dict[str, str] = {}

    async def take_ticket(self, rank: int = 0, job_id: str = "") -> str:
        path = f"/v1/jobs/{job_id or self.job_id}/sessions/tickets"
        answer = await self.browser.send("POST", path, proof=True, json={"rank": rank})
        assert answer.status_code == 201, answer.text
        ticket: str = answer.json()["ticket"]
        return ticket

    async def open(self, ticket: str | None) -> ClientConnection:
        url = f"{self.browser.origin.replace('http', 'ws', 1)}/v1/jobs/{self.job_id}/sessions/open"
        headers = {"Cookie": self.cookie} if self.cookie else {}
        offered = [PROTOCOL] + ([f"ticket.{ticket}"] if ticket is not None else [])
        return await connect(
            url,
            origin=self.origin,  # type: ignore[arg-type]  # a NewType of str
            subprotocols=offered,  # type: ignore[arg-type]  # as above
            additional_headers={**headers, **self.more},
            proxy=None,
            host="127.0.0.1",
            port=self.browser.port,
            compression=None,
        )

    async def refuse(self, ticket: str | None) -> tuple[int, str]:
        """The status and the code with which a WebSocket is refused."""
        with pytest.raises(InvalidStatus) as told:
            await self.open(ticket)
        body = msgspec.json.decode(told.value.response.body or b"{}")
        return told.value.response.status_code, body["code"]

    async def ask(self, ticket: str, **asked: Any) -> SessionStatus:
        """Return the server's answer to the first message of a WebSocket that it opened."""
        async with within(10), await self.open(ticket) as socket:
            await socket.send(msgspec.json.encode({"kind": "shell", "tty": True, **asked}))
            answer = await socket.recv()
            assert isinstance(answer, bytes)
            assert answer[0] == REFUSAL
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            return msgspec.json.decode(answer[1:], type=SessionStatus)


@pytest.fixture
async def opening(served: Served, browser: Browser) -> Opening:
    job = await served.submit(gpus=9, tasks=2)
    return Opening(browser, job["id"])


async def test_a_ticket_opens_one_websocket(opening: Opening) -> None:
    ticket = await opening.take_ticket()
    told = await opening.ask(ticket)
    assert told.code == "not_running"  # the job is queued: the WebSocket was open
    assert await opening.refuse(ticket) == (401, "no_ticket")


async def test_a_cookie_alone_opens_no_websocket(opening: Opening) -> None:
    assert await opening.refuse(None) == (401, "no_ticket")
    opening.more = {"Holdfast-Proof": opening.browser.proof}
    assert await opening.refuse(None) == (401, "no_ticket")
    assert await opening.refuse("a-guess") == (401, "no_ticket")


async def test_a_ticket_takes_the_proof(opening: Opening) -> None:
    path = f"/v1/jobs/{opening.job_id}/sessions/tickets"
    answer = await opening.browser.send("POST", path, json={})
    assert (answer.status_code, answer.json()["code"]) == (401, "no_proof")
    answer = await opening.browser.served.call("POST", path, json={})
    assert answer.status_code == 422  # a token opens the WebSocket itself


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "https://elsewhere.example",
        "http://127.0.0.1:6006",
        "http://holdfast.localhost:6006",
        "https://holdfast.localhost:{port}",
        "http://holdfast.localhost",
    ],
)
async def test_a_websocket_comes_from_a_page_of_ours(opening: Opening, origin: str | None) -> None:
    """Its scheme, host and port; a browser names them with each WebSocket."""
    ticket = await opening.take_ticket()
    opening.origin = origin.format(port=opening.browser.port) if origin else None
    assert await opening.refuse(ticket) == (403, "foreign_origin")
    opening.origin = opening.browser.origin
    assert (await opening.ask(ticket)).code == "not_running"  # the ticket was not spent


async def test_a_ticket_is_good_for_its_job_rank_and_sign_in_alone(
    served: Served, opening: Opening
) -> None:
    other = await served.submit(gpus=9)
    assert await opening.refuse(await opening.take_ticket(job_id=other["id"])) == (403, "no_ticket")
    told = await opening.ask(await opening.take_ticket(rank=1), rank=0)
    assert (told.status, told.code) == (403, "no_ticket")
    told = await opening.ask(await opening.take_ticket(), kind="forward", port=80)
    assert (told.status, told.code) == (403, "no_ticket")
    second = Browser(served)
    await second.sign_in()
    ticket = await opening.take_ticket()
    opening.cookie = second.cookie
    assert await opening.refuse(ticket) == (401, "no_ticket")
    opening.cookie = opening.browser.cookie
    assert await opening.refuse(ticket) == (401, "no_ticket")  # spent by the attempt


async def test_a_ticket_is_over_within_half_a_minute(served: Served) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    made = BrowserTicket(sign_in_id="s", job_id="j", rank=0)
    sign_ins = served.store.sign_ins
    for word in ("early", "late"):
        until = await sign_ins.create_ticket(hash_secret(word), made, 20, now=at)
    assert until - at <= timedelta(seconds=30)
    assert await sign_ins.spend_ticket(hash_secret("early"), now=at) == made
    assert await sign_ins.spend_ticket(hash_secret("late"), now=until) is None


async def test_a_bearer_needs_neither_ticket_nor_origin(served: Served, opening: Opening) -> None:
    opening.origin, opening.cookie = None, ""
    opening.more = {"Authorization": "Bearer hft_admin"}
    socket = await opening.open(None)
    await socket.close()


async def test_signing_out_ends_a_shell(served: Served, agent: FakeAgent, browser: Browser) -> None:
    """Within 5 s, at both ends."""
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    opening = Opening(browser, job["id"])
    async with within(15), await opening.open(await opening.take_ticket()) as shell:
        await shell.send(msgspec.json.encode({"kind": "shell", "tty": True}))
        while not (orders := (await agent.sync(wait=2.0)).sessions):
            pass
        words = {"Authorization": f"Bearer {agent.key}", "Holdfast-Ticket": orders[0].ticket}
        url = f"ws://127.0.0.1:{browser.port}/v1/agent/sessions/{orders[0].id}"
        host = await connect(
            url, subprotocols=[PROTOCOL], additional_headers=words, proxy=None, compression=None
        )
        await host.send(frame(STDOUT, b"ready> "))
        assert await shell.recv() == frame(STDOUT, b"ready> ")
        assert (await browser.send("POST", "/sign-out", proof=True)).status_code == 204
        async with within(5):
            told = await shell.recv()
            assert isinstance(told, bytes)
            assert told[0] == REFUSAL
            assert msgspec.json.decode(told[1:], type=SessionStatus).status == 401
            with pytest.raises(ConnectionClosed) as closed:
                await host.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == REFUSED


async def test_a_host_that_takes_no_sessions_has_no_button(
    served: Served, browser: Browser
) -> None:
    label, value = CLOSED_LABEL
    agent = FakeAgent(served, "closed", labels={label: value})
    await agent.register()
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    first, shell = [
        await browser.send("GET", path)
        for path in (f"/jobs/{job['id']}", f"/jobs/{job['id']}/shell")
    ]
    assert ">Shell</a>" not in first.text
    assert "switched off on host closed" in shell.text


async def test_only_a_user_who_may_come_in_sees_the_button(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    pages = (f"/jobs/{job['id']}", f"/jobs/{job['id']}/shell")
    for role, allowed in (("read", False), ("submit", True)):
        browser = Browser(served)
        await browser.sign_in(role)
        first, shell = [await browser.send("GET", path) for path in pages]
        assert (">Shell</a>" in first.text) == allowed
        assert ("shell.mjs" in shell.text) == allowed
        assert "unsafe" not in shell.headers["content-security-policy"]
    await served.call("PATCH", "/v1/config", json={"set": {"sessions": False}})
    first, shell = [await browser.send("GET", path) for path in pages]
    assert ">Shell</a>" not in first.text
    assert "switched off" in shell.text
    ticket = await browser.send(
        "POST", f"/v1/jobs/{job['id']}/sessions/tickets", proof=True, json={}
    )
    assert (ticket.status_code, ticket.json()["code"]) == (403, "sessions_off")


async def test_a_user_whose_token_reaches_into_a_project_sees_the_shell_and_no_other_act(
    served: Served, agent: FakeAgent
) -> None:
    """REACH-1: the job stays its owner's to change."""
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    for reach in ([], ["other"], ["default"]):
        token = {"role": "submit", "user": "guest", "reach": reach}
        browser = await sign_in_with(served, token)
        page = (await browser.send("GET", f"/jobs/{job['id']}")).text
        ticket = await browser.send(
            "POST", f"/v1/jobs/{job['id']}/sessions/tickets", proof=True, json={}
        )
        may_enter = reach == ["default"]
        assert (">Shell</a>" in page) == may_enter
        assert (ticket.status_code == 201) == may_enter
        assert "data-act" not in page


def read_parts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((KEPT / "kept.toml").read_text())["part"]
    return found


def test_kept_parts_are_what_they_were() -> None:
    """Each with its version in its name, because browsers keep it for ever, and with its licence."""
    known = {"kept.toml": ""}
    for part in read_parts():
        files = {file["as"]: file["sha256"] for file in part["files"].values()}
        assert part["licence"] in ("MIT", "ISC", "BSD-3-Clause")
        assert any(name.endswith(".licence") for name in files)
        assert all(part["version"] in name for name in files)
        known |= files
    assert {path.name for path in KEPT.iterdir()} == set(known)
    for name, digest in known.items():
        if digest:
            assert hashlib.sha256((KEPT / name).read_bytes()).hexdigest() == digest, name


async def test_the_shell_page_is_at_most_150_kb_and_only_it_has_a_kept_part(
    served: Served, browser: Browser
) -> None:
    job = await served.submit()
    weights, scripts = [], []
    for path in (f"/jobs/{job['id']}", f"/jobs/{job['id']}/shell"):
        page = (await browser.send("GET", path)).text
        files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
        weights.append(sum([await weigh(browser, each) for each in files], len(page)))
        scripts.append("".join([(await browser.send("GET", each)).text for each in files]))
    of_job, of_shell = weights
    assert of_job <= 60_000
    assert of_shell <= 150_000
    assert ["The xterm.js authors" in each for each in scripts] == [False, True]
    assert scripts[1].count("@license MIT") > 1, "licences stay in what is sent"


def test_a_kept_part_that_gives_another_name_is_refused() -> None:
    script = b'import { A } from "./kept/a.mjs";\nA();\n'
    joined = join_module(
        script, {"a.mjs": b"var h=2;class o{}export{o as A};\n//# sourceMappingURL=a\n"}
    )
    assert joined == b"const A = (() => {\nvar h=2;class o{}return o;\n})();\nA();\n"
    with pytest.raises(AssertionError, match="gives no"):
        join_module(script, {"a.mjs": b"export{o as B};"})


async def weigh(browser: Browser, path: str) -> int:
    answer = await browser.send("GET", path, headers={"Accept-Encoding": "gzip"})
    assert (answer.status_code, answer.headers["content-encoding"]) == (200, "gzip"), path
    return int(answer.headers["content-length"])
