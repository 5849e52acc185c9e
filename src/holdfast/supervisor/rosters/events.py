"""Pass structured events on: to the log, to listeners, and to a file of JSON lines where a file is
named."""

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.errors import ValidationError
from holdfast.supervisor.futures.future import Callbacks

logger = logging.getLogger("holdfast.supervisor")

_LOSSES = frozenset({"messages dropped"})  # logged as warnings, which Python shows by default
_CLOSE_SECONDS = 1.0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run. at: Unix seconds. facts: names and values that differ by kind."""

    at: float
    kind: str
    facts: dict[str, str | int | float]


class EventLog:
    """Passes events on. `report_event` never blocks and never raises, because the bus's thread calls it.

    EVENT-1  A paused terminal, a full pipe, a full disk or a slow listener holds up no heartbeat,
             because another thread writes.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.count = 0
        self._failed = False  # True once a write failed, which is logged once
        self._listeners: list[Callable[[Event], object]] = []
        self._callbacks = Callbacks()
        try:
            self._file = open(path, "ab", buffering=0) if path is not None else None  # noqa: SIM115  `close` does
        except OSError as error:
            raise ValidationError(
                f"the file of events {path} cannot be written: {error.strerror}", field="event_file"
            ) from error
        self._callbacks.begin()

    def listen(self, listener: Callable[[Event], object]) -> None:
        """Call `listener(event)` for every event from now on, in a thread of its own."""
        self._listeners.append(listener)

    def report_event(self, kind: str, **facts: str | int | float) -> None:
        """Report an event."""
        self.count += 1
        level = logging.WARNING if kind in _LOSSES else logging.INFO
        if self._file is not None or self._listeners or logger.isEnabledFor(level):
            event = Event(at=time.time(), kind=kind, facts=facts)
            self._callbacks.run_soon(self._pass_on, (level, event))

    def _pass_on(self, said: tuple[int, Event]) -> None:
        level, event = said
        facts = " ".join(f"{name}={value}" for name, value in event.facts.items())
        logger.log(level, "%s: %s", event.kind, facts)
        if self._file is not None and not self._file.closed:
            try:
                self._file.write(_encode(event) + b"\n")
            except OSError as error:
                if not self._failed:
                    logger.warning("the file of events cannot be written: %s", error)
                self._failed = True
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener for events raised")

    def close(self) -> None:
        """Close the file once the earlier events are written; wait a second at most."""
        written = threading.Event()
        self._callbacks.run_soon(self._finish, written)
        written.wait(_CLOSE_SECONDS)

    def _finish(self, written: threading.Event) -> None:
        if self._file is not None:
            self._file.close()
        written.set()


def _encode(event: Event) -> bytes:
    try:
        return msgspec.json.encode(event)
    except UnicodeEncodeError:  # a path of odd bytes in a reason
        return json.dumps(msgspec.structs.asdict(event)).encode()
