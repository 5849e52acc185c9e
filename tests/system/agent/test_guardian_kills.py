"""kill -9 at any moment: of the guardian, of its agent, of both. A few rounds in every run, many in
`make soak`.

The families do what they can to get away: own sessions, dead parents, cleared environments. They
are told by a word of their command lines, which is nothing that Holdfast goes by.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from holdfast.core.ids import TaskKey
from holdfast.wire.guardian import Ack, AgentHello, StopTask, TaskEnded
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.system.agent.guardian_rig import Rig
from tests.waits import wait_until

# Each runaway leaves one behind each time: with the environment and without, with its parent and
# without.
FAMILY = """
import os, sys, time
word, depth = sys.argv[1], int(sys.argv[2])
def go(clear, leave):
    if os.fork() == 0:
        os.setsid()
        if leave and os.fork(): os._exit(0)
        env = {} if clear else dict(os.environ)
        os.execve(sys.executable, [sys.executable, '-SE', '-c', sys.argv[3], word, str(depth - 1), sys.argv[3]], env)
if depth:
    go(False, False); go(True, True); go(False, True)
if depth == 2:
    print('ready', flush=True)
time.sleep(600)
"""


def find_family(word: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def run_rounds(rig: Rig, random: Random, rounds: int) -> None:
    """Guardians that are killed while they start, stop and forget families, and the next one."""
    word = f"family-{rig.host}"
    rig.start()
    rig.meet()
    for number in range(rounds):
        keys = []
        for index in range(3):
            argv = [sys.executable, "-SE", "-c", FAMILY, word, "2", FAMILY]
            keys.append(rig.launch(argv, job=f"r{number}-{index}"))
        if random.random() < 0.8:
            wait_until(
                lambda keys=keys: all(rig.read(f"{key.job_id}.out") for key in keys),
                what="the families",
            )  # type: ignore[misc]  # called now
        act(rig, random, keys)
        if random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rig.agent_pid, signal.SIGSTOP)  # only the next guardian sweeps
                os.kill(rig.agent_pid, signal.SIGKILL)
        rig.guardian.kill()
        rig.guardian.wait()
        rig.start()
        snapshot = rig.meet()
        assert snapshot.tasks == [], "an end was made up, or a task taken over that is dead"
        assert find_family(word) == [], (
            f"round {number}: somebody outlived his guardian; {rig.notes()[-2000:]}"
        )


def act(rig: Rig, random: Random, keys: list[TaskKey]) -> None:
    """Stop some, acknowledge what has ended, for a random time."""
    until = time.monotonic() + random.choice([0.0, 0.005, 0.05, 0.3])
    for key in keys:
        if random.random() < 0.7:
            rig.say(StopTask(key=key, grace_seconds=random.choice([0.0, 0.0, 0.02, 5.0])))
    while time.monotonic() < until:
        rig.hear(0.005)
        ended = [answer.key for answer in rig.heard if isinstance(answer, TaskEnded)]
        rig.heard.clear()
        if ended:
            rig.say(Ack(keys=ended), AgentHello(pid=rig.agent_pid))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [True, False])
def test_nothing_outlives_a_guardian_that_is_killed_at_any_moment(
    tmp_path: Path, groups: bool
) -> None:
    """GUARD-5, GUARD-6, SWEEP-1."""
    rig = Rig(tmp_path, use_groups=groups)
    try:
        run_rounds(rig, Random(1), 6)
    finally:
        rig.close()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_outlives_a_guardian_that_is_killed_often(
    tmp_path: Path, groups: bool, seed: int
) -> None:
    rig = Rig(tmp_path, use_groups=groups)
    try:
        run_rounds(rig, Random(100 + seed), 60)
    finally:
        rig.close()


def run_jobs_under_dying_agents(
    controller: FakeController, host: Host, folder: Path, random: Random, rounds: int
) -> None:
    """Real agents that are killed while they launch, report and acknowledge: each job runs once,
    and its own code is told."""
    expected: dict[TaskKey, int] = {}
    for number in range(rounds):
        for index in range(3):
            code = random.randrange(0, 200)
            out = folder / f"ran-{number}-{index}"
            script = f"echo $$ >> {out}; sleep {random.choice(['0', '0.05', '0.4'])}; exit {code}"
            expected[controller.launch("sh", "-c", script, job=f"r{number}-{index}")] = code
        time.sleep(random.choice([0.0, 0.01, 0.05, 0.2, 0.5]))
        agent = host.agent_pid()
        os.kill(agent, signal.SIGKILL)
        host.agent_pid(but=agent)
    for key, code in expected.items():
        facts = controller.wait_end(key, 60)
        assert (facts.exit_code, facts.lost, facts.start_error) == (code, None, None), key
        assert len((folder / f"ran-{key.job_id[1:]}").read_text().split()) == 1, (
            f"{key} ran more than once"
        )


@pytest.mark.slow
def test_jobs_run_once_whenever_the_agent_is_killed(
    controller: FakeController, host: Host, tmp_path: Path
) -> None:
    """AGT-1, GUARD-1, GUARD-4."""
    run_jobs_under_dying_agents(controller, host, tmp_path, Random(2), 5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_jobs_run_once_however_often_the_agent_is_killed(
    controller: FakeController, make_host: Callable[..., Host], tmp_path: Path, seed: int
) -> None:
    run_jobs_under_dying_agents(controller, make_host().start(), tmp_path, Random(200 + seed), 50)
