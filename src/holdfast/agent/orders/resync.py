"""The starts and ends an agent missed when a message was lost: its guardian's snapshot beside its
own table (HEAR-1)."""

from collections.abc import Callable, Iterable

import msgspec

from holdfast.agent.tasks import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.wire.guardian import Snapshot, TaskEnded, TaskStarted


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """acked: ends the guardian should have forgotten by now. unheld: tasks that it was told to
    launch and does not hold, though their end was not heard."""

    acked: list[TaskKey] = []
    ended: list[TaskEnded] = []
    started: list[TaskStarted] = []
    unheld: list[AgentTask] = []


def find_missed(
    snapshot: Snapshot, tasks: Iterable[AgentTask], must_be_held: Callable[[TaskKey, int], bool]
) -> Missed:
    """Compare. `must_be_held`: whether a task's launch was said before the hello of this number, so
    the snapshot knows it."""
    known = {task.key: task for task in tasks}
    missed = Missed(acked=[], ended=[], started=[], unheld=[])
    for status in snapshot.tasks:
        key, task = status.key, known.get(status.key)
        if task is None or not task.live:
            on_record = task is None or task.state is AgentTaskState.ACKNOWLEDGED
            if status.ended is not None and on_record:
                missed.acked.append(key)
        elif status.ended is not None:
            missed.ended.append(status.ended)
        elif status.pid and task.state is AgentTaskState.LAUNCHED:
            started = TaskStarted(key=key, pid=status.pid, started_at=status.started_at)
            missed.started.append(started)
    held = {status.key for status in snapshot.tasks}
    for key, task in known.items():
        if key not in held and not task.state.end_heard and must_be_held(key, snapshot.number):
            missed.unheld.append(task)
    return missed
