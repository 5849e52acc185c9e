"""A job on record as admission sees it, for questions that are asked of jobs one by one. Pure."""

from holdfast.core.placement.types import Candidate
from holdfast.core.records import JobRecord


def as_candidate(job: JobRecord) -> Candidate:
    """Return the job as admission sees it, as far as its needs go."""
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
