"""Send TERM to the processes of a container, as the host sees them.

A runtime signals the first process alone, and a small init passes the signal to its one child, the
main program. The processes below are told from here, by the table that holds outside containers
too (`process.telling`): a shell or a launcher without a handler for TERM dies of it, and
the kernel kills all other processes of the container then, so a program below the shell that has a
checkpoint to save is told before it (TELL-4).

TELL-1  The main program gets TERM from the runtime, the others from here, as the table says, and
        each once. The grace limits all of this, as everywhere.
TELL-2  Only processes that are proven to be this container's are signalled from here: they are
        below its first process, which carries the task's marks.
"""

import signal
import time

from holdfast.agent.containers.plan import name_container
from holdfast.core.ids import TaskKey
from holdfast.process.endings.teller import Teller
from holdfast.process.table import ProcessEntry, read_marks, read_signals, read_table, send_signal
from holdfast.process.telling import HALF, Tell, judge_answer, may_tell_last

_LOOK_SECONDS = (0.06, 0.5)


class Inside:
    """Holds one container's processes. first: the pid of its first process. with_init: True if
    the first process is the small init. grace_seconds, tell: of the job."""

    def __init__(
        self,
        name: str,
        first: int,
        *,
        with_init: bool,
        grace_seconds: float = 0.0,
        tell: Tell = "main",
    ) -> None:
        self._name = name
        self._first = first
        self._with_init = with_init
        self._grace_seconds = grace_seconds
        self._tell: Tell = tell
        self._teller: Teller | None = None
        self._half_at = 0.0
        self._pause, self._longest = _LOOK_SECONDS
        self._main_last = False  # TELL-4
        self.next_at = 0.0
        self.settled = False

    def may_tell_main(self) -> bool:
        """Return True when the main program may get TERM. Until then, each call sends TERM to the
        others that are to have it."""
        found = None if self.settled else self._find()
        if found is None:
            self.settled = True
            return True
        members, main = found
        others = [entry for entry in members if entry.pid != main]
        savers = [entry.pid for entry in others if read_signals(entry.pid).catches_term]
        if self._teller is None:
            answer = judge_answer(read_signals(main), "", old_child=False, young_child=False)
            self._main_last = not may_tell_last(savers, answer)
            self._teller = Teller(0 if self._main_last else main, self._tell)
            self._half_at = time.monotonic() + HALF * self._grace_seconds
        if self._main_last:
            self._send(self._teller, others)
        return not (self._main_last and savers)

    def tell_others(self) -> None:
        """Send TERM to the processes that are to have it now. Call this at `next_at`, once the main
        program has had its TERM, until `settled`."""
        now = time.monotonic()
        if self.settled or now < self.next_at:
            return
        self.next_at, self._pause = now + self._pause, min(1.5 * self._pause, self._longest)
        if now < self._half_at < self.next_at:
            self.next_at = self._half_at
        found = self._find()
        if found is None or self._teller is None or self._main_last:
            self.settled = True
        else:
            self._send(self._teller, found[0])
            self.settled = self._teller.settled

    def _send(self, teller: Teller, members: list[ProcessEntry]) -> None:
        now = time.monotonic()
        for entry in teller.choose(members, now, half_over=now >= self._half_at):
            send_signal(entry, signal.SIGTERM)

    def _find(self) -> tuple[list[ProcessEntry], int] | None:
        """Return the container's processes, and the pid of the main process. None where the process
        with the first pid does not carry this task's marks (TELL-2): it may be another process's,
        because the engine, or this agent, may run in a container and number pids otherwise."""
        try:
            task, mark = read_marks(self._first)
            if task is None or mark is None:
                return None
            if name_container(mark, TaskKey.parse(task)) != self._name:
                return None
            return find_members(read_table(), self._first, with_init=self._with_init)
        except (OSError, ValueError):
            return None


def find_members(
    table: dict[int, ProcessEntry], first: int, *, with_init: bool
) -> tuple[list[ProcessEntry], int]:
    """Return the living processes of a container but its small init, and the main program's pid; 0
    if there is no main program.

    table: all processes by pid. first: the pid of the container's first process. with_init: the
    first process is a small init, and the main program is its oldest child.
    """
    below: list[ProcessEntry] = []
    edge = {first}
    while edge:
        found = [entry for entry in table.values() if entry.ppid in edge]
        edge = {entry.pid for entry in found}
        below += found
    if not with_init:
        below += [table[first]] if first in table else []
        return [entry for entry in below if entry.alive], first
    # An init's oldest child is the program; the others are adopted orphans.
    children = [(entry.start_ticks, entry.pid) for entry in below if entry.ppid == first]
    return [entry for entry in below if entry.alive], min(children)[1] if children else 0
