"""Make the candidate of a job in memory, which is the job as admission sees it. No other module
makes one."""

import math
from datetime import datetime

from holdfast.core.host_faults import find_runtime_word
from holdfast.core.placement.plan import Candidate
from holdfast.core.placement.types import find_kin
from holdfast.core.spec import JobSpec
from tests.model.state import MemoryJob


def candidate_of(job: MemoryJob, at: datetime) -> Candidate:
    """Return the candidate of a job, which is the job as admission sees it."""
    row, spec = job.row, job.spec
    waited = (at - row.queued_at).total_seconds() if row.queued_at is not None else 0.0
    return Candidate(
        job_id=row.id,
        epoch=row.epoch,
        queue=row.queue,
        project=row.project,
        priority=job.priority,
        tasks=row.tasks,
        gpus=job.gpus,
        cpu_slots=job.cpu_slots,
        memory_bytes=job.memory_bytes,
        avoid_hosts=row.avoid_hosts,
        lease_ttl_seconds=spec.lease_ttl_seconds,
        waited_seconds=max(0.0, waited),
        time_limit_seconds=limit_of(spec),
        expected_seconds=spec.expected_seconds,
        kin=find_kin(spec, row.array_id),
        placement=spec.placement,
        host_labels=spec.host_labels,
        runtime=find_runtime_word(spec.image, spec.runtime),
        supervised=spec.supervised,
        caches=spec.caches,
    )


def limit_of(spec: JobSpec) -> float | None:
    """Return the time limit of a spec: infinity where the limit is switched off, None where it is
    not set."""
    return math.inf if spec.time_limit_seconds == "off" else spec.time_limit_seconds
