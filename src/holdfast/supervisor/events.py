"""What happened, as structured events: to the log, to listeners, and to a file of JSON lines where one is named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.supervisor.futures import Callbacks

logger = logging.getLogger("holdfast.supervisor")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. at: Unix seconds. facts: names and values that differ by kind."""

    at: float
    kind: str
    facts: dict[str, str | int | float]


class EventLog:
    """Where events go. `say` never blocks and never raises: the bus's thread calls it."""

    def __init__(self, path: Path | None = None) -> None:
        self.count = 0
        self._listeners: list[Callable[[Event], object]] = []
        self._callbacks = Callbacks()
        self._file = open(path, "ab", buffering=0) if path is not None else None  # noqa: SIM115  closed by `close`
        if self._file is not None:
            self._callbacks.begin()

    def listen(self, listener: Callable[[Event], object]) -> None:
        """Call `listener(event)` for every event from now on, in a thread of its own."""
        self._callbacks.begin()
        self._listeners.append(listener)

    def say(self, kind: str, **facts: str | int | float) -> None:
        """Something happened."""
        self.count += 1
        event = Event(at=time.time(), kind=kind, facts=facts)
        logger.info("%s: %s", kind, " ".join(f"{name}={value}" for name, value in facts.items()))
        if self._file is not None or self._listeners:
            self._callbacks.run_soon(self._pass_on, event)

    def _pass_on(self, event: Event) -> None:
        if self._file is not None and not self._file.closed:
            self._file.write(msgspec.json.encode(event) + b"\n")
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener for events raised")

    def close(self) -> None:
        """Close the file, once what was said before is in it."""
        file = self._file
        if file is not None:
            self._callbacks.run_soon(lambda _: file.close(), None)
