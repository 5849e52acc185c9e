"""The processes of a container as the host sees them, and how all of them are told to stop.

A runtime signals the first process alone, and a small init hands that on to its one child, the main
program. A shell or a launcher without a handler for TERM dies of it, and the kernel kills all the
rest with it: a program below that has a checkpoint to save at the drain is told nothing and has no
time. Outside containers TERM goes to the whole tree, and so it does here.

TELL-1  TERM reaches each process inside once, but for those that only read what a saver writes. The
        main program gets it together with the others, unless it would die of it above one of them
        that handles it: then it gets it when that one is gone. The grace bounds all of it, as
        everywhere.
TELL-2  Only processes that are proven to be this container's are signalled from here: its first
        process carries the task's marks, and they are below it.
"""

import signal

from holdfast.agent.containers.plan import name_container
from holdfast.core.ids import TaskKey
from holdfast.process.output.pipelines import catches_term, find_readers
from holdfast.process.table import ProcessEntry, read_entry, read_marks, read_table, send_signal


class Inside:
    """One container's processes. first: its first process; with_init: that is the small init."""

    def __init__(self, name: str, first: int, *, with_init: bool) -> None:
        self._name = name
        self._first = first
        self._with_init = with_init
        self._savers: list[ProcessEntry] | None = None

    def may_tell_main(self) -> bool:
        """Tell all but the main program, once; return whether it is its turn."""
        if self._savers is None:
            self._savers = self._tell_others() if self._is_ours() else []
        self._savers = [entry for entry in self._savers if _lives(entry)]
        return not self._savers

    def _is_ours(self) -> bool:
        """TELL-2. The engine, or this agent, may be in a container and count pids otherwise."""
        try:
            task, mark = read_marks(self._first)
            if task is None or mark is None:
                return False
            return name_container(mark, TaskKey.parse(task)) == self._name
        except (OSError, ValueError):
            return False

    def _tell_others(self) -> list[ProcessEntry]:
        """Send TERM to all but the main program; return those it must wait for."""
        try:
            others, main = find_others(read_table(), self._first, with_init=self._with_init)
        except OSError:
            return []
        dies = not catches_term(main)
        savers = [entry for entry in others if dies and catches_term(entry.pid)]
        readers = find_readers([entry.pid for entry in others]) if savers else set()
        for entry in others:
            if entry.pid in readers:  # it ends with those that write to it (PIPE-1)
                continue
            send_signal(entry, signal.SIGTERM)
        return savers


def find_others(
    table: dict[int, ProcessEntry], first: int, *, with_init: bool
) -> tuple[list[ProcessEntry], int]:
    """Everything below the first process but the main program; that one's pid, 0 without one."""
    below: list[ProcessEntry] = []
    edge = {first}
    while edge:
        found = [entry for entry in table.values() if entry.ppid in edge]
        edge = {entry.pid for entry in found}
        below += found
    main = first
    if with_init:  # an init's oldest child is the program; the others are orphans that it took in
        children = [(entry.start_ticks, entry.pid) for entry in below if entry.ppid == first]
        main = min(children)[1] if children else 0
    return [entry for entry in below if entry.pid != main and entry.alive], main


def _lives(entry: ProcessEntry) -> bool:
    try:
        now = read_entry(entry.pid)
    except OSError:
        return True  # unknown, and looked at again
    return now is not None and now.alive and now.identity == entry.identity
