"""Decide which processes of a task are told to stop (TERM), and when. Pure.

The main process is told first, because it may save, and a helper's death would break its save: a
data loader's worker, the `tar` that a trap has begun. The processes below are told by what the
process above them does with its TERM (`WHEN`); each is then the process above its own children.

TELL-3  A process that began after the one above it was told is not told, because it was started
        with the stop in mind: a trap's `holdfast checkpoint save`.
TELL-4  In a container without another process that the kernel spares, the end of the main program
        ends all others. So a main program that dies of TERM is told after those that handle TERM.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Literal

import msgspec

Identity = tuple[int, int]  # pid and start: see `process.table.ProcessEntry`
Tell = Literal["main", "tree"]
HALF = 0.5
"""The part of the grace after which every process is told that is not told yet."""
TERM = 15
_NONE = (0, 0)
_TERM_BIT = 1 << (TERM - 1)
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})


class TermAnswer(StrEnum):
    """The way in which a process answers TERM."""

    DIES = "dies"
    IGNORES = (
        "ignores"  # ignores or blocks TERM, or is process 1 of its namespace without a handler
    )
    WAITS = "waits"  # a shell that handles TERM once its foreground child is gone
    HANDLES = "handles"


class When(StrEnum):
    """When the children of a process are told, after the process itself."""

    AT_ONCE = "at once"
    AFTER = "once it is gone, at half of the grace at the latest"


WHEN: Mapping[TermAnswer, When] = {
    TermAnswer.DIES: When.AFTER,
    TermAnswer.IGNORES: When.AT_ONCE,
    TermAnswer.WAITS: When.AT_ONCE,
    TermAnswer.HANDLES: When.AFTER,
}


class SignalMasks(msgspec.Struct, frozen=True, kw_only=True):
    """The signals of a process, as bits, and its place: /proc/PID/status. init: True for process 1
    of a namespace below. sleeps: True where it waits for an event."""

    caught: int = 0
    ignored: int = 0
    blocked: int = 0
    pending: int = 0
    init: bool = False
    sleeps: bool = False

    @property
    def catches_term(self) -> bool:
        """Return whether the process has a handler for TERM."""
        return bool(self.caught & _TERM_BIT)


class TreeMember(msgspec.Struct, frozen=True, kw_only=True):
    """A living process of the tree. parent: the process above it when it was first seen, which may
    be gone; None where that is unknown. began: its start, on the clock of `told`."""

    parent: Identity | None = None
    began: float = 0.0
    answer: TermAnswer = TermAnswer.DIES


def judge_answer(
    signals: SignalMasks, name: str, *, old_child: bool, young_child: bool
) -> TermAnswer:
    """Return what a process does with a TERM that it was sent a moment ago.

    old_child, young_child: it has a child that began before that TERM, or after.
    """
    if signals.catches_term:
        waits = name in _SHELLS and signals.sleeps and old_child and not young_child
        return TermAnswer.WAITS if waits else TermAnswer.HANDLES
    if signals.ignored & _TERM_BIT:
        return TermAnswer.IGNORES
    if signals.blocked & _TERM_BIT:  # one that is not pending was taken, as tini does
        return TermAnswer.IGNORES if signals.pending & _TERM_BIT else TermAnswer.HANDLES
    return TermAnswer.IGNORES if signals.init else TermAnswer.DIES


def choose_told(
    tree: Mapping[Identity, TreeMember],
    told: Mapping[Identity, float],
    tell: Tell,
    *,
    half_over: bool,
) -> set[Identity]:
    """Return the processes that are told now.

    told: process, also one that is gone → when it was told. half_over: half of the grace is over.
    """
    untold = tree.keys() - told.keys()
    if tell == "tree":
        return untold
    return {
        key
        for key in untold
        if not _is_young(tree[key], tree, told) and (half_over or _may_hear(tree[key], tree, told))
    }


def may_tell_last(savers: Collection[object], main: TermAnswer) -> bool:
    """Return whether a main program may be told whose end ends all others (TELL-4). savers: the
    living processes that handle TERM."""
    return main is not TermAnswer.DIES or not savers


def is_settled(tree: Mapping[Identity, TreeMember], told: Mapping[Identity, float]) -> bool:
    """Return whether no process of the tree is to be told any more."""
    untold = tree.keys() - told.keys()
    return all(_is_young(tree[key], tree, told) for key in untold)


def _may_hear(
    process: TreeMember, tree: Mapping[Identity, TreeMember], told: Mapping[Identity, float]
) -> bool:
    above = tree.get(process.parent or _NONE)
    return above is None or (process.parent in told and WHEN[above.answer] is When.AT_ONCE)


def _is_young(
    process: TreeMember, tree: Mapping[Identity, TreeMember], told: Mapping[Identity, float]
) -> bool:
    """Return whether a process, or one above it, began after the one above was told (TELL-3)."""
    seen: set[Identity] = set()
    while process.parent is not None and process.parent not in seen:
        seen.add(process.parent)
        if process.parent in told:
            return process.began >= told[process.parent]
        above = tree.get(process.parent or _NONE)
        if above is None:
            return False
        process = above
    return False
