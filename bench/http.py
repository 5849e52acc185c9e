"""One keep-alive HTTP/1.1 connection, as thin as Python allows, so that the client does not hide
what it measures."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit


class Connection:
    """Blocking. One request at a time; opens itself again when the server closed it between two
    requests."""

    def __init__(self, url: str, token: str = "", timeout_seconds: float = 60.0) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._head = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if token:
            self._head += f"Authorization: Bearer {token}\r\n"
        self._timeout_seconds = timeout_seconds
        self._socket: socket.socket | None = None

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send and wait for the whole answer: (status, body). Raises OSError when there is none."""
        for last in (False, True):
            fresh = self._socket is None
            if self._socket is None:
                self._socket = socket.create_connection(
                    self._address, timeout=self._timeout_seconds
                )
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
            try:
                self._socket.sendall(head.encode() + body)
                return self._read(self._socket)
            except ConnectionError:
                self.close()
                if fresh or last:
                    raise
        raise AssertionError("unreachable")

    def call(self, method: str, path: str, value: object = None) -> Any:
        """As `request`, with JSON both ways. Raises RuntimeError for a status of 300 and above."""
        status, body = self.request(
            method, path, b"" if value is None else json.dumps(value).encode()
        )
        if status >= 300:
            raise RuntimeError(
                f"{method} {path}: HTTP {status}: {body[:300].decode(errors='replace')}"
            )
        return json.loads(body) if body else None

    def _read(self, sock: socket.socket) -> tuple[int, bytes]:
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive(sock)
        head = data[:end].decode("latin-1").lower()
        status, body = int(head.split(" ", 2)[1]), data[end + 4 :]
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
        if "chunked" in headers.get("transfer-encoding", ""):
            body = self._read_chunks(sock, body)
        else:
            size = int(headers.get("content-length", "0"))
            while len(body) < size:
                body += self._receive(sock)
        if headers.get("connection") == "close":
            self.close()
        return status, body

    def _read_chunks(self, sock: socket.socket, data: bytes) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in data:
                data += self._receive(sock)
            line, data = data.split(b"\r\n", 1)
            size = int(line.split(b";")[0], 16)
            while len(data) < size + 2:
                data += self._receive(sock)
            body, data = body + data[:size], data[size + 2 :]
            if size == 0:
                return body

    def _receive(self, sock: socket.socket) -> bytes:
        data = sock.recv(262_144)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data

    def close(self) -> None:
        """Close; the next request opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
