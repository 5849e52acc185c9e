"""Proxies of the environment, and certificates of an authority of one's own, for both clients of
the SDK over real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import AsyncClient, Client
from holdfast.errors import Unavailable
from holdfast.http.addresses import read_address, read_addresses
from holdfast.http.asynchronous import AsyncHttp, AsyncStream
from holdfast.http.blocking import BlockingHttp
from holdfast.http.proxies import find_proxy
from tests.unit.cli.stub import JOB, Answer, Stub, job_record, serve_stub
from tests.unit.http.ways import NAME, ConnectProxy, make_chain, read_job, serving

KINDS = pytest.mark.parametrize("kind", [Client, AsyncClient])


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    return make_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def secure(chain: tuple[ssl.SSLContext, Path]) -> Iterator[Stub]:
    with serve_stub(chain[0]) as stub:
        stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record()))
        yield stub


@KINDS
def test_a_chain_of_ones_own_is_trusted_by_its_root(
    kind: type[Client], secure: Stub, chain: tuple[ssl.SSLContext, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By argument or environment; without, the certificate is refused with the reason."""
    with pytest.raises(Unavailable, match="certificate verify failed"):
        read_job(kind, JOB, secure.url)
    assert read_job(kind, JOB, secure.url, ca_file=str(chain[1])) == JOB
    for name in ("HOLDFAST_CA_FILE", "SSL_CERT_FILE"):
        with monkeypatch.context() as given:
            given.setenv(name, str(chain[1]))
            assert read_job(kind, JOB, secure.url) == JOB


@KINDS
def test_a_certificate_for_another_name_is_refused(
    kind: type[Client], secure: Stub, chain: tuple[ssl.SSLContext, Path]
) -> None:
    url = secure.url.replace("127.0.0.1", "localhost")
    with pytest.raises(Unavailable, match=r"Hostname mismatch|doesn't match"):
        read_job(kind, JOB, url, ca_file=str(chain[1]))


@KINDS
def test_https_goes_through_a_proxy_by_connect(
    kind: type[Client], secure: Stub, chain: tuple[ssl.SSLContext, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The certificate is checked for the controller's name, and the proxy sees no token."""
    word = b"Basic " + b64encode(b"me:p w")
    proxy = ConnectProxy(int(secure.url.rpartition(":")[2]), needs=word)
    with serving(proxy.turn) as served:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%20w@127.0.0.1:{served.port}")
        assert read_job(kind, JOB, f"https://{NAME}", ca_file=str(chain[1])) == JOB
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{served.port}")
        with pytest.raises(
            Unavailable, match=f"127.0.0.1:{served.port} answered 407 .* {NAME}:443"
        ):
            read_job(kind, JOB, f"https://{NAME}", ca_file=str(chain[1]))
    assert proxy.asked[0].startswith(b"CONNECT controller.invalid:443 HTTP/1.1\r\n")
    assert b"Bearer" not in b"".join(proxy.asked)


@KINDS
def test_http_goes_through_a_proxy_by_its_whole_address(
    kind: type[Client], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.on(f"GET http://{NAME}:7878/v1/jobs/{JOB}", Answer(job_record()))
    monkeypatch.setenv("http_proxy", stub.url.replace("//", "//me:word@"))
    assert read_job(kind, JOB, f"http://{NAME}:7878") == JOB
    headers = stub.requests[-1].headers
    assert headers["Host"] == f"{NAME}:7878"
    assert headers["Proxy-Authorization"].startswith("Basic ")


@KINDS
def test_a_proxy_that_is_away_is_named(kind: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"the proxy 127.0.0.1:9: Connection refused"):
        read_job(kind, JOB, f"http://{NAME}:7878")


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://127.0.0.1:1", {"HTTP_PROXY": "http://p:1"}, None),
        ("https://localhost", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http://box:1", {"http_proxy": "http://p:1"}, "p:1"),
        ("http://box:1", {"https_proxy": "http://p:1"}, None),
        ("https://box:1", {"https_proxy": "http://p:1", "HTTPS_PROXY": "http://q:1"}, "p:1"),
        ("http://box:1", {"ALL_PROXY": "p:3128"}, "p:3128"),
        ("http://box:1", {"no_proxy": "*", "http_proxy": "http://p:1"}, None),
        ("http://box.example:1", {"NO_PROXY": "a, .example", "ALL_PROXY": "socks5://p:1"}, None),
        ("http://box.example:1", {"NO_PROXY": "box.example:1", "ALL_PROXY": "http://p:1"}, None),
        ("http://box.example:1", {"NO_PROXY": "ample", "ALL_PROXY": "http://p:1"}, "p:1"),
    ],
)
def test_which_proxy_stands_on_the_way(
    url: str, environ: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = find_proxy(read_address(url))
    assert (found and found.authority) == proxy


class Echoed(asyncio.Protocol):
    """Hears what comes back. stream: what carries it."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport | None = None
        self.stream: AsyncStream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.set_result(data)


def echo(wire: socket.socket) -> None:
    while data := wire.recv(100):
        wire.sendall(data)


@pytest.mark.parametrize("proxied", [False, True])
def test_another_protocol_is_connected_the_same_way(
    proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also plain http goes through a proxy by CONNECT then; and the connection stays."""

    async def talk(http: AsyncHttp) -> bytes:
        protocol = Echoed()
        protocol.stream, _ = await http.connect(protocol)
        gc.collect()
        assert isinstance(protocol.transport, asyncio.WriteTransport)
        protocol.transport.write(b"hi")
        async with asyncio.timeout(60):
            heard = await protocol.heard
        protocol.stream.close()
        return heard

    with serving(echo) as far, serving(ConnectProxy(far.port).turn) as proxy:
        url = far.url
        if proxied:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            url = f"http://{NAME}:7878"
        addresses = read_addresses(url)
        assert asyncio.run(talk(AsyncHttp(addresses))) == b"hi"
        wire, address = BlockingHttp(addresses).connect()
        with wire:
            wire.sendall(b"ho")
            assert wire.recv(10) == b"ho"
        assert address.url == url
        assert bool(proxy.taken) is proxied
