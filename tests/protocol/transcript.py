"""A run of the simulated world as lines to read: when, from where to where, what, and why.

`World` tells its transcript of every call that carries news, of what hosts do, and of every row
that changed. Calls that only renew a lease, and news that was told before, leave no line.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.core.causes import Budget
from holdfast.core.facts import TaskFacts
from holdfast.core.records import AttemptRecord, EventRecord, HostRecord, JobRecord, TaskRecord
from holdfast.core.states import TaskState
from holdfast.moves.values import HostSynced
from tests.protocol.host import Process, Request

MAX_LINES = 2000  # of a long run the last ones are kept
TIME_COLUMNS, PLACE_COLUMNS, TEXT_COLUMNS = 6, 20, 88
NOTE = "The transcript of this run (tests/protocol/transcript.py), its end:"
LINKS = {
    "ok": "{} is reached",
    "lose_request": "calls of {} are lost",
    "lose_answer": "answers to {} are lost",
    "hold_request": "calls of {} are held up",
    "hold_answer": "answers to {} are held up",
    "mess": "calls of {} are lost, held up and doubled by chance",
    "poll": "calls of {} wait for news",
}
"""What the network does to a host, by the mode of its link."""


class Line(NamedTuple):
    """One thing that happened. `at` is true time in seconds since the world began."""

    at: float
    place: str
    text: str


def describe_end(facts: TaskFacts) -> str:
    """How a process ended, in a few words."""
    if facts.trip is not None:
        return f"killed by the watchdog {facts.trip.watchdog}"
    if facts.start_error is not None:
        return f"not started: {facts.start_error}"
    how = f"exit code {facts.exit_code}"
    if facts.exit_code is None:
        how = "never ran" if facts.signal is None else f"signal {facts.signal}"
    return f"{how}, stopped" if facts.stopped else how


class Transcript:
    """The lines of one run, and what was said already."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)
        self._told: set[tuple[object, ...]] = set()
        self._states: dict[tuple[object, ...], str] = {}
        self._links: dict[str, str] = {}

    def begin_here(self) -> None:
        """Forget the lines so far: what led to here is of no interest to the reader."""
        self._lines.clear()

    def say(self, at: float, place: str, text: str) -> None:
        """Add a line."""
        self._lines.append(Line(at, place, text))

    def _is_news(self, *what: object) -> bool:
        """True the first time something is told."""
        if what in self._told:
            return False
        self._told.add(what)
        return True

    # ---- messages

    def link(self, at: float, host_id: str, mode: str) -> None:
        """Add a line where a host's link is another than at its last call."""
        if self._links.get(host_id, "ok") != mode:
            self._links[host_id] = mode
            self.say(at, "network", LINKS[mode].format(host_id))

    def request(self, at: float, request: Request) -> None:
        """Add what an agent's call says for the first time."""
        who = request.incarnation
        said = []
        if request.register:
            said.append(f"register as {request.incarnation}")
        said += [f"claimed {k}" for k, _ in request.claimed if self._is_news(who, "claimed", k)]
        said += [f"started {k}" for k in request.started if self._is_news(who, "started", k)]
        said += [
            f"ended {k}: {describe_end(facts)}"
            for k, facts in request.ended
            if self._is_news(who, "ended", k)
        ]
        if request.leaving:
            said.append("leaving")
        for text in said:
            self.say(at, f"{request.host_id} → controller", text)

    def answer(self, at: float, request: Request, answer: HostSynced | None) -> None:
        """Add the commands of an answer that its host hears for the first time."""
        who, place = request.incarnation, f"controller → {request.host_id}"
        if answer is None:
            self.say(at, place, f"{request.incarnation} is over: stale_incarnation")
            return
        said = [f"end {k}: its lease is not yours" for k in answer.lost if self._is_news(who, k)]
        said += [
            f"stop {row.key}{', without grace' if row.hard else ''}: {row.reason}"
            for row in answer.preempts
            if self._is_news(who, "stop", row.key, row.hard)
        ]
        said += [
            f"claim {row.key}" for row in answer.claims if self._is_news(who, "claim", row.key)
        ]
        said += [
            f"launch {offer.task.key}, lease {offer.task.lease_ttl_seconds:g} s"
            for offer in answer.offers
            if self._is_news(who, "launch", offer.task.key)
        ]
        said += [f"heard: {k} ended" for k in answer.acked]
        said += [f"refused: {k} is of no present epoch" for k in answer.refused]
        for text in said:
            self.say(at, place, text)

    # ---- hosts

    def launched(self, at: float, host_id: str, process: Process) -> None:
        """Add the start of a task's processes."""
        devices = f" on GPU {', '.join(map(str, process.devices))}" if process.devices else ""
        self.say(at, host_id, f"{process.key} starts{devices}")

    def ended(self, at: float, host_id: str, process: Process) -> None:
        """Add the end of a task's processes."""
        assert process.facts is not None
        lapsed = ", its lease had run out on the host" if process.lapsed else ""
        self.say(at, host_id, f"{process.key} is gone: {describe_end(process.facts)}{lapsed}")

    # ---- the store's rows

    def look(
        self,
        at: float,
        place: str,
        jobs: Sequence[JobRecord],
        tasks: dict[str, list[TaskRecord]],
        attempts: dict[str, list[AttemptRecord]],
        hosts: Sequence[HostRecord],
        events: Iterable[EventRecord],
    ) -> None:
        """Add every edge that rows took since the last look, and the sentences of the events that
        tell of them. Jobs come in the order in which they were submitted."""
        found = list(events)
        for host in sorted(hosts, key=lambda h: h.id):
            self._change(at, place, "host", (host.id,), str(host.state))
        for job in sorted(jobs, key=lambda j: j.created_at):
            edges = [self._edge(job.id, ("job", job.id), self._describe_job(job))]
            edges += [
                self._edge(f"attempt {a.number}", ("attempt", job.id, a.number), self._describe(a))
                for a in attempts[job.id]
            ]
            edges += [
                self._edge(
                    f"rank {t.rank}", ("task", job.id, t.rank, t.attempt), self._describe_task(t)
                )
                for t in tasks[job.id]
            ]
            if text := "; ".join(edge for edge in edges if edge):
                self.say(at, place, text)
            # Two events of one change, a job's end and its last retry, may carry one sentence.
            reasons = dict.fromkeys(e.message for e in found if e.job_id == job.id and e.message)
            for reason in reasons:
                self.say(at, place, f"“{reason}”")
        for event in found:
            if event.job_id is None and event.kind.startswith("host.") and event.message:
                self.say(at, place, f"“{event.message}”")

    def _change(
        self, at: float, place: str, name: str, key: tuple[object, ...], state: str
    ) -> None:
        if edge := self._edge(f"{name} {key[0]}", (name, *key), state):
            self.say(at, place, edge)

    def _edge(self, name: str, key: tuple[object, ...], state: str) -> str:
        """The step from the state last seen, empty where there is none."""
        before = self._states.get(key)
        if before == state:
            return ""
        self._states[key] = state
        return f"{name} {state}" if before is None else f"{name} {before.split(' ')[0]} → {state}"

    def _describe_job(self, job: JobRecord) -> str:
        if job.wait_cause is None:
            return str(job.state)
        if job.wait_until is None:
            return f"{job.state} ({job.wait_cause})"
        until = (job.wait_until - self._start).total_seconds()
        return f"{job.state} ({job.wait_cause}, until {until:.1f})"

    def _describe_task(self, task: TaskRecord) -> str:
        placed = task.state is TaskState.RESERVED
        return f"reserved on {task.host_name} under epoch {task.epoch}" if placed else task.state

    def _describe(self, attempt: AttemptRecord) -> str:
        if attempt.outcome is None:
            return str(attempt.state)
        rank = f" of rank {attempt.trigger_rank}" if attempt.trigger_rank is not None else ""
        cause = f", {attempt.cause}{rank}" if attempt.cause is not None else ""
        charged = f", charged to {attempt.charged_to}" if attempt.charged_to else ""
        if attempt.charged_to == Budget.NEVER:
            charged = ", never retried"
        return f"{attempt.state} ({attempt.outcome}{cause}{charged})"

    # ---- the page

    def render(self, last: int | None = None) -> str:
        """The lines, or the last of them, in three columns; what repeats the line above is blank."""
        lines = list(self._lines)[-last:] if last else list(self._lines)
        out: list[str] = []
        before: Line | None = None
        margin = " " * (TIME_COLUMNS + 2 + PLACE_COLUMNS + 1)
        for line in lines:
            same = before is not None and before.at == line.at
            at = "" if same else f"{line.at:.1f}"
            place = "" if same and before is not None and before.place == line.place else line.place
            head = f"{at:>{TIME_COLUMNS}}  {place:<{PLACE_COLUMNS}} "
            kept = line.text.replace("rank ", "rank\N{NO-BREAK SPACE}")
            text = textwrap.wrap(kept, TEXT_COLUMNS, break_on_hyphens=False)
            out.append((head + text[0]).rstrip())
            out += [margin + "  " + more for more in text[1:]]
            before = line
        return "\n".join(out).replace("\N{NO-BREAK SPACE}", " ")

    def explain(self, error: BaseException, last: int = 150) -> None:
        """Hang the last lines on an error, once: pytest prints an error's notes under it."""
        if not any(note.startswith(NOTE) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{NOTE}\n{self.render(last)}")
