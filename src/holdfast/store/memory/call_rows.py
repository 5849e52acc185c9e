"""The rows of calls in memory."""

from datetime import datetime

import msgspec

from holdfast.core.calls.values import Family, FunctionSpec
from holdfast.moves.calls.pieces import Piece
from holdfast.moves.calls.sets import view_set
from holdfast.store.port.calls.calls import CallSetOrigin
from holdfast.wire.calls import CallSetView


class MemoryFeed(msgspec.Struct, kw_only=True):
    """A feed and its ready ranges, in order."""

    id: int
    family: Family
    model: str | None
    vram_gb: float
    cold_wait_seconds: float | None
    served_at: datetime | None = None
    ready: list[Piece] = []


class MemoryCallSet(msgspec.Struct, kw_only=True):
    """A set's row."""

    n: int
    id: str
    owner: str = ""
    feed: int
    queue: str
    spec: FunctionSpec
    count: int | None
    origin: CallSetOrigin | None
    created_at: datetime
    heard_at: datetime
    singles: bool = False
    absent: bool = False
    cut: str = ""
    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cancelled_at: datetime | None = None
    cancel_reason: str = ""
    ended_at: datetime | None = None

    @property
    def ended(self) -> int:
        """Return how many of its calls have ended."""
        return self.succeeded + self.failed + self.cancelled

    def view(self, *, running: bool = False) -> CallSetView:
        """Return the set as its view shows it."""
        return view_set({**msgspec.structs.asdict(self), "running": running})


class MemoryRun(msgspec.Struct, kw_only=True):
    """A run of calls that ended in the same way. results: a JSON array of JSON texts."""

    first: int
    last: int
    state: int
    attempts: int
    results: str | None
    reason: str
    ended_at: datetime
