"""Learn where the other controllers of the cluster serve, so that a host outlives the one it joined.

LEARN-1  The host takes a further address only from a controller that it trusts. It refuses an address
         without https where that controller's own has https, and a loopback address of another
         machine, because that names this machine here. The host keeps learned addresses over a
         restart of its agent, and tries the addresses of its configuration first.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.bounds import UNREADABLE
from holdfast.errors import HoldfastError, ValidationError
from holdfast.http.addresses import HttpAddress, read_address
from holdfast.process.files import write_atomic

log = logging.getLogger("holdfast.agent")
ASK_SECONDS = 300.0
FILE = "controllers.json"


class KnownControllers:
    """The controllers of this host's cluster. joined: the addresses of the configuration. learn:
    called with further addresses; the same address may come again."""

    def __init__(
        self,
        calls: ControllerCalls,
        joined: tuple[HttpAddress, ...],
        folder: Path,
        learn: Callable[[list[HttpAddress]], None],
    ) -> None:
        self._calls, self._joined, self._learn = calls, joined, learn
        self._path = folder / FILE
        self._kept: list[str] = []
        with suppress(OSError, *UNREADABLE):
            self._kept = msgspec.json.decode(self._path.read_bytes(), type=list[str])
        learn(self.choose(self._kept))

    def choose(self, urls: Iterable[str]) -> list[HttpAddress]:
        """Return the addresses that may be learned (LEARN-1)."""
        first, found = self._joined[0], []
        for url in urls:
            with suppress(ValidationError):
                address = read_address(url)
                if address.is_secure == first.is_secure and (
                    first.is_loopback or not address.is_loopback
                ):
                    found.append(address)
        return found

    async def ask(self) -> None:
        """Ask the controller once for the addresses of the others, and keep the addresses that it
        names. Raises HoldfastError, OSError."""
        found = self.choose((await self._calls.ask_controllers()).urls)
        self._learn(found)
        urls = [address.url for address in found]
        if urls != self._kept:
            await asyncio.to_thread(write_atomic, self._path, msgspec.json.encode(urls))
            self._kept = urls

    async def run(self) -> None:
        """Ask the controller for the addresses of the others for ever: soon after the start, and
        then every few minutes."""
        pause = 5.0
        while True:
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            try:
                await self.ask()
                pause = ASK_SECONDS
            except (HoldfastError, OSError) as error:
                log.debug("the other controllers are not known: %s", error)
