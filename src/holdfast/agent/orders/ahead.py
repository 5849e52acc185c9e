"""Orders that are held until a slot of this host is free, so that no slot waits for the controller.

AHEAD-2  A held order begins in the same breath in which the guardian says that a slot is free, or
         it is given back: because the controller recalls or stops it, because this host stops, or
         because it was held for `LATE` times what it was to wait, when the host is slower than it
         was. This table of tasks alone decides which: one that has begun goes on, and one that was
         given back never begins (KEEP-2).
AHEAD-4  Where short tasks follow each other, ends are told together: when what is held lasts just
         as long as an answer takes, and not while the answer to the last news may be under way;
         but 30 ms late at most (`PACE_SECONDS`).
"""

from collections.abc import Iterable, Sequence

from holdfast.agent.tasks import PACE_SECONDS, AgentTask, TaskTable
from holdfast.core.states import AgentTaskState
from holdfast.wire.agent import MAX_AHEAD

LATE = 20.0
_WEIGHT = 0.1
"""Of the newest end in the mean of what a task takes."""


class AheadDesk:
    """What this host holds ahead, and how much it would hold.

    slots: its own, once they are known. wanted: as was counted last. seconds: of work that may be
    held, as the controller said last; 0: none is.
    """

    def __init__(self, table: TaskTable) -> None:
        self._table = table
        self._held: dict[AgentTask, float] = {}
        self._mean_seconds = 0.0  # from the launch of a task until its slot is free
        self.slots = self.wanted = 0
        self.seconds = 0.0

    @property
    def late_seconds(self) -> float:
        """For how long an order is held at most."""
        return LATE * self.seconds

    def __len__(self) -> int:
        return len(self._held)

    def note_end(self, task: AgentTask, now: float) -> None:
        """Note that a task gave its slots back."""
        if not task.slots or not task.launched_at:
            return
        took = max(now - task.launched_at, 1e-4)
        mean = self._mean_seconds or took
        self._mean_seconds = mean + (took - mean) * _WEIGHT

    def count_wanted(self, now: float) -> int:
        """Return how many orders to hold: what the slots that turn over will begin within `seconds`,
        and no more than `MAX_AHEAD` for each of these."""
        busy = [(task.slots, now - task.launched_at) for task in self._list_busy()]
        self.wanted = count_wanted(self.slots, busy, self._mean_seconds, self.seconds)
        return self.wanted

    def find_pause(self, answer_seconds: float, awaited_seconds: float) -> float:
        """Return how long news may wait for more (AHEAD-4), in seconds. answer_seconds: what an
        answer takes. awaited_seconds: in how long the answer to the last news may be here."""
        if not (self.wanted or self._held):
            return 0.0  # no short tasks follow each other here
        work_seconds = len(self._held) * self._mean_seconds / max(1, self.slots)
        return min(PACE_SECONDS, max(0.0, work_seconds - answer_seconds, awaited_seconds))

    def must_wait(self, task: AgentTask) -> bool:
        """Return whether the task finds no slots free, or others wait for these."""
        return bool(self._held) or task.slots > self._count_free()

    def hold(self, task: AgentTask, now: float) -> None:
        """Hold an order back."""
        self._held[task] = now

    def let_go(self, task: AgentTask) -> None:
        """Hold an order no more: it begins, or is given back."""
        self._held.pop(task, None)

    def list_next(self) -> Sequence[AgentTask]:
        """Return the first orders that find free slots together."""
        if not self._held:
            return ()
        free = self._count_free()
        found = []
        for task in self._held:
            free -= task.slots
            if free < 0:
                break
            found.append(task)
        return found

    def list_late(self, now: float) -> Sequence[AgentTask]:
        """Return those that were held for too long."""
        return [task for task, since in self._held.items() if since + self.late_seconds <= now]

    def list_all(self) -> Sequence[AgentTask]:
        """Return all that are held."""
        return list(self._held)

    def _count_free(self) -> int:
        return self.slots - sum(task.slots for task in self._list_busy())

    def _list_busy(self) -> Iterable[AgentTask]:
        """The tasks that have slots: launched, and their trees not known to be gone."""
        return (
            task
            for task in self._table
            if task.slots and not task.state.end_heard and task.state is not AgentTaskState.ORDERED
        )


def count_wanted(
    slots: int, busy: Sequence[tuple[int, float]], mean_seconds: float, seconds: float
) -> int:
    """Return how many orders a host holds ahead. Pure.

    busy: the slots of each task that has some, and for how long it has had them. mean_seconds: what
    a task takes, 0 where none has ended yet. A slot whose task has run for longer than `seconds`
    does not turn over; the others together begin one order every mean_seconds / their number.
    """
    if seconds <= 0.0 or mean_seconds <= 0.0:
        return 0
    quick = max(0, slots - sum(count for count, age in busy if age > seconds))
    return int(min(MAX_AHEAD * quick, seconds * quick / mean_seconds))
