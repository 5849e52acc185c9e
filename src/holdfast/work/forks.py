"""Forked children react to a signal as if Holdfast had set no handler.

A handler of Python's is inherited over a fork and never runs while a child waits inside a library.
The handler's task is its parent's business, too: a data loader's worker would be deaf to TERM until
the job's grace is over, and `multiprocessing.Pool.terminate` would wait for ever.
"""

from __future__ import annotations

import os
import signal
from _thread import get_ident

TYPE_CHECKING = False  # as in `beats`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A signal, Holdfast's handler of it, and the function that finds the handler before it.
_ours: list[tuple[signal.Signals, Callable[..., Any], Callable[[], Any]]] = []
_blocked: dict[int, set[signal.Signals]] = {}


def spare_children(
    number: signal.Signals, handler: Callable[..., Any], find_before: Callable[[], Any]
) -> None:
    """Restore, in each child that is forked from now on, the handler that was there before
    `handler`, where the child inherits `handler`."""
    if not _ours:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_hand_back)
    _ours.append((number, handler, find_before))


def _hold() -> None:
    """Block the signals while this thread forks, because Python forgets, in the child, a signal
    that comes meanwhile."""
    numbers = {number for number, _, _ in _ours}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    _blocked[get_ident()] = numbers - before


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _blocked.pop(get_ident(), set()))


def _hand_back() -> None:
    for _ in _ours:  # the handler before may be Holdfast's, too
        for number, handler, find_before in _ours:
            if signal.getsignal(number) == handler and (before := find_before()) is not None:
                signal.signal(number, before)
    _release()
