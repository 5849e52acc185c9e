"""Decide when an agent leaves.

AGT-5  An agent reports that its host leaves after the last end only; if it has to leave while tasks
       live, it does not report that. If TERM reaches guardian and agent at once (scancel, a service
       manager, killall), the guardian acts on it, and the agent stays until all ends are reported.
       TERM to the agent alone ends the agent alone.
"""

import asyncio
import logging
import os
import signal

from holdfast.agent.link import GuardianLink
from holdfast.agent.tasks.table import TaskTable

log = logging.getLogger("holdfast.agent")

_STOPPING_SECONDS = 0.5  # a guardian that got TERM, too, has reported it within this


class Departure:
    """Holds the reasons for which an agent leaves.

    host_stops: True once the guardian reported that the host shuts down. replaced: True once this
    host's place is over (AGT-4). line_lost: True once the line to the guardian ended. over: set
    when this agent leaves. told: set when the agent was told to leave.
    """

    def __init__(self, table: TaskTable, link: GuardianLink) -> None:
        self._table = table
        self._link = link
        self.host_stops = self.replaced = self.line_lost = False
        self.over = asyncio.Event()
        self.told = asyncio.Event()

    def listen(self) -> None:
        """Handle the signals: TERM by AGT-5; HUP, by which the guardian replaces this agent."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._take_term)
        loop.add_signal_handler(signal.SIGHUP, self.go)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the guardian handles Ctrl-C

    def go(self) -> None:
        """End this agent now."""
        self.told.set()
        self.over.set()

    def lose_line(self) -> None:
        """Let this agent end, because the guardian's next agent takes over on a new line, or
        because there is no guardian."""
        self.line_lost = True
        self.go()

    def go_when_empty(self) -> None:
        """Let this agent end, if this host shuts down and no task lives any more."""
        if not (self.host_stops or self.replaced) or self._table.count_live():
            return
        if self.replaced:
            log.error("its tasks are ended, and the guardian is told to go")
            self._link.ack([task.key for task in self._table])  # no controller will ack these
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            self.over.set()

    def _take_term(self) -> None:
        self.told.set()
        seconds = 0.0 if self.host_stops else _STOPPING_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._go_unless_needed)

    def _go_unless_needed(self) -> None:
        if not (self.host_stops and self._table.count_live()):
            self.over.set()  # otherwise the agent leaves with the last end
