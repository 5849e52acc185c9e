"""Find the starts and ends of which an agent lost the messages: compare the guardian's snapshot
with the agent's own table (HEAR-1)."""

from collections.abc import Callable, Iterable

import msgspec

from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.wire.guardian import Snapshot, TaskEnded, TaskStarted


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between the guardian's snapshot and the agent's table.

    acked: ends that the guardian should have forgotten by now. ended, started: messages that the
    agent did not get. unheld: tasks that the guardian was told to launch and does not know, though
    no end of them came.
    """

    acked: list[TaskKey] = []
    ended: list[TaskEnded] = []
    started: list[TaskStarted] = []
    unheld: list[AgentTask] = []


def find_missed(
    snapshot: Snapshot, tasks: Iterable[AgentTask], must_be_held: Callable[[TaskKey, int], bool]
) -> Missed:
    """Compare a snapshot with the agent's tasks. `must_be_held` returns True if the launch of a
    task was sent before the hello of this number, so that the snapshot has to name the task."""
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
