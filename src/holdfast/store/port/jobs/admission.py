"""Admission: from waiting to queued, from queued to reserved, and back."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from holdfast.core.placement.plan import JobPlacement, RunningTask
from holdfast.core.placement.types import Kin
from holdfast.moves.values import AdmissionSnapshot, Released, Reserved
from holdfast.store.port.clock import Now


class AdmissionStore(Protocol):
    """The jobs that could start, and the writes that start them."""

    async def release_due(self, retry_limit: int | None = None, *, now: Now = None) -> Released:
        """Queue waiting jobs whose time has come, in batches; of retries at most `retry_limit`.

        RETRY-6: the kill switch (`retries_enabled` of the cluster, its environment and the job's
        project; any that is off) is read in the transaction that dispatches. A due retry under it
        becomes `retries_held` (event job.retry_held, once); one no longer under it backs off again
        until its `retry_at`. Each dispatch leaves its audit: event job.retry_dispatched with
        retry_count, cause, due_at and waited_seconds.
        """

    async def read_admission(
        self, limit: int, *, but: Sequence[str] = (), now: Now = None
    ) -> AdmissionSnapshot:
        """Return the candidates, at most `limit` of each queue, and the room for them.

        but: ids of jobs to leave out.
        """

    async def note_passed(self, job_ids: Sequence[str], *, holds: bool, now: Now = None) -> None:
        """Write which jobs the leader's round passed over, and whether it held room back for any,
        for hosts that take jobs (TAKE-2). A crash of the server may lose it."""

    async def read_running(self, *, now: Now = None) -> list[RunningTask]:
        """Return every task that holds room. The caller, which knows the settings, fills in
        `ends_in_seconds`."""

    async def read_spans(self, kin: Collection[Kin]) -> dict[Kin, float]:
        """Return how long jobs took by project and kin (`core.placement.types.find_kin`): the longest
        of the last ten on record that succeeded with their first attempt. Where there are none, the
        kin is missing."""

    async def list_reserved(
        self, ids: Sequence[str] | None = None, *, now: Now = None
    ) -> list[Reserved]:
        """Return jobs that are reserved and do not run yet: all, or those of `ids`."""

    async def reserve(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float], *, now: Now = None
    ) -> list[str]:
        """Apply placements whose job is still queued under its epoch, its queue not paused and its
        hosts active under the same incarnation. Writes tasks, the attempt's row, the new epoch and
        the event. Returns the ids applied.

        ttls: job id → lease TTL in seconds.
        """

    async def expire_reservations(
        self, reservation_seconds: float, *, now: Now = None
    ) -> list[str]:
        """Queue jobs again whose reservation was never offered to its host within
        `reservation_seconds` (attempt ended, outcome expired; no charge; the attempt number is not
        reused). Where some ranks were offered and others not, a drain begins (cause start_timeout).
        Reservations offered to all are left to their leases. Returns job ids."""
