"""The protocols of a stream, which carries a connection's bytes, and of a dialer, which makes
connections. The modules `blocking` and `asynchronous` have one of each.

The methods are coroutines in both. The coroutines of `blocking` never wait for an event loop: they
block, so that the steps of an exchange are written once (`courier`) and run there without an event
loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl


class ByteStream(Protocol):
    """One connection. Its methods raise OSError, TimeoutError among them."""

    async def send(self, data: bytes, seconds: float) -> None:
        """Write all of the data to the connection. seconds: the longest wait for the peer to take
        more."""

    async def receive(self, seconds: float) -> bytes:
        """Return the bytes that have come, after a wait of at most `seconds`; no bytes at the end
        of the connection."""

    async def secure(self, tls: ssl.SSLContext, host: str, seconds: float) -> None:
        """Speak TLS from now on; the certificate must be for `host`."""

    def has_news(self) -> bool:
        """Return whether bytes, or the connection's end, have come already."""

    def stop(self) -> None:
        """End the connection; a thread that waits in it gets an error."""

    def close(self) -> None:
        """Close the connection."""


class Dialer(Protocol):
    """Makes connections. Its methods raise OSError, TimeoutError among them."""

    async def find(self, host: str, port: int) -> list[str]:
        """Return the addresses that the name of a host stands for."""

    async def open(self, address: str, port: int, seconds: float) -> ByteStream:
        """Connect to an address and return the connection. seconds: the longest wait for the
        connection."""
