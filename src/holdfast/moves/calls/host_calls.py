"""Counts of the calls that ended on each host."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.wire.calls import CallEnd


class HostCalls(msgspec.Struct, frozen=True):
    """Counts of calls that ended on a host. seconds: time that they took together."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0

    def add(self, ends: Iterable[CallEnd]) -> HostCalls:
        """Return these counts with further ends added."""
        done, failed, seconds = self.done, self.failed, self.seconds
        for end in ends:
            done, failed = done + (not end.error), failed + end.error
            seconds += end.seconds
        return HostCalls(done, failed, seconds)
