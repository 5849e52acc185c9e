"""The controller that this process submits its calls to: found at first use, shared by threads."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.client.synchronous import Client


class CallsConnection:
    """One client, made anew in the child of a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._pid = 0

    @property
    def client(self) -> Client:
        """The client. Raises NoController where nothing says where a controller is."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                from holdfast.client.synchronous import Client

                self._client, self._pid = Client(), os.getpid()
            return self._client

    def use(self, client: Client | None) -> None:
        """Submit through this client from now on; None: find one."""
        with self._lock:
            self._client, self._pid = client, os.getpid()

    def keep(self, sha256: str, data: bytes) -> None:
        """Keep a large value in the blob store."""
        self.client.put_value(data)

    def fetch(self, sha256: str) -> bytes:
        """Return a large value from the blob store."""
        return self.client.value(sha256)


CONNECTION = CallsConnection()
