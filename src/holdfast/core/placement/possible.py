"""Find jobs that no present host, and none that a pool may rent, could ever run. Pure."""

from collections.abc import Sequence

import msgspec

from holdfast.core.gpus import Gpu
from holdfast.core.placement.eligible import carries, is_eligible, serves
from holdfast.core.placement.plan import describe_need
from holdfast.core.placement.types import Candidate


class HostShape(msgspec.Struct, frozen=True, kw_only=True):
    """The whole size of a host, busy or not, or of a pool's offer. count: how many hosts of this
    shape there may be; a pool's present hosts are part of the count of its offer and stand nowhere
    else. pool: the offer's pool, "" for a host."""

    name: str
    queues: frozenset[str]
    cpu_slots: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    labels: dict[str, str] = {}
    pool: str = ""
    count: int = 1


def find_impossible(job: Candidate, sizes: Sequence[HostShape]) -> str | None:
    """Return why no known host could ever run one task of `job`, or None."""
    if any(serves(size.queues, job.queue) and count_tasks(job, size) for size in sizes):
        return None
    serving = [size for size in sizes if serves(size.queues, job.queue)]
    if not serving:
        return None  # no host serves the queue *yet*, which `foresee` reports
    gpus, slots = max(len(s.gpus) for s in serving), max(s.cpu_slots for s in serving)
    return (
        f"no host that serves queue {job.queue} could ever run it: it needs {describe_need(job)}, "
        "and the largest have "
        f"{gpus} GPU{'s' * (gpus != 1)}, {slots} CPU slot{'s' * (slots != 1)} and "
        f"{max(s.memory_bytes for s in serving) / 2**30:.3g} GiB of memory"
    )


def foresee(job: Candidate, sizes: Sequence[HostShape]) -> str | None:
    """Return why a job that could run somewhere cannot with the hosts and pools as they are, or None:
    it waits until another host joins, which its user may not know."""
    if count_all_tasks(job, sizes) >= job.tasks:
        return None
    serving = [size for size in sizes if serves(size.queues, job.queue)]
    if not serving:
        return f"no host serves queue {job.queue} now, so it waits until one does"
    labelled = [size for size in serving if carries(size.labels, job.host_labels)]
    if not labelled:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(job.host_labels.items()))
        return (
            f"no host that serves queue {job.queue} has the labels {labels}, and no pool rents one, "
            "so it waits until one joins"
        )
    held = count_all_tasks(job, labelled)
    need = describe_need(job)
    if not held:
        where = "with these labels " if job.host_labels else ""
        return f"no host {where}is large enough for {need}, so it waits until one joins"
    return (
        f"it needs {need} at once, and all hosts and pools that serve queue {job.queue} hold {held}, so "
        "it waits until more hosts join"
    )


def count_tasks(job: Candidate, size: HostShape) -> int:
    """Return how many tasks of the job one host of the size holds, when it is idle."""
    needs = (
        (job.cpu_slots, size.cpu_slots),
        (job.gpus, len(size.gpus)),
        (job.memory_bytes, size.memory_bytes),
    )
    return min([job.tasks, *(have // want for want, have in needs if want)])


def count_all_tasks(job: Candidate, sizes: Sequence[HostShape]) -> int:
    """Return how many tasks of the job all eligible hosts and pools together hold when idle, at
    most as many as the job has. A pool counts as if it rented only its best offer."""
    offers: dict[str, int] = {}
    own = 0
    for size in sizes:
        if not is_eligible(size, job.queue, job.host_labels):
            continue
        held = size.count * count_tasks(job, size)
        if size.pool:
            offers[size.pool] = max(held, offers.get(size.pool, 0))
        else:
            own += held
        if own + sum(offers.values()) >= job.tasks:
            return job.tasks
    return own + sum(offers.values())
