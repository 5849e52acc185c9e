"""Find when a `holdfast up` is ready: its controller answers, and its agent has joined or its pool
exists."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from holdfast.cli.up.folder import DataFolder
from holdfast.errors import Unavailable
from holdfast.http.addresses import read_addresses
from holdfast.http.blocking import BlockingHttp
from holdfast.http.courier import HttpRequest

_ANSWER_SECONDS = 5.0
_NEXT_JOIN_SECONDS = 30.0


def say_lacks(host: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that this host cannot do, or does in another way."""
    if host.get("memory_limits") == "watch":
        yield (
            "no memory control group can be made here, so the agent's watch enforces --memory: it "
            "looks every second"
        )
    for fault in host.get("faults", ()):
        what = "starts nothing" if fault["part"] == "starts" else "starts no containers"
        yield f"this host {what} now, and tries itself: {fault['reason']}"


class Readiness:
    """Asks the controller, in a thread, until this host is active. Where its key is refused, the
    agent gets a new join token.

    A call waits in the listener's queue until the controller answers.

    Args:
        url: the controller's address.
        tell: called with the news `ready`.
        say: called with sentences for the person at the terminal.
        stopping: returns True once `up` stops.
        pool: the pool to make if it is missing; None if an agent joins instead.
    """

    def __init__(
        self,
        folder: DataFolder,
        url: str,
        *,
        tell: Callable[[str], None],
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        pool: Mapping[str, Any] | None = None,
    ) -> None:
        self._pool = pool
        self._folder = folder
        self._http = BlockingHttp(read_addresses(url), timeout_seconds=_ANSWER_SECONDS)
        self._tell = tell
        self._say = say
        self._stopping = stopping
        self._old_incarnation = folder.read_identity().get("incarnation", "")

    def watch(self, patience_seconds: float = 0.0) -> None:
        """Return when this host is active, or when `up` stops. Make a join token if the host is not
        active `patience_seconds` after the controller's first answer."""
        while not self._stopping() and not self._controller_answers():
            time.sleep(0.02)
        if self._pool is not None:
            return self._open_pool(self._pool)
        look_at = time.monotonic() + patience_seconds
        pause = 0.02
        while not self._stopping():
            host = self._find_active_host()
            if host is not None:
                for sentence in say_lacks(host):
                    self._say(sentence)
                self._tell("ready")
                self._say_dashboard()
                return
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _NEXT_JOIN_SECONDS
                self._make_join_token()
            time.sleep(pause)
            pause = min(pause * 1.2, 0.5)

    def _open_pool(self, pool: Mapping[str, Any]) -> None:
        """Make the pool if it is missing; leave one that exists, because its user may have
        changed it."""
        path = f"/v1/pools/{quote(pool['name'], safe='')}"
        told = False
        while not self._stopping():
            try:
                status, data = self._ask("GET", path)
                if status == 404:
                    status, data = self._ask("PUT", path, json.dumps(pool).encode())
                if status == 200:
                    self._tell("ready")
                    return self._say_dashboard()
                trouble = f"HTTP {status} {data[:300]!r}"
            except (OSError, Unavailable) as error:
                trouble = repr(error)
            if not told and not self._stopping():
                told = True
                self._say(f"pool {pool['name']} cannot be made, trying again: {trouble}")
            time.sleep(0.2)

    def _say_dashboard(self) -> None:
        """Print a link that signs a browser in. A link is no reason to fail: another is printed by
        `holdfast dashboard`."""
        try:
            status, data = self._ask("POST", "/v1/sign-ins/links", b"{}")
            link = json.loads(data)["url"] if status == 201 else ""
        except (OSError, Unavailable, ValueError, KeyError):
            link = ""
        if link and not self._stopping():
            self._say(f"dashboard, for one browser within ten minutes: {link}")

    def _controller_answers(self) -> bool:
        try:
            return self._ask("GET", "/readyz", token=False)[0] == 200
        except (OSError, Unavailable):
            return False

    def _find_active_host(self) -> dict[str, Any] | None:
        """Return this host as the controller shows it; None until it has joined."""
        known = self._folder.read_identity()
        incarnation = known.get("incarnation", "")
        if not incarnation or incarnation == self._old_incarnation:
            return None
        try:
            status, data = self._ask("GET", f"/v1/hosts/{known.get('host_id', '')}")
            host: dict[str, Any] = json.loads(data)
        except (OSError, Unavailable, ValueError):
            return None
        found = (status, host.get("state"), host.get("incarnation"))
        return host if found == (200, "active", incarnation) else None

    def _make_join_token(self) -> None:
        try:
            body = json.dumps({"role": "join", "name": "local agent"}).encode()
            status, data = self._ask("POST", "/v1/tokens", body)
            if status == 201:
                secret = json.loads(data)["secret"]
                self._folder.write_join(secret)
                return
            trouble = f"HTTP {status} {data[:300]!r}"
        except (OSError, Unavailable, ValueError, KeyError) as error:
            trouble = repr(error)
        if not self._stopping():
            self._say(f"no join token: {trouble}")

    def _ask(
        self, method: str, path: str, body: bytes | None = None, *, token: bool = True
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {self._folder.token_file.read_text().strip()}"
        request = HttpRequest(method, path, _ANSWER_SECONDS, headers=headers, body=body)
        answer = self._http.call(request)
        return answer.status, answer.body
