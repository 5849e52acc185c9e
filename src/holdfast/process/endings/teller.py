"""Looks at the processes of one tree during its stop, for the decisions of `telling`."""

import os
import time
from collections.abc import Collection

from holdfast.process.endings.pipelines import find_readers
from holdfast.process.table import ProcessEntry, read_name, read_signals
from holdfast.process.telling import (
    Identity,
    Tell,
    TermAnswer,
    TreeMember,
    choose_told,
    is_settled,
    judge_answer,
)

_TICKS = os.sysconf("SC_CLK_TCK")
_REACTION_SECONDS = 0.05  # in which a process shows what it does with its TERM
_END_OF_INPUT_SECONDS = 0.25  # a reader ends by itself after its last writer


class Teller:
    """Which processes of a tree were told, and which are to be told next.

    main: the pid of the first program, which was told when this is made. unseen: pids that count as
    no process of the tree (its keeper).
    """

    def __init__(self, main: int, tell: Tell, *, unseen: Collection[int] = ()) -> None:
        self._main = main
        self._main_began: Identity | None = None
        self._tell = tell
        self._unseen = frozenset(unseen)
        self._main_told = read_ticks()
        self._told: dict[Identity, float] = {}
        self._parents: dict[Identity, Identity | None] = {}
        self._reading: dict[Identity, float] = {}  # readers → when they are told, too
        self.settled = False

    def choose(
        self, members: Collection[ProcessEntry], now: float, *, half_over: bool
    ) -> list[ProcessEntry]:
        """Return the processes that get their TERM now; they count as told. Processes that only
        read the output of others come later, where the end of those does not end them (PIPE-1).
        members: all living processes of the tree. now: seconds on any one clock."""
        entries = {e.identity: e for e in members if e.pid not in self._unseen}
        main = next((e.identity for e in entries.values() if e.pid == self._main), None)
        if main is not None and self._main_began in (None, main):
            self._main_began = main
            self._told.setdefault(main, self._main_told)
        tree = self._describe(entries)
        chosen = choose_told(tree, self._told, self._tell, half_over=half_over)
        readers = find_readers([entry.pid for entry in entries.values()]) if chosen else ()
        ready = [entries[one] for one in chosen if not self._waits(entries[one], readers, now)]
        ticks = read_ticks()
        self._told.update((entry.identity, ticks) for entry in ready)
        self.settled = is_settled(tree, self._told)
        return ready

    def _waits(self, entry: ProcessEntry, readers: Collection[int], now: float) -> bool:
        if entry.pid in readers:
            self._reading[entry.identity] = now + _END_OF_INPUT_SECONDS
        return self._reading.get(entry.identity, 0.0) > now

    def _describe(self, entries: dict[Identity, ProcessEntry]) -> dict[Identity, TreeMember]:
        by_pid = {entry.pid: one for one, entry in entries.items()}
        for one, entry in entries.items():
            if entry.ppid in by_pid:
                self._parents[one] = by_pid[entry.ppid]
            elif one not in self._parents:
                young = self._main_began in entries and entry.start_ticks >= self._main_told
                self._parents[one] = self._main_began if young else None
        return {
            one: TreeMember(
                parent=self._parents[one], began=entry.start_ticks, answer=self._judge(one, entries)
            )
            for one, entry in entries.items()
        }

    def _judge(self, one: Identity, entries: dict[Identity, ProcessEntry]) -> TermAnswer:
        told = self._told.get(one)
        children = [e for key, e in entries.items() if self._parents.get(key) == one]
        if told is None or not children or read_ticks() < told + _REACTION_SECONDS * _TICKS:
            return TermAnswer.DIES
        young = [child for child in children if child.start_ticks >= told]
        old = len(young) < len(children)
        pid = one[0]
        return judge_answer(
            read_signals(pid), read_name(pid), old_child=old, young_child=bool(young)
        )


def read_ticks() -> int:
    """Return the clock by which the kernel notes when a process began."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
