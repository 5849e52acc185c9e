"""Write each loss as a sentence: its cause, its mend, and figures that arithmetic proves.

MEND-1  "Would have saved" is a lower bound: with a checkpoint each T, an end costs at most T of every
        device, whenever it comes, so n ends that cost L together would have cost at most n × T.
        What the saves themselves would have cost more is taken off, by what one save cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core.ledger.values import JobLosses, LedgerName, LostBy
from holdfast.core.records import Record
from holdfast.core.report.money import HOUR_MS

INTERVALS_SECONDS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400)
"""The distances between checkpoints that are proposed."""
UNKNOWN_COST_SECONDS = 600
"""The least distance that is proposed where it is not known what a save costs."""
WORTH = 0.1
"""The least part of a loss that a proposal must save."""
MAX_LINES = 12
_LEAST_MS = 36_000  # less than this reads as 0.0 h

_ENDS: Mapping[str, tuple[str, str]] = {
    "stalled": ("stall", "stalls"),
    "gpu_wedged": ("wedged GPU", "wedged GPUs"),
    "gpu_fault": ("GPU fault", "GPU faults"),
    "oom_killed": ("kill for memory", "kills for memory"),
    "nonzero_exit": ("failed exit", "failed exits"),
    "program_error": ("mistake of the program", "mistakes of the program"),
    "time_limit": ("time limit", "time limits"),
    "preempted": ("preemption", "preemptions"),
    "host_drained": ("drain of its host", "drains of its hosts"),
    "scaled_down": ("host that was given back", "hosts that were given back"),
    "agent_transient": ("failed host or service", "failed hosts or services"),
}
_MENDS: Mapping[LedgerName, tuple[str, str]] = {
    LedgerName.UNFIT: (
        "hosts set aside by their checks",
        "`holdfast hosts` says why; release a host once it is mended",
    ),
    LedgerName.DRAINING: (
        "jobs being stopped, and hosts that take no more work",
        "a shorter grace_seconds, and jobs that save and go at the first notice (on_drain)",
    ),
    LedgerName.CHECKPOINTING: ("saves that block", "save in the background, or less often"),
    LedgerName.STALLED: (
        "silence until a watchdog stopped what hung",
        "a shorter stall_timeout_seconds, or a timeout of the section that hung",
    ),
    LedgerName.WAITING: (
        "ranks that waited for others",
        "`holdfast show JOB` names a slow rank, if one is",
    ),
    LedgerName.SETTING_UP: (
        "images, code and environment made ready",
        "images that the hosts have already, and warm caches (--cache)",
    ),
    LedgerName.LOADING: (
        "from a program's start to its first beat",
        "data and weights in a cache (--cache), or fewer restarts",
    ),
    LedgerName.IDLE: (
        "GPUs that did nothing while their job beat",
        "`holdfast report --idle` names the jobs; idle_gpus=drain gives such GPUs to others",
    ),
    LedgerName.STARTING: (
        "hosts that were rented and did not serve yet",
        "a larger buffer, or a longer idle time before a pool gives hosts back",
    ),
    LedgerName.UNUSED: (
        "hosts that stood ready without work",
        "a smaller pool (min, buffer), or jobs of low priority that may be preempted",
    ),
}


class LossLine(Record, frozen=True, kw_only=True):
    """One loss. hours: hours × devices. usd: what they cost, None without a price. sentence: the
    hours, their cause and what would mend it. saved_hours: what that would have saved at least,
    None where the figures prove no saving. job_id: the job that lost them; "" where many did."""

    hours: float
    sentence: str
    usd: float | None = None
    saved_hours: float | None = None
    job_id: str = ""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A distance between checkpoints, and what it would have saved at least (MEND-1)."""

    seconds: int
    saved_ms: int


def propose(
    *,
    lost_ms: int,
    ends: int,
    devices: int,
    leased_ms: int = 0,
    checkpointing_ms: int = 0,
    save_seconds: float | None = None,
) -> Proposal | None:
    """Return the distance between checkpoints that would have saved most of the steps that were done
    again, None where none would have saved a tenth of them.

    lost_ms: milliseconds × devices that `ends` ends cost together. leased_ms, checkpointing_ms:
    what the job held, and spent in saves. save_seconds: how far apart its saves were, None for
    fewer than two.
    """
    cost_ms = None
    if save_seconds and leased_ms and checkpointing_ms:
        cost_ms = checkpointing_ms * save_seconds * 1000 * devices / leased_ms
    best: Proposal | None = None
    for seconds in INTERVALS_SECONDS:
        if save_seconds is not None and seconds >= save_seconds:
            break
        if cost_ms is None and seconds < UNKNOWN_COST_SECONDS:
            continue
        saved = lost_ms - ends * seconds * 1000 * devices
        if cost_ms is not None and save_seconds:
            saves = leased_ms / (1000 * devices)
            saved -= int(cost_ms * (saves / seconds - saves / save_seconds))
        if saved >= WORTH * lost_ms and saved > 0 and (best is None or saved >= best.saved_ms):
            best = Proposal(seconds=seconds, saved_ms=saved)
    return best


def list_losses(
    held: Mapping[str, float],
    free: Mapping[str, float],
    jobs: Sequence[JobLosses],
    leased_ms: Mapping[str, int],
    *,
    rates: Mapping[str, float],
    rate: float | None,
) -> tuple[LossLine, ...]:
    """Return the largest losses, the largest first.

    held, free: hours × devices by name, that jobs held and that no job held. jobs: those that lost
    steps. leased_ms: job → what it held. rates: job → dollars for an hour of one of its devices;
    `rate` is that of all of them, None without a price.
    """
    lines = [
        _say_lost(job, by, leased_ms, rates.get(job.job_id, rate))
        for job in jobs
        for by in job.lost
    ]
    for name, (what, mend) in _MENDS.items():
        hours = held.get(name, 0.0) + free.get(name, 0.0)
        lines.append(_say_named(name, hours, what, mend, jobs, rate))
    kept = [line for line in lines if line.hours * HOUR_MS >= _LEAST_MS]
    kept.sort(key=lambda line: (-line.hours, line.sentence))
    return tuple(kept[:MAX_LINES])


def _say_lost(
    job: JobLosses, by: LostBy, leased_ms: Mapping[str, int], rate: float | None
) -> LossLine:
    one, many = _ENDS.get(by.cause, (f"end ({by.cause})", f"ends ({by.cause})"))
    count = f"{by.ends} {one if by.ends == 1 else many}"
    hours = by.lost_ms / HOUR_MS
    sentence = f"{say_hours(hours)}: steps done again after {count} of `{job.job_name}`"
    found = propose(
        lost_ms=by.lost_ms,
        ends=by.ends,
        devices=max(1, job.devices),
        leased_ms=leased_ms.get(job.job_id, 0),
        checkpointing_ms=job.checkpointing_ms,
        save_seconds=job.save_seconds,
    )
    saved = None if found is None else found.saved_ms / HOUR_MS
    if found is not None and saved is not None:
        each = f"a checkpoint each {say_interval(found.seconds)}"
        sentence += f"; {each} would have saved {say_hours(saved)}"
    return LossLine(
        hours=hours,
        usd=None if rate is None else rate * hours,
        sentence=sentence,
        saved_hours=saved,
        job_id=job.job_id,
    )


def _say_named(
    name: LedgerName,
    hours: float,
    what: str,
    mend: str,
    jobs: Iterable[JobLosses],
    rate: float | None,
) -> LossLine:
    own = {job.job_id: (getattr(job, f"{name}_ms", 0), job.job_name) for job in jobs}
    job_id, (ms, job_name) = max(own.items(), key=lambda item: item[1], default=("", (0, "")))
    most = ms > 0 and ms / HOUR_MS >= hours / 2
    whose = f", most of it of `{job_name}`" if most else ""
    return LossLine(
        hours=hours,
        usd=None if rate is None else rate * hours,
        sentence=f"{say_hours(hours)}: {what}{whose}; {mend}",
        job_id=job_id if most else "",
    )


def say_hours(hours: float) -> str:
    """Write hours for a sentence, shorter ones in minutes and seconds: `1,204 h`, `3.1 h`, `15 min`, `36 s`."""
    if hours >= 0.95:
        return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.1f} h"
    return f"{hours * 60:.0f} min" if hours >= 1 / 60 else f"{hours * 3600:.0f} s"


def say_interval(seconds: int) -> str:
    """Write a distance of time for a sentence: `10 min`, `2 h`."""
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 60} min"
