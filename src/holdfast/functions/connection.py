"""The controller that this process submits its calls to: found at first use, shared by threads."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from holdfast.functions.running import context
from holdfast.wire.bearer import name_call_set, read_job_token

if TYPE_CHECKING:
    from holdfast.client.synchronous import Client


class CallsConnection:
    """One client, made anew in the child of a fork, and in an executor whenever a call of another
    set begins. What was opened through an earlier client belongs to that client's call set, and is
    let go (SETS-1)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._pid = 0
        self._set_id = ""
        self._given = False

    @property
    def client(self) -> Client:
        """Return the client. Raises NoController where no setting names a controller."""
        with self._lock:
            set_id = context().id.partition(".")[0] or self._set_id  # between two calls: the last
            stale = self._pid != os.getpid() or (set_id != self._set_id and not self._given)
            if self._client is None or stale:
                self._client, self._pid, self._set_id = _connect(set_id), os.getpid(), set_id
                self._given = False
            return self._client

    def use(self, client: Client | None) -> None:
        """Submit through this client from now on; None to find a client at the next use."""
        with self._lock:
            self._client, self._pid, self._given = client, os.getpid(), client is not None

    def keep(self, sha256: str, data: bytes) -> None:
        """Keep a large value in the blob store."""
        self.client.put_value(data)

    def fetch(self, sha256: str) -> bytes:
        """Return a large value from the blob store."""
        return self.client.value(sha256)


def _connect(set_id: str) -> Client:
    """Return a client; in an executor, one that acts for the set of the running call."""
    from holdfast.client.synchronous import Client

    client = Client()
    token = client.place.token or ""
    if not (set_id and read_job_token(token)):
        return client
    client.close()
    urls, ca_file = ",".join(client.place.urls), client.place.ca_file
    return Client(urls, name_call_set(token, set_id), ca_file=ca_file)


CONNECTION = CallsConnection()
