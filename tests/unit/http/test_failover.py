"""Several controllers for one client: which one a request goes to, and what becomes of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.errors import ConnectionLost, NeverConnected, ValidationError
from holdfast.http.addresses import read_addresses, split_urls
from tests.unit.http.ways import Asker, be_silent, lose, say, serving
from tests.waits import free_port


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param  # type: ignore[no-any-return]  # a word of the list above


def test_a_controller_that_cannot_be_reached_is_left_for_the_next(kind: str) -> None:
    """CALL-3, and the next one is kept to, though the first is back."""
    with serving(say(b"second")) as second:
        away = free_port()
        urls = f"http://127.0.0.1:{away},{second.url}"
        with closing(Asker(kind, read_addresses(urls))) as client:
            assert client.ask(repeatable=False).body == b"second"  # nothing was sent to the first
            assert client.ask().body == b"second"
    assert second.taken == 2


def test_the_first_serves_again_once_the_second_is_away(kind: str) -> None:
    with serving(lose, say(b"first")) as first, serving(say(b"second")) as second:
        client = Asker(kind, read_addresses(f"{first.url},{second.url}"))
        with closing(client):
            assert client.ask().body == b"second"
            second.stop()
            assert client.ask().body == b"first"


def test_a_request_that_was_lost_goes_on_only_where_it_may_be_repeated(kind: str) -> None:
    with serving(lose) as first, serving(say(b"second")) as second:
        client = Asker(kind, read_addresses(f"{first.url},{second.url}"))
        with closing(client):
            with pytest.raises(ConnectionLost, match="hung up") as lost:
                client.ask(repeatable=False)
            assert not isinstance(lost.value, NeverConnected)
            assert second.taken == 0
            assert client.ask(repeatable=False).body == b"second", "the next request goes there"
        assert first.taken == 1


def test_a_controller_that_is_silent_is_left(kind: str) -> None:
    with serving(be_silent) as first, serving(say(b"second")) as second:
        client = Asker(kind, read_addresses(f"{first.url},{second.url}"))
        with closing(client):
            assert [client.ask(seconds=0.05).body for _ in range(2)] == [b"second"] * 2
    assert first.taken == 1


def test_a_controller_that_says_it_is_away_is_left_for_the_next_request(kind: str) -> None:
    with serving(say(b"", b"503 Away")) as first, serving(say(b"second")) as second:
        client = Asker(kind, read_addresses(f"{first.url},{second.url}"))
        with closing(client):
            assert client.ask().status == 503
            assert client.ask().body == b"second"


def test_where_all_are_away_each_is_named_with_its_reason(kind: str) -> None:
    one, two = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    client = Asker(kind, read_addresses(f"{one},{two}"))
    with closing(client), pytest.raises(NeverConnected) as lost:
        client.ask()
    assert lost.value.message == f"{one}: Connection refused; {two}: Connection refused"


def test_a_kept_connection_that_died_costs_a_repeatable_request_nothing(kind: str) -> None:
    """CALL-1: the controller is not taken for one that is away."""

    def answer_once(wire: socket.socket) -> None:
        wire.recv(65536)
        wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        wire.recv(65536)  # takes the second request, and hangs up on it

    with serving(answer_once, say(b"2")) as first, serving(say(b"other")) as second:
        client = Asker(kind, read_addresses(f"{first.url},{second.url}"))
        with closing(client):
            assert [client.ask().body for _ in range(3)] == [b"1", b"2", b"2"]
    assert second.taken == 0


@pytest.mark.parametrize("text", ["", ",", "http://a:1,box", "http://a:1,http://"])
def test_a_list_with_a_word_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        read_addresses(text)


def test_a_list_names_each_address_once() -> None:
    assert split_urls(" http://a:1/, https://b/x/,http://a:1") == ("http://a:1", "https://b/x")
    first, second = read_addresses("https://user:word@b\xfccher:4/x,http://[::1]:5")
    assert (first.host, first.port, first.prefix) == ("xn--bcher-kva", 4, "/x")
    assert (first.authority, first.login) == ("xn--bcher-kva:4", "user:word")
    assert (second.host, second.authority, second.is_loopback) == ("::1", "[::1]:5", True)
