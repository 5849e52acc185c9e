"""The output of chosen ranks, line by line, in the script.

A carriage return ends a line, too, so a progress bar shows while it runs. A line that has no end is
handed on in parts of `MAX_LINE_BYTES`, so memory is bounded, and each byte is looked at once.

    with follow_output(ctx, group[:2]):  # prints "train0| loss 2.5"
        failure = find_failure(group)

A process on each of their hosts follows the log files; ranks that are not chosen cost nothing.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

from holdfast.errors import HoldfastError, ValidationError
from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.rosters.groups import Process
from holdfast.supervisor.rosters.hosts import Host
from holdfast.supervisor.script.context import Context

LINES = 10
MAX_LINE_BYTES = 64 << 10
_ENDS = re.compile(rb"\r\n|\n|\r")
_END_SECONDS = 10.0

logger = logging.getLogger("holdfast.supervisor")

Writer = Callable[[Process, str], object]


def print_line(process: Process, line: str) -> None:
    """Print a line behind its process's name."""
    print(f"{process.name}| {line}", flush=True)


def follow_output(
    ctx: Context, processes: Iterable[Process], write: Writer = print_line, *, lines: int = LINES
) -> RankOutput:
    """Have every line that these processes write passed to `write(process, line)`, in a thread of
    its own, until they have ended. A line ends with "\\n" or "\\r", or after 64 KiB.

    lines: the number of last lines to pass on of files that an earlier start wrote. Lost hosts fall
    silent. Raises ValidationError where the context has no `log_format`, because the output goes to
    the managers' own output then.
    """
    followed: dict[Host, list[Process]] = {}
    for process in processes:
        if process.logfile is None:
            raise ValidationError(
                f"{process.name} writes to its manager's own output; give the context a log_format",
                field="processes",
            )
        if not process.host.connection_lost():
            followed.setdefault(process.host, []).append(process)
    return RankOutput(ctx, followed, write, lines)


class LineCutter:
    """Cuts a stream into lines, at "\\n", "\\r\\n" and "\\r", and lines that are too long into parts. A
    carriage return that stands alone yields no line."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the beginning of a line
        self._size = 0
        self._owes: bool | None = None  # after a "\\r": whether its line was empty

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`, without their ends."""
        lines: list[bytes] = []
        if self._owes is not None and data[:1] == b"\n":  # "\\r\\n" came in two pieces
            lines += [b""] if self._owes else []
            data, self._owes = data[1:], None
        if data:
            self._owes = None
        at = 0
        for end in _ENDS.finditer(data):
            self._add(data[at : end.start()], lines)
            line = self.close()
            if line or end[0] != b"\r":
                lines.append(line)
            if end[0] == b"\r" and end.end() == len(data):
                self._owes = not line
            at = end.end()
        self._add(data[at:], lines)
        return lines

    def close(self) -> bytes:
        """Return the last line, which has no end; empty where there is none."""
        line, self._rest, self._size = b"".join(self._rest), [], 0
        return line

    def _add(self, piece: bytes, lines: list[bytes]) -> None:
        while self._size + len(piece) > MAX_LINE_BYTES:
            room = MAX_LINE_BYTES - self._size
            self._rest.append(piece[:room])
            piece = piece[room:]
            lines.append(self.close())
        if piece:
            self._rest.append(piece)
            self._size += len(piece)


class RankOutput:
    """Follows the output until the processes have ended; as a `with` block, at most until the block
    is left."""

    def __init__(
        self, ctx: Context, followed: dict[Host, list[Process]], write: Writer, lines: int
    ) -> None:
        self._write = write
        self._over = threading.Event()
        self._left = len(followed)
        self._followed = [process for chosen in followed.values() for process in chosen]
        self._lines = {process: LineCutter() for process in self._followed}
        self._tails = ctx.create_process_group(
            list(followed),
            [sys.executable, "-P", "-m", "holdfast.supervisor.policy.tail"],
            name="follow{rank}",
        )
        if not followed:
            self._over.set()
        for tail, chosen in zip(self._tails, followed.values(), strict=True):
            tail.host.hostname().add_done_callback(partial(self._begin, tail, chosen, lines))

    def _begin(self, tail: Process, chosen: list[Process], lines: int, _: Future[Any]) -> None:
        """Start to follow the log files, whose names are known once the host is attached."""
        ranks = dict(enumerate(chosen))  # of two groups, ranks may be the same
        with contextlib.suppress(HoldfastError):
            files = [[number, process.logfile] for number, process in ranks.items()]
            tail.send({"lines": lines, "files": files})
        for number, process in ranks.items():
            process.returncode().add_done_callback(partial(self._tell_end, tail, number))
        self._listen(tail, ranks)

    def _tell_end(self, tail: Process, number: int, _: Future[int]) -> None:
        with contextlib.suppress(HoldfastError):
            tail.send({"ended": [number]})

    def _listen(self, tail: Process, ranks: dict[int, Process]) -> None:
        tail.recv().add_done_callback(lambda future: self._take(tail, ranks, future))

    def _take(self, tail: Process, ranks: dict[int, Process], future: Future[Any]) -> None:
        if future.cancelled() or future.failed():  # all are over, or the host is lost
            for process in ranks.values():
                if line := self._lines[process].close():
                    self._hand_over(process, line)
            self._left -= 1
            if not self._left:
                self._over.set()
            return
        message = future.result()
        process = ranks[message["rank"]]
        for line in self._lines[process].feed(message["data"]):
            self._hand_over(process, line)
        self._listen(tail, ranks)

    def _hand_over(self, process: Process, line: bytes) -> None:
        try:
            self._write(process, line.decode(errors="replace"))
        except Exception:
            logger.exception("the function that takes output raised")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all processes have ended and their whole output has been passed on. Returns
        False where that took longer than `timeout` seconds."""
        return self._over.wait(timeout)

    def close(self) -> None:
        """Stop following the files. The output of processes that have ended is passed on first."""
        if all(process.returncode().done() for process in self._followed):
            self.wait(_END_SECONDS)
        with contextlib.suppress(HoldfastError):
            for ended in self._tails.end(grace_seconds=0):
                ended.exception()
            self._tails.forget()

    def __enter__(self) -> RankOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
