"""The guardian's tasks where their start fails by a bug: every key that is known has an answer."""

from __future__ import annotations

import itertools
import os
import signal

import msgspec
import pytest

from holdfast.agent.guardian.tasks import HostTasks
from holdfast.core.ids import TaskKey
from holdfast.process import groups
from holdfast.process.loop import Mishaps, Poller
from holdfast.process.nursery import Nursery
from holdfast.process.syscalls import read_boottime
from holdfast.wire.guardian import Answer, LaunchTask, TaskEnded
from tests.waits import Patience

KEY = TaskKey("job", 0, 1)
LAUNCH = LaunchTask(
    key=KEY, argv=["true"], env={}, cwd="/", stdout="/dev/null", stderr="/dev/null", deadline=1e12
)


def make_tasks() -> tuple[Nursery, Poller, HostTasks, list[Answer]]:
    mishaps = Mishaps(lambda _: None)
    poller = Poller(mishaps)
    nursery = Nursery(f"test-{os.urandom(6).hex()}", poller, mishaps, kill_limit_seconds=1.0)
    said: list[Answer] = []
    tasks = HostTasks(
        nursery=nursery,
        mishaps=mishaps,
        group_home=None,
        oom_score_adj=None,
        descriptor_limit=None,
        read_clock=lambda: 0.0,
        tell=said.append,
        note=lambda *_: None,
    )
    return nursery, poller, tasks, said


def test_a_start_that_fails_by_a_bug_is_answered_and_so_is_its_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GUARD-1, GUARD-7."""
    nursery, poller, tasks, said = make_tasks()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(nursery, "start", fail)
    with pytest.raises(RuntimeError):
        tasks.launch(LAUNCH)
    tasks.launch(LAUNCH)
    first, again = said
    assert isinstance(first, TaskEnded)
    assert (first, first.hosts_fault, first.exit_code) == (again, True, None)
    assert "a bug" in (first.start_error or "")
    assert [task.ended for task in tasks.make_snapshot("i", 0).tasks] == [first]
    tasks.ack([KEY])
    assert (tasks.count_held, tasks.count_running) == (0, 0)
    nursery.close()
    poller.close()


def test_a_sigkill_beside_another_job_s_oom_is_not_blamed_on_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task without a group that counts has no OOM evidence, whatever the host counted."""
    counts = itertools.count()
    monkeypatch.setattr(groups, "_read_field", lambda *_: next(counts))
    nursery, poller, tasks, said = make_tasks()
    tasks.launch(msgspec.structs.replace(LAUNCH, argv=["sh", "-c", "kill -KILL $$"]))
    patience = Patience(20)
    while not any(isinstance(answer, TaskEnded) for answer in said):
        assert not patience.over
        nursery.collect()
        poller.poll(max(0.0, min(0.05, nursery.turn(read_boottime()) - read_boottime())))
    ended = said[-1]
    assert isinstance(ended, TaskEnded)
    assert (ended.signal, ended.oom) == (signal.SIGKILL, False)
    nursery.close()
    poller.close()
