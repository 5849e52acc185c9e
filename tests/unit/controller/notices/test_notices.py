"""Notices from the job to a real mail server and a real receiver: what is told, to whom, and what is
never told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from email import message_from_bytes
from email.header import decode_header, make_header
from typing import Any

import msgspec
import pytest
from aiosmtpd.smtp import SMTP

from holdfast.controller.server import RunningServer, bind_socket
from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.webhooks.receiver import OK, Receiver, hang, receive, status
from tests.waits import within

pytestmark = pytest.mark.slow
SECRET_TOPIC = "topic-nobody-guesses"


class Mailbox:
    """Takes mail, as aiosmtpd's handler."""

    def __init__(self) -> None:
        self.messages: list[tuple[list[str], str, str]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        mail = message_from_bytes(envelope.content)
        subject = str(make_header(decode_header(mail["Subject"])))
        part = next(one for one in mail.walk() if one.get_content_type() == "text/plain")
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        self.messages.append((envelope.rcpt_tos, subject, payload.decode()))
        return "250 taken"

    async def until(self, count: int, seconds: float = 20) -> list[tuple[list[str], str, str]]:
        async with within(seconds):
            while len(self.messages) < count:
                await asyncio.sleep(0.02)
        return self.messages


@pytest.fixture
async def smtp() -> AsyncIterator[tuple[Mailbox, str]]:
    """A real mail server on loopback, and the url of a target there."""
    box = Mailbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield box, f"mailto://127.0.0.1:{port}?from=holdfast@example.org&to=me@example.org"
    server.close()


@pytest.fixture
async def phone() -> AsyncIterator[Receiver]:
    async with receive() as made:
        made.secret = None
        yield made


@pytest.fixture
async def open_to_private(served: Served) -> Served:
    answer = await served.call("PATCH", "/v1/config", json={"set": {"webhook_allow_private": True}})
    assert answer.status_code == 200, answer.text
    return served


def ntfy(phone: Receiver) -> str:
    return f"ntfy://127.0.0.1:{phone.port}/{SECRET_TOPIC}"


async def set_target(served: Served, name: str, url: str, role: str = "admin", of: str = "") -> Any:
    return await served.call("PUT", f"/v1/notices/{name}{of}", role, json={"url": url})


def told(phone: Receiver) -> list[tuple[str, str]]:
    """Title and text of each message."""
    bodies = [msgspec.json.decode(one.body) for one in phone.requests]
    return [(body["title"], body["message"]) for body in bodies]


async def test_a_failure_is_told_by_mail_and_chat_with_why_the_last_lines_and_a_link(
    open_to_private: Served, smtp: tuple[Mailbox, str], phone: Receiver
) -> None:
    served, (box, mail) = open_to_private, smtp
    await served.call(
        "PATCH", "/v1/config", json={"set": {"public_url": "https://holdfast.example.org"}}
    )
    assert (await set_target(served, "me", mail)).status_code == 200
    assert (await set_target(served, "ops", ntfy(phone))).status_code == 200
    agent = FakeAgent(served)
    await agent.register()
    job = await served.submit(name="train", notify=["me", "ops:failure"], retry={"max_retries": 0})
    order = await agent.take()
    await agent.sync(agent.running(order))
    lines = "".join(f"line {n}\n" for n in range(40)) + "ValueError: the loss is NaN\n"
    await agent.end(order, exit_code=1, log_tail=lines)
    ((to, subject, text),) = await box.until(1)
    assert to == ["me@example.org"]
    assert subject == "train: failed"
    assert "ValueError: the loss is NaN" in text
    assert "line 31" in text
    assert "line 30" not in text
    assert f"https://holdfast.example.org/v1/jobs/{job['id']}" in text
    why = (await served.call("GET", f"/v1/jobs/{job['id']}")).json()["reason"]
    assert why in " ".join(text.split())
    await phone.until(1)
    ((title, message),) = told(phone)
    assert title == "train: failed"
    assert "the loss is NaN" in message


async def test_a_stall_a_first_output_and_a_long_wait_are_told_once(
    open_to_private: Served, phone: Receiver
) -> None:
    """NOTICE-1"""
    served = open_to_private
    await set_target(served, "ops", ntfy(phone))
    wishes = ["ops:waits=0.2,first-output,stall,end"]
    job = await served.submit(name="train", notify=wishes)
    await phone.until(1)
    agent = FakeAgent(served)
    await agent.register()
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.send_log(order.key, b"hello\n")
    await phone.until(2)
    await asyncio.sleep(1.5)  # two more looks, which must not tell the same again
    trip = Trip(watchdog=Watchdog.STALL, exit_code=76, reason="no beat for 600 s")
    await agent.end(order, signal=9, trip=trip)
    await phone.until(3)
    await served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
    await phone.until(4)
    titles = [title for title, _ in told(phone)]
    assert titles == [
        "train: still waiting",
        "train: first output",
        "train: it stood still and was stopped",
        "train: was cancelled",
    ]
    assert "more than 0.2 s" in told(phone)[0][1]


async def test_a_project_tells_of_all_its_jobs_and_a_success_is_an_end(
    open_to_private: Served, phone: Receiver
) -> None:
    served = open_to_private
    await served.call("PUT", "/v1/projects/vision", json={})
    await set_target(served, "team", ntfy(phone), of="?project=vision")
    answer = await served.call("PUT", "/v1/projects/vision", json={"set": {"notify": "team:end"}})
    assert answer.status_code == 200, answer.text
    agent = FakeAgent(served)
    await agent.register()
    await served.submit(project="default")
    await agent.end(await agent.take(), exit_code=0)
    await served.submit(name="good", project="vision")
    await agent.end(await agent.take(), exit_code=0)
    await phone.until(1)
    ((title, message),) = told(phone)
    assert title == "good: succeeded"
    assert "project vision" in message


async def test_a_message_that_is_refused_is_tried_again_and_shown(
    open_to_private: Served, phone: Receiver
) -> None:
    served = open_to_private
    await set_target(served, "ops", ntfy(phone))
    phone.answer = lambda request, number: status(500) if number == 0 else OK
    job = await served.submit(notify=["ops:end"])
    await served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
    await phone.until(1)
    async with within(20):
        while not (shown := (await served.call("GET", "/v1/notices/ops")).json())["error"]:
            await asyncio.sleep(0.05)
    assert shown["pending"] == 1
    assert SECRET_TOPIC not in shown["error"]
    await phone.until(2, seconds=30)
    assert told(phone)[0] == told(phone)[1]


async def test_what_was_sent_and_not_recorded_is_sent_again(
    served: Served, store: PostgresStore, phone: Receiver
) -> None:
    """HOOK-2: the controller ends while the service has the message and has not answered."""
    await store.settings.write_cluster_settings({"webhook_allow_private": True})
    await set_target(served, "ops", ntfy(phone))
    phone.answer = lambda request, number: hang if number == 0 else OK
    job = await served.submit(notify=["ops:end"])
    await served.call("POST", f"/v1/jobs/{job['id']}/cancel", json={})
    await phone.until(1)
    await served.running.stop()
    again = RunningServer(store, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
    await again.start()
    await phone.until(2)
    await asyncio.sleep(1.0)
    await again.stop()
    assert len(phone.requests) == 2
    assert told(phone)[0] == told(phone)[1]


async def test_an_address_that_webhooks_may_not_reach_is_not_reached(
    open_to_private: Served, phone: Receiver
) -> None:
    """HOOK-4 holds where the connection is made, by any name and after any look-up."""
    served = open_to_private
    await set_target(served, "ops", ntfy(phone))
    await set_target(served, "named", f"ntfy://localhost:{phone.port}/{SECRET_TOPIC}")
    tried = (await served.call("POST", "/v1/notices/ops/test")).json()
    assert tried["delivered"], tried
    await served.call("PATCH", "/v1/config", json={"set": {"webhook_allow_private": False}})
    for name in ("ops", "named"):
        tried = (await served.call("POST", f"/v1/notices/{name}/test")).json()
        assert not tried["delivered"]
        assert tried["error"].startswith("refused: ")
        assert "webhook_allow_private" in tried["error"]
    assert len(phone.requests) == 1
    refused = await set_target(served, "ops", ntfy(phone))
    assert refused.status_code == 422
    assert "with TLS" in refused.json()["detail"]


async def test_a_redirect_is_not_followed(open_to_private: Served, phone: Receiver) -> None:
    served = open_to_private
    async with receive() as trap:
        phone.answer = lambda request, number: status(307, f"Location: {trap.url}")
        await set_target(served, "ops", ntfy(phone))
        assert not (await served.call("POST", "/v1/notices/ops/test")).json()["delivered"]
        assert trap.connections == 0


async def test_an_address_is_shown_nowhere(open_to_private: Served, phone: Receiver) -> None:
    served = open_to_private
    made = await set_target(served, "ops", ntfy(phone))
    shown = [made.text]
    for path in ("notices", "notices/ops", "webhooks", "events"):
        shown.append((await served.call("GET", f"/v1/{path}")).text)
    assert '"ops"' in shown[1]
    assert not any(SECRET_TOPIC in text for text in shown)
    assert (await served.call("GET", "/v1/webhooks")).json()["items"] == []


async def test_who_may_change_a_target(open_to_private: Served, phone: Receiver) -> None:
    served = open_to_private
    assert (await set_target(served, "ops", ntfy(phone), "read")).status_code == 403
    assert (await set_target(served, "ops", ntfy(phone), "submit")).status_code == 403
    of = "?project=vision"
    await served.call("PUT", "/v1/projects/vision", json={})
    assert (await set_target(served, "ops", ntfy(phone), "submit", of)).status_code == 403
    await served.call("PUT", "/v1/projects/vision", json={"set": {"shared": True}})
    assert (await set_target(served, "ops", ntfy(phone), "submit", of)).status_code == 200
    assert (await served.call("DELETE", f"/v1/notices/ops{of}", "submit")).status_code == 204
    assert (await served.call("DELETE", f"/v1/notices/ops{of}", "submit")).status_code == 404


@pytest.mark.parametrize(
    "wish", ["nobody-made-this", "ops:sometimes", "ops:waits", "ops:end=3", "a b"]
)
async def test_a_wish_that_could_not_be_met_is_refused_at_submission(
    open_to_private: Served, phone: Receiver, wish: str
) -> None:
    served = open_to_private
    await set_target(served, "ops", ntfy(phone))
    answer = await served.call("POST", "/v1/jobs", json={"argv": ["true"], "notify": [wish]})
    assert answer.status_code == 422
    assert answer.json()["field"] == "notify"
    answer = await served.call("PUT", "/v1/projects/p", json={"set": {"notify": wish}})
    assert answer.status_code == 422, answer.text
