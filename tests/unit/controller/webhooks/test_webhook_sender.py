"""One try over the real network: what counts as success, how long it may take, and where it never
goes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import webhooks
from holdfast.controller.runtime.senders.webhooks import Resolver, Sender, TargetRefused
from holdfast.core.webhooks.values import DeliveryAnswer
from holdfast.errors import ValidationError
from tests.unit.controller.webhooks.receiver import (
    OK,
    SECRET,
    drip,
    hang,
    make_certificate,
    pour,
    receive,
    status,
)
from tests.waits import within

BODY = b'{"delivery":"d1","webhook":"w1","event":{"kind":"job.failed"},"job":null}'
HUGE = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"


class Names:
    """A name server that may change its mind."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def post(
    url: str,
    *,
    sender: Sender | None = None,
    seconds: float = 20,
    allow_private: bool = True,
    secrets: Sequence[str] = (SECRET,),
    body: bytes = BODY,
) -> DeliveryAnswer:
    return await (sender or Sender()).send(
        url, "w1", "d1", secrets, body, allow_private=allow_private, seconds=seconds
    )


# ---- what is sent


async def test_a_call_is_signed_and_says_which_delivery_it_is() -> None:
    async with receive() as receiver:
        answer = await post(receiver.url)
        assert (answer.status, answer.error) == (200, "")
        (request,) = receiver.requests
        assert request.path == "/hook?x=1"
        assert request.body == BODY
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert request.headers["content-type"] == "application/json"
        assert (request.headers["holdfast-webhook-id"], request.delivery) == ("w1", "d1")
        received = webhooks.verify(SECRET, request.headers, request.body)
        assert (received.webhook, received.delivery, received.event["kind"]) == (
            "w1",
            "d1",
            "job.failed",
        )


async def test_both_secrets_sign() -> None:
    async with receive() as receiver:
        receiver.secret = None
        await post(receiver.url, secrets=("the-new-secret-1234", "the-old-secret-1234"))
        (request,) = receiver.requests
        for secret in ("the-new-secret-1234", "the-old-secret-1234"):
            webhooks.verify(secret, request.headers, request.body)
        with pytest.raises(webhooks.BadSignature):
            webhooks.verify("another-secret-1234", request.headers, request.body)


# ---- what an answer means


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
async def test_only_2xx_is_success(code: int) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: status(code)
        assert (await post(receiver.url)).error == ""


@pytest.mark.parametrize("code", [300, 304, 400, 404, 410, 429, 500, 503])
async def test_the_rest_is_not(code: int) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: status(code)
        answer = await post(receiver.url)
        assert answer.status == code
        assert str(code) in answer.error


async def test_redirects_are_not_followed() -> None:
    async with receive() as trap, receive() as receiver:
        receiver.answer = lambda request, number: status(307, f"Location: {trap.url}")
        answer = await post(receiver.url)
        assert (answer.status, trap.connections) == (307, 0)
        assert "redirects are not followed" in answer.error


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("17", 17.0), ("-1", None), ("soon", None), ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0)],
)
async def test_retry_after_is_read(header: str, seconds: float | None) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: status(503, f"Retry-After: {header}")
        assert (await post(receiver.url)).retry_after_seconds == seconds


async def test_an_interim_answer_is_passed_over() -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: (
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK
        )
        assert (await post(receiver.url)).status == 200


@pytest.mark.parametrize(
    "lie",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nfar too long",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk at all",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n\x00\xff\xfe{{{",
    ],
    ids=["length too long", "length too short", "broken chunks", "garbage"],
)
async def test_lies_about_the_body_do_not_matter(lie: bytes) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: lie
        assert (await post(receiver.url)).status == 200


@pytest.mark.parametrize(
    "lie",
    [
        b"", b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 999999 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
        b"HTTP/1.1 103 Early\r\n\r\n" * 5000, b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
    ids=["nothing", "half a line", "half a head", "tls", "ssh", "a wild code", "endless header", "endless hints", "101"],
)  # fmt: skip
async def test_what_is_no_answer_is_a_failure(lie: bytes) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: lie
        answer = await post(receiver.url)
        assert answer.status is None
        assert answer.error


# ---- how long, how much


async def test_a_receiver_that_hangs_costs_the_time_limit_and_no_more() -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: hang
        answer = await post(receiver.url, seconds=0.3)
        assert answer.error == "no answer within 0.3 s"
        async with within(10):
            while receiver.open_now:  # our end is closed, and the receiver sees it
                await asyncio.sleep(0.01)


async def test_the_limit_is_on_the_whole_not_on_each_byte() -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: drip(
            OK, 0.1
        )  # four seconds for it all, a tenth for a byte
        assert (await post(receiver.url, seconds=0.5)).error == "no answer within 0.5 s"


async def test_a_slow_or_endless_body_does_not_hold_us() -> None:
    """The status is the answer. Of the body a little is read for politeness; the test's own time
    limit is the assertion."""
    async with receive() as receiver:
        for body in (pour(HUGE), pour(b"HTTP/1.1 200 OK\r\n\r\n"), drip(HUGE + b"x" * 100, 0.0)):
            receiver.answer = lambda request, number, body=body: body  # type: ignore[misc]  # mypy takes the default for a third argument
            async with within(15):
                answer = await post(receiver.url, seconds=60)
            assert (answer.status, answer.error) == (200, "")


async def test_a_receiver_that_answers_before_it_has_read_is_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(status(413))
        await writer.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answer = await post(f"http://127.0.0.1:{port}/", body=b"x" * 8_000_000)
    assert answer.status == 413
    server.close()


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        answer = await post(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert answer.status is None
    assert "cannot be reached" in answer.error


# ---- where it never goes


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/",
        "https://10.1.2.3/", "https://169.254.169.254/latest/meta-data", "https://[fe80::1]/", "https://0.0.0.0/",
        "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://127.1/", "https://017700000001/",
        "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://224.0.0.1/", "https://100.64.0.1/",
        "http://93.184.216.34/", "https://user:pass@93.184.216.34/", "ftp://93.184.216.34/", "https:///x",
        "https://a b/", "https://a.example:0/", "https://a.example:99999/", "https://a.example\\@127.0.0.1/",
        "https://[fe80::1%25lo]/", "https://" + "a" * 3000 + "/", "https://127.0.0.1./", "https://xn--\N{BULLET}/",
    ],
)  # fmt: skip
async def test_refused_urls(url: str) -> None:
    names = Names(["127.0.0.1"])
    with pytest.raises((ValidationError, TargetRefused)):
        await Sender(names).check_target(url, allow_private=False, seconds=5)
    answer = await post(url, sender=Sender(names), allow_private=False)
    assert answer.status is None
    assert answer.error.startswith("refused: ")
    assert names.asked == 0


@pytest.mark.parametrize(
    "url", ["https://169.254.169.254/", "https://[fe80::1]/", "http://0.0.0.0/", "http://[::]/"]
)
async def test_what_no_setting_allows(url: str) -> None:
    assert (await post(url, allow_private=True)).error.startswith("refused: ")


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%lo"],
        ["192.168.1.1"],
        [],
    ],
)
async def test_a_name_is_refused_by_any_of_its_addresses(addresses: list[str]) -> None:
    """HOOK-4."""
    async with receive() as trap:
        sender = Sender(Names(addresses))
        answer = await post(
            f"https://innocent.example:{trap.port}/", sender=sender, allow_private=False
        )
        assert answer.error.startswith("refused: innocent.example may not be called")
        with pytest.raises(TargetRefused):
            await sender.check_target("https://innocent.example/", allow_private=False, seconds=5)
        assert trap.connections == 0


async def test_names_of_this_machine_are_refused_by_the_real_resolver() -> None:
    async with receive() as trap:
        answer = await post(f"https://localhost:{trap.port}/", allow_private=False)
        assert answer.error.startswith("refused: localhost may not be called")
        assert trap.connections == 0
        trap.secret = None
        assert (await post(f"http://localhost:{trap.port}/")).status == 200


async def test_a_name_is_looked_up_once_a_try_and_the_judged_address_is_called(
    tmp_path: Path,
) -> None:
    """HOOK-4: a name server that says something harmless first and loopback afterwards gets no
    second question."""
    server, client = make_certificate(tmp_path, "hooks.example")
    async with receive(tls=server) as receiver:
        names = Names(["127.0.0.1"], ["169.254.169.254"])
        sender = Sender(names, client)
        answer = await post(f"https://hooks.example:{receiver.port}/", sender=sender)
        assert (answer.status, names.asked) == (200, 1)
        assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"
        answer = await post(f"https://hooks.example:{receiver.port}/", sender=sender)
        assert answer.error.startswith("refused: ")
        assert (names.asked, len(receiver.requests)) == (2, 1)


async def test_the_certificate_must_be_the_names(tmp_path: Path) -> None:
    server, client = make_certificate(tmp_path, "hooks.example")
    async with receive(tls=server) as receiver:
        loopback = Names(["127.0.0.1"])
        answer = await post(
            f"https://other.example:{receiver.port}/", sender=Sender(loopback, client)
        )
        assert answer.error.startswith("the certificate does not hold")
        answer = await post(f"https://hooks.example:{receiver.port}/", sender=Sender(loopback))
        assert answer.error.startswith("the certificate does not hold")
        assert receiver.requests == []


async def test_the_second_address_is_tried_where_the_first_is_dead() -> None:
    async with receive() as receiver:
        sender = Sender(Names(["127.0.0.2", "127.0.0.1"]))
        assert (await post(f"http://two.example:{receiver.port}/", sender=sender)).status == 200


async def test_a_name_that_does_not_resolve_yet_may_be_kept() -> None:
    async def fail(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    await Sender(fail).check_target("https://later.example/", allow_private=False, seconds=5)
    assert "no such name" in (await post("https://later.example/", sender=Sender(fail))).error


async def test_a_look_up_that_hangs_holds_nobody() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    await Sender(never).check_target("https://slow.example/", allow_private=False, seconds=0.1)
    assert (
        await post("https://slow.example/", sender=Sender(never), seconds=0.2)
    ).error == "no answer within 0.2 s"


async def test_look_ups_are_bounded_and_give_their_room_back() -> None:
    resolver = Resolver()
    for _ in range(40):
        assert "127.0.0.1" in await resolver("127.0.0.1", 80)
    with pytest.raises(OSError, match=r".*"):
        await resolver("no-such-name.invalid", 80)


# ---- the receiver's side


def test_verify_refuses_what_is_old_changed_or_not_ours() -> None:
    from holdfast.core.webhooks.values import make_headers

    headers = make_headers("w1", "d1", [SECRET], 1_000, BODY)
    assert webhooks.verify(SECRET, headers, BODY, now=1_299).timestamp == 1_000
    assert (
        webhooks.verify(
            ["x" * 16, SECRET], {k.upper(): v for k, v in headers.items()}, BODY, now=701
        ).delivery
        == "d1"
    )
    for now in (1_301, 699):
        with pytest.raises(webhooks.BadSignature, match="ago"):
            webhooks.verify(SECRET, headers, BODY, now=now)
    bad = [
        (headers, BODY + b" "), ({**headers, "Holdfast-Timestamp": "1001"}, BODY), ({}, BODY),
        ({**headers, "Holdfast-Signature": ""}, BODY), ({**headers, "Holdfast-Signature": "v1="}, BODY),
        ({**headers, "Holdfast-Signature": headers["Holdfast-Signature"].replace("v1", "v0")}, BODY),
        ({**headers, "Holdfast-Timestamp": "\N{SUPERSCRIPT TWO}"}, BODY), ({**headers, "Holdfast-Timestamp": "-5"}, BODY),
        (make_headers("w1", "d1", [SECRET], 1_000, b"[]"), b"[]"),
        (make_headers("w1", "d1", [SECRET], 1_000, b"{"), b"{"),
    ]  # fmt: skip
    for shown, body in bad:
        with pytest.raises(webhooks.BadSignature):
            webhooks.verify(SECRET, shown, body, now=1_000)
