"""Counts of the calls that ended on each host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def sum_counts(
    before: Mapping[str, HostCalls], more: Mapping[str, HostCalls]
) -> dict[str, HostCalls]:
    """Return the sum of two tables of counts by host."""
    total = dict(before)
    for host, calls in more.items():
        old = total.get(host, HostCalls())
        total[host] = HostCalls(
            old.done + calls.done, old.failed + calls.failed, old.seconds + calls.seconds
        )
    return total
