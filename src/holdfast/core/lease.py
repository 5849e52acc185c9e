"""Lease arithmetic.

LEASE-1  A task's right to run is counted from the *start* of the sync that granted it, on the host's own clock.
LEASE-2  The host ends a task at TTL − margin; the controller re-places it at TTL + margin after its own later clock
         reading. So two attempts of one job never overlap, partition or not, while clock *rates* differ by less
         than 2 × margin / TTL (6 % or more; a quartz drifts 0.01 %).
LEASE-3  Silence waits for the lease; evidence (a new incarnation, a provider's or operator's word) does not.
LEASE-4  After the controller's own start nothing is reaped until every host has had one full TTL to check in.
"""

from __future__ import annotations


def margin_seconds(ttl_seconds: float) -> float:
    """The guard on each side of a lease: 5 % of it, at least 1 s. The KILL and its confirmation fit in twice this."""
    return max(1.0, 0.05 * ttl_seconds)


def host_deadline(sync_started_at: float, ttl_seconds: float) -> float:
    """When the guardian ends the task, on the host's CLOCK_BOOTTIME, given when the granting sync *started*."""
    return sync_started_at + ttl_seconds - margin_seconds(ttl_seconds)
