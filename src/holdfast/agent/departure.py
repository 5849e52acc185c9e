"""When an agent goes.

AGT-5  A goodbye follows the last end: an agent that is to go while tasks live says none. TERM that
       reaches guardian and agent at once (scancel, a service manager, killall) is the guardian's to
       answer: the agent stays until all ends are told. TERM to the agent alone means it alone.
"""

import asyncio
import logging
import os
import signal

from holdfast.agent.link import GuardianLink
from holdfast.agent.tasks import TaskTable

log = logging.getLogger("holdfast.agent")

_STOPPING_SECONDS = 0.5  # after a TERM of its own, a guardian that has it too has said so


class Departure:
    """What tells an agent to go.

    host_stops: the guardian said that the host shuts down. replaced: this host's place is over
    (AGT-4). line_lost: the line to the guardian ended. over: this agent goes. told: it was told to.
    """

    def __init__(self, table: TaskTable, link: GuardianLink) -> None:
        self._table = table
        self._link = link
        self.host_stops = self.replaced = self.line_lost = False
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

    def lose_line(self) -> None:
        """Go, because the guardian's next agent takes over on a new line, or there is no guardian."""
        self.line_lost = True
        self.go()

    def go_when_empty(self) -> None:
        """Go, where the host does and no task lives any more."""
        if not (self.host_stops or self.replaced) or self._table.count_live():
            return
        if self.replaced:
            log.error("its tasks are ended, and the guardian is told to go")
            self._link.ack([task.key for task in self._table])  # no controller takes these ends
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            self.over.set()

    def _take_term(self) -> None:
        self.told.set()
        seconds = 0.0 if self.host_stops else _STOPPING_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._go_unless_needed)

    def _go_unless_needed(self) -> None:
        if not (self.host_stops and self._table.count_live()):
            self.over.set()  # else with the last end
