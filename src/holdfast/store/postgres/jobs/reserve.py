"""The one write that starts jobs (`reserve_jobs`): for the leader's plan, and for jobs that hosts
take.

RESERVE-1  The leader and the hosts plan for themselves, on locked room. This module writes
           the placements whose job is still queued under the epoch that the plan saw and whose
           queue is open. The write skips the other jobs and waits for no lock, because its caller
           holds locks of hosts, and locks of queues come before those.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.placement.ranks import say_names
from holdfast.core.placement.types import JobPlacement
from holdfast.core.states import JobEvent
from holdfast.core.transitions import JOB, sources
from holdfast.moves.values import OfferedTask
from holdfast.store.postgres.connection.session import Rows, Step, to_json

RESERVE_FROM = [str(s) for s in sources(JOB, JobEvent.RESERVE)]


class ReservedJob(msgspec.Struct, frozen=True):
    """A job that was reserved. attempt: the number of its new attempt. secrets: the job's secrets,
    read only for a job that a host takes."""

    placement: JobPlacement
    attempt: int
    secrets: Mapping[str, str]


class Reservation(msgspec.Struct, frozen=True):
    """Placements to be written, in this order.

    ttls: job id → seconds of its lease. name_of: host id → name. at: the time of the reservation.
    taken: the hosts take these jobs, and the answers to their syncs bring the orders, so the leases
    begin at once. revision: the revision of the settings that allow hosts to take jobs; the store
    writes nothing under another. None for the leader.
    """

    placements: Sequence[JobPlacement]
    ttls: Mapping[str, float]
    name_of: Callable[[str], str]
    at: datetime
    taken: bool = False
    revision: int | None = None

    def ask(self) -> Step:
        """Return the statement that writes the placements."""
        return "reserve_jobs", {
            **_write_columns(self.placements, self.name_of),
            "ttls": [float(self.ttls[p.job_id]) for p in self.placements],
            "queues": sorted({p.queue for p in self.placements}),
            "reserve_from": RESERVE_FROM,
            "granted": self.at if self.taken else None,
            "road": "host" if self.taken else "leader",
            "said": ", by the host itself" if self.taken else "",
            "revision": self.revision,
            "now": self.at,
        }

    def read(self, found: Rows) -> list[ReservedJob]:
        """Return the jobs that the statement has reserved."""
        (row,) = found
        secrets = row["secrets"] or {}
        written = sorted(zip(row["ns"] or (), row["attempts"] or (), strict=True))
        placed = [(self.placements[n - 1], attempt) for n, attempt in written]
        return [ReservedJob(p, attempt, secrets.get(p.job_id, {})) for p, attempt in placed]

    def list_applied(self, found: Rows) -> list[str]:
        """Return the ids of the jobs that the statement has reserved."""
        return [one.placement.job_id for one in self.read(found)]

    def make_task(self, one: ReservedJob) -> OfferedTask:
        """Return the task of a reserved job of one task, for the order to the host that takes the
        job."""
        (seat,) = one.placement.tasks
        return OfferedTask(
            key=TaskKey(one.placement.job_id, 0, one.placement.epoch + 1),
            attempt=one.attempt,
            host_id=seat.host_id,
            devices=seat.devices,
            lease_ttl_seconds=self.ttls[one.placement.job_id],
        )


def _write_columns(
    placements: Sequence[JobPlacement], name_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return placements as columns of jobs, of their ranks' places, and of hosts. Places refer to
    jobs and hosts by numbers from 1."""
    hosts: dict[str, int] = {}
    incarnations: list[str] = []  # a host has one incarnation in a plan
    seats: list[tuple[int, int, int, int, str]] = []
    homes: list[tuple[str | None, str, str | None]] = []
    for number, placement in enumerate(placements, 1):
        for some in placement.tasks:
            host = hosts.get(some.host_id)
            if host is None:
                host = hosts[some.host_id] = len(hosts) + 1
                incarnations.append(some.incarnation)
            # Sent as text, because arrays in an array must have one length.
            devices = f"{{{','.join(map(str, some.devices))}}}" if some.devices else ""
            seats.append((number, host, some.rank, some.count, devices))
        named = {some.host_id: None for some in placement.tasks}
        if len(named) == 1:
            homes.append((some.host_id, name_of(some.host_id), None))
        else:
            by_rank = [some.host_id for some in placement.tasks for _ in range(some.count)]
            homes.append((None, say_names(map(name_of, named), 3), to_json(by_rank)))
    numbers, host_numbers, firsts, counts, devices_of = map(list, zip(*seats, strict=True))
    homes_of, names, places = map(list, zip(*homes, strict=True))
    return {
        "jobs": [p.job_id for p in placements],
        "epochs": [p.epoch for p in placements],
        "tasks": [p.size for p in placements],
        "homes": homes_of,
        "names": names,
        "places": places if any(places) else None,
        "job_numbers": numbers,
        "host_numbers": host_numbers,
        "firsts": firsts,
        "counts": counts,
        "devices": devices_of if any(devices_of) else None,
        "hosts": list(hosts),
        "incarnations": incarnations,
    }
