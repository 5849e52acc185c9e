"""The running call, as its function sees it. Outside an executor the same code runs with the
context of a call that has no name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.work import beat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILE = ".checkpoint"


class CallCheckpoint(Protocol):
    """The checkpoint that an attempt of a call leaves for the next."""

    def save(self, data: bytes) -> None:
        """Keep `data` in place of the last checkpoint."""

    def load(self) -> bytes | None:
        """Return the last checkpoint, None where there is none."""


class FileCheckpoint:
    """The checkpoint of a call that runs in its caller's own process, without an executor: a file in
    the call's folder."""

    def __init__(self, call: CallContext) -> None:
        self._call = call

    def save(self, data: bytes) -> None:
        """Keep `data` in place of the last checkpoint. Raises OSError."""
        path = self._call.out_dir / _FILE
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)

    def load(self) -> bytes | None:
        """Return the last checkpoint, None where there is none."""
        try:
            return (self._call.out_dir / _FILE).read_bytes()
        except FileNotFoundError:
            return None


class CallContext:
    """One call. id: `SET.INDEX`, empty in place. attempt: the number of the attempt, from 1.
    cancelled: True where its user cancelled it or its host stops, and it should end soon.
    cancel_reason: the reason of that.

    out_dir: a folder of this call's own, the same for each of its attempts on one host; it is made
    at first use. checkpoint: the data that an attempt leaves for the next one, whichever host that
    runs on. priority: the priority of its function. begin_waiting, end_waiting: the executor's
    callbacks for a call that waits for another call.
    """

    def __init__(
        self,
        call_id: str = "",
        attempt: int = 1,
        folder: str = "",
        checkpoint: CallCheckpoint | None = None,
        *,
        priority: int = 0,
        begin_waiting: Callable[[str], None] | None = None,
        end_waiting: Callable[[str], None] | None = None,
    ) -> None:
        self.id, self.attempt, self.priority = call_id, attempt, priority
        self._begin_waiting, self._end_waiting = begin_waiting, end_waiting
        self.checkpoint: CallCheckpoint = checkpoint or FileCheckpoint(self)
        self.cancelled = False
        self.cancel_reason = ""
        self._folder = folder

    @property
    def out_dir(self) -> Path:
        """Return a folder of this call's own. Raises OSError."""
        path = Path(self._folder or "out")
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def hosted(self) -> bool:
        """Return whether an executor runs this call."""
        return self._begin_waiting is not None

    @contextlib.contextmanager
    def waiting_for(self, call: str) -> Iterator[None]:
        """Tell the executor, within the block, that this call waits for another; "" for no call."""
        if not call or self._begin_waiting is None or self._end_waiting is None:
            yield
            return
        self._begin_waiting(call)
        try:
            yield
        finally:
            self._end_waiting(call)

    def cancel(self, reason: str) -> None:
        """Ask the call to end soon; the first reason stays."""
        if not self.cancelled:
            self.cancel_reason = reason  # first: functions read it after the flag
            self.cancelled = True

    def beat(self, step: int | None = None, total: int | None = None) -> None:
        """Report that the call moved forward, as `holdfast.beat` does."""
        beat(step, total)


_running: CallContext | None = None  # a process runs one call at a time, on any of its threads
_in_place = CallContext()


def context() -> CallContext:
    """Return the context of the running call."""
    return _running or _in_place


def enter(call: CallContext | None) -> None:
    """Make this context the context of the running call; None where no call runs."""
    global _running
    _running = call
