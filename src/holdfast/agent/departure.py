"""When an agent goes.

AGT-5  A goodbye follows the last end: an agent that is to go while tasks live says none. TERM that
       reaches guardian and agent at once (scancel, a service manager, killall) is the guardian's to
       answer: the agent stays until all ends are told. TERM to the agent alone means it alone.
"""

import asyncio
import signal
from collections.abc import Callable

_STOPPING_SECONDS = 0.5  # after a TERM of its own, a guardian that has it too has said so


class Departure:
    """What tells an agent to go.

    host_stops: whether the guardian said that the host shuts down. count_live: how many ends are
    still to be reported. over: this agent goes. told: it was told to.
    """

    def __init__(self, host_stops: Callable[[], bool], count_live: Callable[[], int]) -> None:
        self._host_stops = host_stops
        self._count_live = count_live
        self.over = asyncio.Event()
        self.told = asyncio.Event()

    def listen(self) -> None:
        """Take the signals: TERM by AGT-5; HUP is the guardian's word that it starts another."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._take_term)
        loop.add_signal_handler(signal.SIGHUP, self.go)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is the guardian's to answer

    def go(self) -> None:
        """Go now."""
        self.told.set()
        self.over.set()

    def _take_term(self) -> None:
        self.told.set()
        seconds = 0.0 if self._host_stops() else _STOPPING_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._go_unless_needed)

    def _go_unless_needed(self) -> None:
        if not (self._host_stops() and self._count_live()):
            self.over.set()  # else with the last end
