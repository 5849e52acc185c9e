"""Send TERM to the processes of a container, as the host sees them.

A runtime signals the first process alone, and a small init passes the signal to its one child, the
main program. A shell or a launcher without a handler for TERM dies of it, and the kernel kills all
other processes of the container then: a program below the shell that has a checkpoint to save gets
no signal and no time. Outside containers TERM goes to the whole tree, and this module does the
same.

TELL-1  Each process inside gets TERM once, except processes that only read the output of a process
        that handles TERM. The main program gets TERM together with the others, unless it would die
        of it above a process that handles TERM: then it gets TERM once that process is gone. The
        grace limits all of this, as everywhere.
TELL-2  Only processes that are proven to be this container's are signalled from here: they are
        below its first process, which carries the task's marks.
"""

import signal

from holdfast.agent.containers.plan import name_container
from holdfast.core.ids import TaskKey
from holdfast.process.output.pipelines import catches_term, find_readers
from holdfast.process.table import ProcessEntry, read_entry, read_marks, read_table, send_signal


class Inside:
    """Holds one container's processes. first: the pid of its first process. with_init: True if
    the first process is the small init."""

    def __init__(self, name: str, first: int, *, with_init: bool) -> None:
        self._name = name
        self._first = first
        self._with_init = with_init
        self._savers: list[ProcessEntry] | None = None

    def may_tell_main(self) -> bool:
        """Send TERM to all processes but the main program, once; return True when the main program
        may get TERM, too."""
        if self._savers is None:
            self._savers = self._tell_others() if self._is_ours() else []
        self._savers = [entry for entry in self._savers if _lives(entry)]
        return not self._savers

    def _is_ours(self) -> bool:
        """Return True if the process with the first pid carries this task's marks (TELL-2). The
        pid may be another process's, because the engine, or this agent, may run in a container
        and number pids otherwise."""
        try:
            task, mark = read_marks(self._first)
            if task is None or mark is None:
                return False
            return name_container(mark, TaskKey.parse(task)) == self._name
        except (OSError, ValueError):
            return False

    def _tell_others(self) -> list[ProcessEntry]:
        """Send TERM to all processes but the main program; return the processes whose ends the main
        program has to await before it gets TERM."""
        try:
            others, main = find_others(read_table(), self._first, with_init=self._with_init)
        except OSError:
            return []
        dies = not catches_term(main)
        savers = [entry for entry in others if dies and catches_term(entry.pid)]
        readers = find_readers([entry.pid for entry in others]) if savers else set()
        for entry in others:
            if entry.pid in readers:  # it ends with its writers (PIPE-1)
                continue
            send_signal(entry, signal.SIGTERM)
        return savers


def find_others(
    table: dict[int, ProcessEntry], first: int, *, with_init: bool
) -> tuple[list[ProcessEntry], int]:
    """Return the living processes of a container except the main program, and the main program's
    pid; 0 if there is no main program.

    table: all processes by pid. first: the pid of the container's first process. with_init: the
    first process is a small init, and the main program is its oldest child.
    """
    below: list[ProcessEntry] = []
    edge = {first}
    while edge:
        found = [entry for entry in table.values() if entry.ppid in edge]
        edge = {entry.pid for entry in found}
        below += found
    main = first
    if with_init:  # an init's oldest child is the program; the others are adopted orphans
        children = [(entry.start_ticks, entry.pid) for entry in below if entry.ppid == first]
        main = min(children)[1] if children else 0
    return [entry for entry in below if entry.pid != main and entry.alive], main


def _lives(entry: ProcessEntry) -> bool:
    try:
        now = read_entry(entry.pid)
    except OSError:
        return True  # unknown; the next call reads it again
    return now is not None and now.alive and now.identity == entry.identity
