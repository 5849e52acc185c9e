"""Hosts of the real store whose eight devices are leased, for benchmarks of what a sync costs."""

from __future__ import annotations

from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import plan_admission
from holdfast.core.spec import JobSpec
from holdfast.moves.values import NewJob
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts

DEVICES = 8
INCARNATION = "incarnation-1"


async def lease_hosts(store: PostgresStore, hosts: int) -> dict[str, list[TaskKey]]:
    """Register hosts, and lease each device to a job; return the tasks by host."""
    for n in range(hosts):
        facts = HostFacts(
            name=f"h{n}", gpus=[Gpu(index=i) for i in range(DEVICES)], memory_bytes=1 << 40
        )
        await store.hosts.register_host(f"h{n}", f"h{n}".encode().ljust(32), INCARNATION, facts)
    count = DEVICES * hosts
    jobs = [
        NewJob(id=f"job-{n:05d}", spec=JobSpec(argv=("x",), gpus=1), queue="gpu")
        for n in range(count)
    ]
    await store.jobs.submit_jobs(jobs)
    snap = await store.admission.read_admission(count)
    plan = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
    await store.leases.reserve_and_offer(
        plan.placements, {p.job_id: 3600.0 for p in plan.placements}, ()
    )
    found: dict[str, list[TaskKey]] = {}
    for job in jobs:
        for task in await store.jobs.list_tasks(job.id):
            found.setdefault(str(task.host_id), []).append(task.key)
    return found
