"""A gang drawn for a person: its ranks, where they are, how far, and who began the fall.

A row for each rank of a small gang; of a large one, ranks that are alike share a row, first those
of one host, then, where that is still too much for a screen, those of all hosts.
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
"""A gang of no more ranks has a row for each."""
MAX_ROWS = 40
"""More rows than this, and hosts are drawn together."""


@dataclass(frozen=True)
class Seat:
    """One rank as it is drawn. `alike`: what ranks that share a row have in common, besides their
    host."""

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
class Row:
    """Seats that are drawn together."""

    seats: list[Seat] = field(default_factory=list)

    @property
    def ranks(self) -> str:
        """Which ranks."""
        return say_ranks([seat.rank for seat in self.seats], most=4)

    @property
    def hosts(self) -> str:
        """Where; of many hosts, how many."""
        hosts = list(dict.fromkeys(seat.host for seat in self.seats))
        return ", ".join(hosts) if len(hosts) <= 2 else f"{len(hosts)} hosts"

    @property
    def devices(self) -> str:
        """Of one host, which; of several, how many each rank has."""
        if not any(seat.devices for seat in self.seats):
            return "-"
        if len({seat.host for seat in self.seats}) == 1:
            return say_ranks(number for seat in self.seats for number in seat.devices)
        counts = {len(seat.devices) for seat in self.seats}
        return f"{counts.pop()} each" if len(counts) == 1 else f"{min(counts)}-{max(counts)} each"

    @property
    def steps(self) -> str:
        """How far, from the furthest behind to the furthest."""
        steps = [seat.step for seat in self.seats if seat.step is not None]
        if not steps:
            return "-"
        total = next((f"/{seat.total}" for seat in self.seats if seat.total), "")
        return (str(steps[0]) if min(steps) == max(steps) else f"{min(steps)}-{max(steps)}") + total

    @property
    def beat(self) -> str:
        """How long ago the rank that is silent for longest sent its beat."""
        return age(
            min((seat.beat_at for seat in self.seats if seat.beat_at is not None), default=None)
        )

    @property
    def note(self) -> str:
        """What is said of the first of them."""
        return next((seat.note for seat in self.seats if seat.note), "")


def group_seats(seats: Sequence[Seat], *, every: bool = False) -> list[Row]:
    """Rows of `seats`, in the order of their first ranks; `every`: one for each rank, however
    many."""
    keys: list[Callable[[Seat], Hashable]] = [
        lambda seat: seat.rank,
        lambda seat: (seat.host, seat.state, seat.alike),
        lambda seat: (seat.state, seat.alike),
    ]
    rows: list[Row] = []
    for number, key in enumerate(keys):
        found: dict[Hashable, Row] = {}
        for seat in sorted(seats, key=lambda seat: seat.rank):
            found.setdefault(key(seat), Row()).seats.append(seat)
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
    """Draw the attempt that is reserved, runs or drains. rules: the operators' own, in force."""
    fall = _find_fall(job, tasks, rules) if has_fallen(job, tasks) else {}
    seats = [_seat_of_task(task, fall.get(task.rank)) for task in tasks]
    head = f"attempt {job.attempts}, {paint(job.state.value)}"
    if job.drain_since is not None:
        head += f" for {age(job.drain_since)}: {job.drain_reason or job.drain_cause or ''}".rstrip(
            ": "
        )
    rows = group_seats(seats, every=every)
    headers = ["RANK", "HOST", "STATE", "GPUS", "STEP", "BEAT"]
    cells = [
        [row.ranks, row.hosts, row.seats[0].state, row.devices, row.steps, row.beat] for row in rows
    ]
    elastic = 1
    if any(row.note for row in rows):
        elastic = len(headers)
        headers.append("NOTE")
        cells = [[*cell, row.note] for cell, row in zip(cells, rows, strict=True)]
    return "\n".join([*_wrap(head), table(headers, cells, elastic=elastic)])


def _seat_of_task(task: TaskRecord, fell: tuple[str, str] | None) -> Seat:
    role, words = fell or ("", "")
    note = f"{role}: {words}" if role else (f"in {task.section}" if task.section else "")
    if task.replaced:
        note = f"replaced {task.replaced} time{'s' * (task.replaced != 1)}" + (
            f", {note}" if note else ""
        )
    return Seat(
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
    """The task's state; of a reserved one, how far its start is."""
    if task.state.value == "blocked":
        return "parked" if task.is_parked else "waits for a host"
    if task.state.value != "reserved":
        return task.state.value
    if not task.barrier:
        return "claimed" if task.claimed_at is not None else "reserved"
    return "starting" if task.offered_at is not None else "reserved"


def has_fallen(job: JobRecord, tasks: Sequence[TaskRecord]) -> bool:
    """Return whether the attempt drains and a task of it failed, so that its drawing needs the
    operators' rules."""
    return job.drain_since is not None and any(task.state.value == "failed" for task in tasks)


def _find_fall(
    job: JobRecord, tasks: Sequence[TaskRecord], rules: Sequence[OperatorRule]
) -> dict[int, tuple[str, str]]:
    """Rank → its part in the fall and its end, as far as is known before all ranks have ended."""
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
    """An attempt that has ended, from what was kept of its members: who began the fall, and by what
    evidence.

    reason: also the sentence of the decision, where it is not shown elsewhere.
    """
    outcome = attempt.outcome.value if attempt.outcome is not None else attempt.state.value
    head = f"attempt {attempt.number}, {paint(outcome)}" + (
        f": {attempt.reason}" if attempt.reason and reason else ""
    )
    gang = len(attempt.members) > 1
    rows = group_seats([_seat_of_member(member, gang) for member in attempt.members], every=every)
    if not rows:
        return "\n".join(_wrap(f"{head} (nothing of it ran)"))
    cells = [
        (
            row.ranks,
            row.hosts,
            row.seats[0].state,
            _say_code(row.seats[0].exit_code),
            row.seats[0].cause or "-",
            row.note,
        )
        for row in rows
    ]
    lines = [*_wrap(head), table(("RANK", "HOST", "STATE", "EXIT", "CAUSE", "WHAT"), cells)]
    for member in attempt.members:
        if member.trigger:
            lines += _explain_trigger(member, attempt.members)
    return "\n".join(lines)


def _seat_of_member(member: MemberRecord, gang: bool) -> Seat:
    role = "began the fall" if member.trigger and gang else "fell with it" if member.cascade else ""
    words = member.message
    if not words and member.state.value == "preempted":
        words = "stopped"
    cause = member.cause.value if member.cause is not None else ""
    return Seat(
        rank=member.rank,
        host=member.host or "-",
        state=member.state.value,
        exit_code=member.exit_code,
        cause=cause,
        alike=(role, member.exit_code, cause, member.rule),
        note=": ".join(filter(None, (role, words))),
    )


def _explain_trigger(member: MemberRecord, members: Sequence[MemberRecord]) -> list[str]:
    told = ", ".join(
        f"{name} = {value}" for name, value in member.evidence.items() if value is not None
    )
    by = ", ".join(filter(None, (f"rule {member.rule}" if member.rule else "", told)))
    who = (
        f"rank {member.rank} on {member.host or '?'}"
        if len(members) > 1
        else f"on {member.host or '?'}"
    )
    began = " began the fall" if len(members) > 1 else ""
    lines = _wrap(f"{who}{began}: {member.message}" + (f" ({by})" if by else ""))
    fell = [other.rank for other in members if other.cascade]
    stopped = [other.rank for other in members if other.state.value == "preempted"]
    if fell:
        lines += _wrap(
            f"{name_ranks(fell)} fell with it, and {'is' if len(fell) == 1 else 'are'} charged "
            "nothing"
        )
    if stopped:
        lines += _wrap(f"{name_ranks(stopped)} {'was' if len(stopped) == 1 else 'were'} stopped")
    return lines


def _say_code(code: int | None) -> str:
    return "-" if code is None else str(code)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, columns(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    ) or [text]
