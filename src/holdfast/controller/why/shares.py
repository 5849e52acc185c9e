"""The lines of `why` about shares: what a project borrows, which jobs give back what theirs borrowed,
and which hold GPUs that do nothing. Pure."""

from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.words import line
from holdfast.core.report.idle import say_idle
from holdfast.wire.api import WhyLine


def explain_share(found: Circumstances) -> Iterator[WhyLine]:
    """Explain whether a queued job is within its project's share; yields nothing where no project
    has one."""
    job, share = found.job, found.share
    if share is None:
        return
    own, held, unit = _count(found)
    size = (job.gpus or job.cpu_slots) * job.tasks
    of = f"project {job.project} holds {_name(held, unit)} of its share of {own}"
    if held + size <= own:
        gives = "jobs of projects that borrow are stopped for it where that makes enough room"
        none = "no job that could be stopped for it borrows, so it waits for free room"
        yield line(
            "within_share",
            f"{of}, and this job needs {size}: it goes before every job that borrows; "
            f"{gives if found.reclaims else none}",
            "holdfast projects",
        )
    else:
        yield line(
            "beyond_share",
            f"{of}, and this job needs {size}: it may borrow what is idle once no job within its "
            "project's share waits for it",
            f"holdfast projects set {job.project} share_{'gpus' if job.gpus else 'cpu_slots'}=N",
        )


def explain_idle(found: Circumstances) -> Iterator[WhyLine]:
    """Explain that people were told of a running job, because its GPUs do nothing."""
    idle = found.idle
    if idle is None or idle.told_at is None:
        return
    yield line(
        "idle_gpus",
        say_idle(idle, found.idle_policy),
        "end it, or mark what needs no GPU as a section; holdfast report --idle",
    )


def explain_loan(found: Circumstances) -> Iterator[WhyLine]:
    """Explain that the project of a running job borrows, and what that may mean for the job."""
    job, share = found.job, found.share
    if share is None:
        return
    own, held, unit = _count(found)
    if held > own:
        yield line(
            "borrows",
            f"project {job.project} holds {_name(held, unit)}, {held - own} more than its share: when "
            "another project asks for its own, this job may be stopped and queued again at no charge",
            "save checkpoints, and load them at the start",
        )


def _count(found: Circumstances) -> tuple[int, int, str]:
    """Return the share of the job's project, how much of it the project uses, and the unit of
    both."""
    share = found.share
    assert share is not None
    if found.job.gpus:
        return share.gpus, share.held_gpus, "GPU"
    return share.cpu_slots, share.held_cpu_slots, "CPU slot"


def _name(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' * (count != 1)}"
