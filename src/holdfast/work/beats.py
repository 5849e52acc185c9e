"""`beat`, `section` and `track`: by these a Python job reports that its work moved forward.

Datagrams are written by hand (`wire.beat` has the format): a beat must cost less than 5 µs, and a
job should not load a codec. One reporter sends for the whole process. Threads may use it freely: at
worst a race sends one datagram too many, and every datagram stands by itself.
"""

from __future__ import annotations

import atexit
import os
from math import isfinite
from operator import index
from time import monotonic

from holdfast.work.line import Line

TYPE_CHECKING = False  # `typing` itself would be most of the time this module takes to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Any, SupportsFloat, SupportsIndex, TypeVar

    T = TypeVar("T")

COALESCE_SECONDS = 0.01
"""Beats closer together than this are one datagram; the newest step is sent with the next one, or
at exit."""
PATIENCE_SECONDS = 0.05
"""How long the entry or exit of a section may wait for room in the agent's buffer."""
MAX_NUMBER = 2**53
MAX_NAME_CHARS = 128
MAX_TIMEOUT_SECONDS = 30 * 86_400
MAX_CHECKSUM_CHARS = 64
MAX_GROUP_CHARS = 64
MAX_WAITED_SECONDS = 3e9
WAIT = "wait"
"""The section of a rank that waits for others. It is counted here and told with the next beat: no
datagram says it, because a wait excuses no silence, and a collective in each step must cost nothing."""


def _whole(number: Any) -> int | None:
    """Return `number` as an integer that a datagram can carry, else None. Never raises, because the
    number came from the user."""
    try:
        value = index(number)
    except TypeError:
        try:
            value = int(number)  # a float, or a zero-dimensional array of floats
        except Exception:
            return None
    except Exception:  # an `__index__` of the user's own
        return None
    return value if 0 <= value <= MAX_NUMBER else None


def _quoted(text: str) -> bytes:
    """Return `text` as a JSON string in UTF-8, with characters that UTF-8 lacks replaced."""
    from json import dumps  # only sections need it

    clean = text.encode("utf-8", "replace").decode("utf-8")
    return dumps(clean, ensure_ascii=False).encode()


def _checksum_text(checksum: Any) -> str | None:
    """Return a checksum as a short text; two are alike where the values are. Never raises."""
    try:
        if isinstance(checksum, float):
            text = checksum.hex()
        elif isinstance(checksum, (bytes, bytearray, memoryview)):
            text = bytes(checksum).hex()
        else:
            text = str(checksum)
        if len(text) > MAX_CHECKSUM_CHARS:
            from hashlib import blake2b

            text = blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
        return text or None
    except Exception:  # a `__str__` of the user's own
        return None


class Reporter:
    """Sends datagrams for one process of `task` (its key as text) to the agent's socket at
    `address`."""

    __slots__ = (
        "_last_step",
        "_last_total",
        "_line",
        "_loss",
        "_nans",
        "_next_at",
        "_pending",
        "_plain",
        "_prefix",
        "_sections",
        "_task",
        "_told",
        "_waited",
        "_waiting_since",
        "_waits",
    )  # fmt: skip

    def __init__(self, task: str, address: str) -> None:
        self._line = Line(address)
        self._task = b'{"task":' + _quoted(task)
        self._prefix = self._task  # with the section, while in one
        self._plain = self._task + b"}"
        self._sections: list[Section] = []
        self._next_at = 0.0
        self._pending = False
        self._last_step: int | None = None
        self._last_total: int | None = None
        self._waited = 0.0  # seconds in sections `wait`
        self._waiting_since = 0.0
        self._waits = 0
        self._nans = 0  # losses in a row that were not finite
        self._loss = b""  # with their number, once a loss was told
        self._told = b""  # with the waited seconds and the loss, once there are any

    def beat(self, step: Any = None, total: Any = None) -> None:
        """Send a beat, or remember it where the last one is less than `COALESCE_SECONDS` old."""
        if step is not None:
            plain = step.__class__ is int and 0 <= step <= MAX_NUMBER
            self._last_step = step if plain else _whole(step)
        if total is not None:
            plain = total.__class__ is int and 0 <= total <= MAX_NUMBER
            self._last_total = total if plain else _whole(total)
        now = monotonic()
        if now < self._next_at:
            self._pending = True
            return
        self._next_at = now + COALESCE_SECONDS
        self._pending = not self._line.send(self._encode(), now)

    def tell_checksum(self, checksum: Any, group: Any) -> None:
        """Send the checksum of the last step, in a datagram of its own that is not coalesced."""
        text = _checksum_text(checksum)
        if text is None or self._last_step is None:
            return
        among = b',"group":' + _quoted(str(group)[:MAX_GROUP_CHARS]) if group else b""
        datagram = b'%b,"step":%d%b,"checksum":%b%b}' % (
            self._prefix, self._last_step, self._told, _quoted(text), among,
        )  # fmt: skip
        if self._line.send(datagram, monotonic()):
            self._pending = False

    def tell_loss(self, loss: Any) -> None:
        """Have the next beat tell how many losses in a row were not finite."""
        try:
            finite = isfinite(float(loss))
        except Exception:  # a `__float__` of the user's own
            return
        self._nans = 0 if finite else min(self._nans + 1, MAX_NUMBER)
        self._loss = b',"nan_beats":%d' % self._nans
        self._tell()

    def _tell(self) -> None:
        waited = b',"waited":%.6f' % self._waited if self._waited else b""
        self._told = waited + self._loss

    def _encode(self) -> bytes:
        step, total = self._last_step, self._last_total
        if step is None:
            among = b"" if total is None else b',"total":%d' % total
            return b"%b%b%b}" % (self._prefix, among, self._loss)
        if total is None:
            return b'%b,"step":%d%b}' % (self._prefix, step, self._told)
        return b'%b,"step":%d,"total":%d%b}' % (self._prefix, step, total, self._told)

    def flush(self) -> None:
        """Send the step that was remembered and not sent."""
        if self._pending:
            self._pending = not self._line.send(self._encode(), monotonic())

    def begin_wait(self) -> None:
        """Count the time from now on as waiting for other ranks."""
        if not self._waits:
            self._waiting_since = monotonic()
        self._waits += 1

    def end_wait(self) -> None:
        """End `begin_wait`; the next beat tells how much it was."""
        self._waits -= 1
        if not self._waits:
            self.add_wait(monotonic() - self._waiting_since)

    def add_wait(self, seconds: float) -> None:
        """Add seconds that this process waited for other ranks."""
        self._waited = min(self._waited + max(0.0, seconds), MAX_WAITED_SECONDS)
        self._tell()

    def enter(self, section: Section) -> None:
        """Report that the work is in `section` from now on."""
        self.flush()
        self._sections.append(section)
        self._set_prefix()
        self._line.send_patiently(self._prefix + b"}", PATIENCE_SECONDS)

    def leave(self, section: Section) -> None:
        """Report that the work left `section`, and with it the sections opened inside."""
        self.flush()
        for depth in range(len(self._sections) - 1, -1, -1):
            if self._sections[depth] is section:
                del self._sections[depth:]
                break
        else:
            return  # opened before a fork, or closed with an outer one already
        self._set_prefix()
        datagram = b'%b,"section":%b,"leave":true}' % (self._task, section.quoted)
        self._line.send_patiently(datagram, PATIENCE_SECONDS)

    def _set_prefix(self) -> None:
        prefix = self._task
        if self._sections:
            section = self._sections[-1]
            prefix += b',"section":' + section.quoted
            if section.timeout is not None:
                prefix += b',"timeout":%a' % section.timeout
        self._prefix, self._plain = prefix, prefix + b"}"

    def after_fork(self) -> None:
        """Open a socket for this child of a fork, and forget the parent's unsent step."""
        self._line.reopen()
        self._sections = []
        self._waits = 0
        self._set_prefix()
        self._pending = False


class Section:
    """A named stretch of work; made by `section()`. May be entered again after it was left."""

    __slots__ = ("_reporter", "name", "quoted", "timeout")

    def __init__(
        self, name: str, timeout: float | None, find: Callable[[], Reporter | None]
    ) -> None:
        self.name = name
        self.timeout: float | None = None
        self.quoted = b'""'
        self._reporter = find()
        if self._reporter is None:
            return
        try:
            self.quoted = _quoted(str(name)[:MAX_NAME_CHARS] or "section")
            # A timeout that is not positive counts as none, one beyond the limit as the limit.
            if timeout is not None and float(timeout) > 0:
                self.timeout = min(float(timeout), float(MAX_TIMEOUT_SECONDS))
        except Exception:  # a `__str__` or `__float__` of the user's own
            self._reporter = None if self.quoted == b'""' else self._reporter

    def __enter__(self) -> Section:
        if self._reporter is not None:
            if self.name == WAIT:
                self._reporter.begin_wait()
            else:
                self._reporter.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reporter is not None:
            if self.name == WAIT:
                self._reporter.end_wait()
            else:
                self._reporter.leave(self)


_reporter: Reporter | None = None
_looked = False


def _find_reporter() -> Reporter | None:
    """Return this process's reporter, None outside Holdfast. The environment is read at the first
    call only."""
    global _reporter, _looked
    if not _looked:
        task, address = os.environ.get("HOLDFAST_TASK"), os.environ.get("HOLDFAST_BEAT_SOCKET")
        if task and address:
            _reporter = Reporter(task, address)
            atexit.register(_reporter.flush)
            os.register_at_fork(after_in_child=_reporter.after_fork)
        _looked = True
    return _reporter


def beat(
    step: SupportsIndex | float | None = None,
    total: SupportsIndex | float | None = None,
    checksum: str | bytes | float | None = None,
    group: str | int = "",
    loss: SupportsFloat | None = None,
) -> None:
    """Report that the work moved forward, where it really did: after a step, a batch, a file.

    step: how far the work is, a whole number. total: how far the work will go. Both are shown and
    repeated until given again, and the step tells a retry that makes progress from one that does
    not. checksum: in a gang, a fingerprint of what this step computed and what other ranks must
    have alike, such as a hash of the reduced gradients or of a replica's weights: a rank that has
    another one computes wrongly, and its host is set aside. group: which ranks must be alike; none: all.
    loss: the loss of this step; after three in a row that are NaN or infinite the job says so and runs
    on. A tensor on a GPU is waited for, so give it where your code reads the loss anyway.

    Costs microseconds, never waits and never raises; outside Holdfast it does nothing. The first
    beat arms the stall watchdog: from then on silence is suspicious.
    """
    reporter = _reporter
    if reporter is None:
        if _looked:
            return
        reporter = _find_reporter()
        if reporter is None:
            return
    if loss is not None:
        reporter.tell_loss(loss)
    reporter.beat(step, total)
    if checksum is not None:
        reporter.tell_checksum(checksum, group)


def add_wait(seconds: float) -> None:
    """Count seconds that this process waited for other ranks, where `section("wait")` cannot stand
    around the wait, as in a callback of a collective. The next beat tells it."""
    reporter = _find_reporter()
    if reporter is not None:
        reporter.add_wait(seconds)


def section(name: str, timeout: float | None = None) -> Section:
    """Return a context manager around work whose beats may stop for longer: an evaluation, a save,
    a download.

    timeout: seconds of silence that are normal inside; they replace the stall timeout. Without a
    timeout the first pass is not watched for stalls (the silence limit holds), and later passes are
    judged by the duration of earlier ones. Sections nest; the innermost that has a timeout counts.

    The name `wait` stands for a wait for other ranks, as around a barrier or a collective: its time is
    counted, so that the rank that the others wait for is found, and nothing else changes.
    """
    return Section(name, timeout, _find_reporter)


def track(iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield from `iterable` and beat after each item, with its number and the total.

    total: the number of items; taken from `len()` where the iterable has one.
    """
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]  # whether it has one is the question
        except Exception:  # no length, or one that raises
            total = None
    for done, item in enumerate(iterable, 1):
        yield item
        beat(done, total)
