"""Turn one job on record into the value that admission plans with. Pure."""

from holdfast.core.placement.types import Candidate
from holdfast.core.records import JobRecord


def as_candidate(job: JobRecord) -> Candidate:
    """Return the job as a candidate of admission, with its needs and without its waiting time."""
    return Candidate(
        job_id=job.id,
        epoch=job.epoch,
        queue=job.queue,
        project=job.project,
        priority=job.priority,
        tasks=job.tasks,
        gpus=job.gpus,
        cpu_slots=job.cpu_slots,
        memory_bytes=job.memory_bytes,
        host_labels=job.spec.host_labels,
    )
