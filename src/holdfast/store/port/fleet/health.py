"""The health of hosts: their checks, how tasks ended on them, and which are set aside."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.health.blame import HostStanding, SetAside
from holdfast.core.health.due import CheckState
from holdfast.core.records import HostCheckRecord
from holdfast.store.port.clock import Now


class HealthStore(Protocol):
    """The checks of hosts, the ends of tasks on them, and the times they were set aside
    (asides)."""

    async def note_health(
        self,
        host_id: str,
        incarnation: str,
        *,
        passed: int = 0,
        failed: int = 0,
        failures: Sequence[tuple[str, int]] = (),
        check: HostCheckRecord | None = None,
        now: Now = None,
    ) -> CheckState:
        """Add ends of tasks and, if given, a check; return the facts for the host's next check.

        failures: (job, attempt) of tasks that failed by themselves. A check that comes again under
        its number changes nothing.

        Raises:
            NotFound: no such host. Stale: another incarnation of it is the present one.
        """

    async def list_checks(self, host_id: str, limit: int = 20) -> list[HostCheckRecord]:
        """Return the host's checks, newest first."""

    async def read_standings(self, window_seconds: float, *, now: Now = None) -> list[HostStanding]:
        """Return the hosts with evidence against them, and those set aside. This also closes the
        asides of hosts that an operator released."""

    async def open_aside(self, verdict: SetAside, *, now: Now = None) -> None:
        """Write that a host is about to be set aside."""

    async def close_aside(self, host_id: str, *, now: Now = None) -> None:
        """Write that a host is released; the evidence against it counts no more."""

    async def prune_health(self, older_than_days: float, *, now: Now = None) -> int:
        """Delete old checks, ends, failures and asides; return how many rows."""
