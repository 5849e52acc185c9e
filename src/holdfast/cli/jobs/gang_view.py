"""A gang drawn for a person: its ranks, their hosts and steps, and the rank that failed first.

Each rank of a small gang has a row. In a large gang, ranks of one host that are alike share a row,
and ranks of all hosts if there are still more rows than `MAX_ROWS`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.cli.output import age, columns, paint, table
from holdfast.core.placement.ranks import name_ranks, say_ranks

if TYPE_CHECKING:
    from holdfast.core.endings.rules import OperatorRule
    from holdfast.core.records import AttemptRecord, JobRecord, MemberRecord, TaskRecord

EACH_RANKS = 16
"""A gang of at most so many ranks has a row for each."""
MAX_ROWS = 40
"""With more rows than this, ranks of several hosts share them."""


@dataclass(frozen=True)
class RankView:
    """One rank as it is drawn. `alike`: what the ranks of one row share, besides their host."""

    rank: int
    host: str
    state: str
    alike: tuple[Hashable, ...] = ()
    devices: tuple[int, ...] = ()
    step: int | None = None
    total: int | None = None
    beat_at: datetime | None = None
    exit_code: int | None = None
    cause: str = ""
    note: str = ""


@dataclass
class RankRow:
    """The ranks of one row."""

    views: list[RankView] = field(default_factory=list)

    @property
    def ranks(self) -> str:
        """Return the numbers of the row's ranks."""
        return say_ranks([view.rank for view in self.views], most=4)

    @property
    def hosts(self) -> str:
        """Return the names of the hosts of the row's ranks, or the number of hosts if there are
        many."""
        hosts = list(dict.fromkeys(view.host for view in self.views))
        return ", ".join(hosts) if len(hosts) <= 2 else f"{len(hosts)} hosts"

    @property
    def devices(self) -> str:
        """Return the devices of the row's ranks on their host; with several hosts, the number of
        devices of each rank."""
        if not any(view.devices for view in self.views):
            return "-"
        if len({view.host for view in self.views}) == 1:
            return say_ranks(number for view in self.views for number in view.devices)
        counts = {len(view.devices) for view in self.views}
        return f"{counts.pop()} each" if len(counts) == 1 else f"{min(counts)}-{max(counts)} each"

    @property
    def steps(self) -> str:
        """Return the steps that the row's ranks have reached, from the least to the greatest."""
        steps = [view.step for view in self.views if view.step is not None]
        if not steps:
            return "-"
        total = next((f"/{view.total}" for view in self.views if view.total), "")
        return (str(steps[0]) if min(steps) == max(steps) else f"{min(steps)}-{max(steps)}") + total

    @property
    def beat(self) -> str:
        """Return the age of the row's oldest last beat."""
        beats = (view.beat_at for view in self.views if view.beat_at is not None)
        return age(min(beats, default=None))

    @property
    def note(self) -> str:
        """Return the note of the first rank of the row that has one."""
        return next((view.note for view in self.views if view.note), "")


def group_ranks(views: Sequence[RankView], *, every: bool = False) -> list[RankRow]:
    """Group ranks into rows, in the order of their first ranks; `every`: a row for each rank."""
    keys: list[Callable[[RankView], Hashable]] = [
        lambda view: view.rank,
        lambda view: (view.host, view.state, view.alike),
        lambda view: (view.state, view.alike),
    ]
    rows: list[RankRow] = []
    for number, key in enumerate(keys):
        found: dict[Hashable, RankRow] = {}
        for view in sorted(views, key=lambda view: view.rank):
            found.setdefault(key(view), RankRow()).views.append(view)
        rows = list(found.values())
        if every or len(rows) <= (EACH_RANKS if number == 0 else MAX_ROWS):
            break
    return rows


# ---- an attempt that goes on


def draw_tasks(
    job: JobRecord,
    tasks: Sequence[TaskRecord],
    rules: Sequence[OperatorRule] = (),
    *,
    every: bool = False,
) -> str:
    """Draw an attempt that is reserved, runs or drains, by the operators' `rules` in force."""
    fall = _find_fall(job, tasks, rules) if has_fallen(job, tasks) else {}
    views = [_view_of_task(task, fall.get(task.rank)) for task in tasks]
    head = f"attempt {job.attempts}, {paint(job.state.value)}"
    if job.drain_since is not None:
        why = job.drain_reason or job.drain_cause
        head += f" for {age(job.drain_since)}" + (f": {why}" if why else "")
    rows = group_ranks(views, every=every)
    headers = ["RANK", "HOST", "STATE", "GPUS", "STEP", "BEAT"]
    cells = [
        [row.ranks, row.hosts, row.views[0].state, row.devices, row.steps, row.beat] for row in rows
    ]
    elastic = 1
    if any(row.note for row in rows):
        elastic = len(headers)
        headers.append("NOTE")
        cells = [[*cell, row.note] for cell, row in zip(cells, rows, strict=True)]
    return "\n".join([*_wrap(head), table(headers, cells, elastic=elastic)])


def _view_of_task(task: TaskRecord, fell: tuple[str, str] | None) -> RankView:
    role, words = fell or ("", "")
    note = f"{role}: {words}" if role else (f"in {task.section}" if task.section else "")
    if task.replaced:
        times = f"replaced {task.replaced} time{'s' * (task.replaced != 1)}"
        note = f"{times}, {note}" if note else times
    return RankView(
        rank=task.rank,
        host=task.host_name or "-",
        state=_say_state(task),
        alike=(role, task.section, task.replaced),
        devices=task.devices,
        step=task.step,
        total=task.total,
        beat_at=task.beat_at,
        note=note,
    )


def _say_state(task: TaskRecord) -> str:
    """Return the task's state; if it is reserved, the progress of its start."""
    if task.state.value == "blocked":
        return "parked" if task.is_parked else "waits for a host"
    if task.state.value != "reserved":
        return task.state.value
    if not task.barrier:
        return "claimed" if task.claimed_at is not None else "reserved"
    return "starting" if task.offered_at is not None else "reserved"


def has_fallen(job: JobRecord, tasks: Sequence[TaskRecord]) -> bool:
    """Say whether the attempt drains after a failure, so that its drawing needs the rules."""
    return job.drain_since is not None and any(task.state.value == "failed" for task in tasks)


def _find_fall(
    job: JobRecord, tasks: Sequence[TaskRecord], rules: Sequence[OperatorRule]
) -> dict[int, tuple[str, str]]:
    """Return each failed rank's part in the failure and its end, as far as they are known yet."""
    from holdfast.core.endings.drain import find_fall
    from holdfast.core.endings.trigger import is_cascade

    trigger, failures = find_fall(job, tasks, rules)
    by_rank = {task.rank: task for task in tasks}
    found = {}
    for rank, failure in failures.items():
        if trigger is not None and rank == trigger.rank:
            role = "began the fall, as it looks now"
        else:
            role = "fell with it" if is_cascade(failure, by_rank[rank].facts) else "fell too"
        found[rank] = (role, failure.message)
    return found


# ---- an attempt that is over


def draw_attempt(attempt: AttemptRecord, *, every: bool = False, reason: bool = True) -> str:
    """Draw an ended attempt: its members, the rank that failed first, and the evidence.

    reason: add the sentence of the decision, if it is not shown elsewhere.
    """
    outcome = attempt.outcome.value if attempt.outcome is not None else attempt.state.value
    head = f"attempt {attempt.number}, {paint(outcome)}"
    if attempt.reason and reason:
        head += f": {attempt.reason}"
    gang = len(attempt.members) > 1
    rows = group_ranks([_view_of_member(member, gang) for member in attempt.members], every=every)
    if not rows:
        return "\n".join(_wrap(f"{head} (nothing of it ran)"))
    cells = []
    for row in rows:
        first = row.views[0]
        code = "-" if first.exit_code is None else str(first.exit_code)
        cells.append((row.ranks, row.hosts, first.state, code, first.cause or "-", row.note))
    lines = [*_wrap(head), table(("RANK", "HOST", "STATE", "EXIT", "CAUSE", "WHAT"), cells)]
    for member in attempt.members:
        if member.trigger:
            lines += _explain_trigger(member, attempt.members)
    return "\n".join(lines)


def _view_of_member(member: MemberRecord, gang: bool) -> RankView:
    role = "began the fall" if member.trigger and gang else "fell with it" if member.cascade else ""
    words = member.message
    if not words and member.state.value == "preempted":
        words = "stopped"
    cause = member.cause.value if member.cause is not None else ""
    return RankView(
        rank=member.rank,
        host=member.host or "-",
        state=member.state.value,
        exit_code=member.exit_code,
        cause=cause,
        alike=(role, member.exit_code, cause, member.rule),
        note=": ".join(filter(None, (role, words))),
    )


def _explain_trigger(member: MemberRecord, members: Sequence[MemberRecord]) -> list[str]:
    known = [(name, value) for name, value in member.evidence.items() if value is not None]
    told = ", ".join(f"{name} = {value}" for name, value in known)
    by = ", ".join(filter(None, (f"rule {member.rule}" if member.rule else "", told)))
    head = f"on {member.host or '?'}"
    if len(members) > 1:
        head = f"rank {member.rank} {head} began the fall"
    lines = _wrap(f"{head}: {member.message}" + (f" ({by})" if by else ""))
    fell = [other.rank for other in members if other.cascade]
    stopped = [other.rank for other in members if other.state.value == "preempted"]
    if fell:
        are = "is" if len(fell) == 1 else "are"
        lines += _wrap(f"{name_ranks(fell)} fell with it, and {are} charged nothing")
    if stopped:
        lines += _wrap(f"{name_ranks(stopped)} {'was' if len(stopped) == 1 else 'were'} stopped")
    return lines


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, columns(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    ) or [text]
