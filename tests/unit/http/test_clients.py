"""The SDK's clients over real sockets, against servers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.client import AsyncClient, Client
from holdfast.errors import TooLarge, Unavailable, ValidationError
from tests.unit.cli.stub import JOB

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n" + b'{"items":[],"next":null} '


@contextmanager
def serve(*turns: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve on loopback: one turn for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            for turn in turns:
                with contextlib.suppress(OSError):
                    wire, _ = server.accept()
                    with wire:
                        turn(wire)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def answer(*parts: bytes) -> Callable[[socket.socket], None]:
    """Make a turn that answers each request with the next of `parts`, and hangs up."""

    def turn(wire: socket.socket) -> None:
        for part in parts:
            wire.recv(65536)
            wire.sendall(part)

    return turn


def test_calls_share_a_connection() -> None:
    with serve(answer(OK, OK, OK)) as url, Client(url, "t", retry_seconds=0.0) as client:
        assert [client.queues() for _ in range(3)] == [[], [], []]


def test_a_kept_connection_that_was_closed_is_not_used_again() -> None:
    closed = threading.Event()

    def once(wire: socket.socket) -> None:
        answer(OK)(wire)
        wire.shutdown(socket.SHUT_RDWR)
        closed.set()

    with serve(once, answer(OK)) as url, Client(url, "t", retry_seconds=0.0) as client:
        client.queues()
        assert closed.wait(60)
        assert client.queues() == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "hung up without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{", "closed the connection within|peer"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "the answer is no HTTP"),
    ],
)
def test_a_broken_answer_is_unavailable(said: bytes, why: str) -> None:
    with (
        serve(answer(said)) as url,
        Client(url, "t", retry_seconds=0.0) as client,
        pytest.raises(Unavailable, match=why),
    ):
        client.queues()


def test_silence_is_unavailable() -> None:
    done = threading.Event()
    with (
        serve(lambda wire: done.wait(60) and None) as url,
        Client(url, "t", timeout_seconds=0.05, retry_seconds=0.0) as client,
    ):
        with pytest.raises(Unavailable, match="timed out"):
            client.queues()
        done.set()


def test_an_answer_in_chunks_is_read_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'a\r\n{"items":[\r\n' + b'e\r\n],"next":null}\r\n' + b"0\r\n\r\n"
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    with serve(answer(interim + head + body)) as url, Client(url, "t") as client:
        assert client.queues() == []


def test_an_early_refusal_of_an_upload_is_read(tmp_path: Path) -> None:
    """And the rest is not sent."""
    file = tmp_path / "large"
    with file.open("wb") as sparse:
        sparse.truncate(64 << 20)
    taken = 0
    problem = b'{"status":413,"code":"too_large","detail":"the checkpoint is too large"}'

    def refuse(wire: socket.socket) -> None:
        nonlocal taken
        wire.recv(65536)
        wire.sendall(
            b"HTTP/1.1 413 Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(problem), problem)
        )
        wire.shutdown(socket.SHUT_WR)
        while piece := wire.recv(1 << 20):
            taken += len(piece)

    with (
        serve(refuse) as url,
        Client(url, "t") as client,
        pytest.raises(TooLarge, match="the checkpoint is too large"),
    ):
        client.put_checkpoint(JOB, file)
    assert taken < 32 << 20


@pytest.mark.parametrize("host", ["127.0.0.1", "controller.invalid"])
def test_the_authorities_of_the_environment_are_trusted(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On loopback too."""
    (tmp_path / "authority.pem").write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    for kind in (Client, AsyncClient):
        with pytest.raises(ValidationError, match=r"authority.pem .SSL_CERT_FILE"):
            kind(f"https://{host}:7878", "t")
