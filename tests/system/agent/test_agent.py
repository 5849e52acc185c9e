"""The agent under a real guardian, with real processes and real HTTP."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.guardian.loop import EXIT_FOLDER_GONE
from holdfast.core.causes import Cause
from holdfast.core.ids import TaskKey
from holdfast.process.files import read_bound
from holdfast.process.table import read_marks, read_table
from holdfast.wire.agent import MAX_WAIT_SECONDS, Gang, GangHost, RegisterRequest
from holdfast.wire.api import Problem
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import JOIN_TOKEN, FakeController, serve
from tests.waits import Patience, is_alive, wait_exit, wait_until

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.slow


def test_a_task_runs_and_its_end_and_output_arrive(controller: FakeController, host: Host) -> None:
    key = controller.launch("/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    facts = controller.wait_end(key)
    assert (facts.exit_code, facts.stopped, facts.trip) == (3, False, None)
    controller.wait_logs(key)
    assert controller.log_of(key) == b"out\n"
    assert controller.log_of(key, "stderr") == b"err\n"
    assert "err" in facts.log_tail
    assert controller.registrations[0].facts.name == "testhost"


def test_a_task_that_cannot_start_says_why(controller: FakeController, host: Host) -> None:
    key = controller.launch("/no/such/program")
    facts = controller.wait_end(key)
    assert facts.exit_code == 127
    assert "no such program" in (facts.start_error or "")


def test_a_rank_of_a_gang_of_8000_starts_and_finds_its_peers(
    controller: FakeController, host: Host
) -> None:
    """Its peers are more than a variable may hold."""
    hosts = [GangHost(f"gpu-box-{n:04d}", f"10.0.{n // 250}.{n % 250}") for n in range(1000)]
    places = [rank // 8 for rank in range(8000)]
    controller.gangs = [Gang(job_id="wide", epoch=1, hosts=hosts, places=places)]
    words = (
        "import json, os; peers = json.load(open(os.environ['HOLDFAST_PEERS_FILE'])); "
        "print(len(peers), peers[7999]['host'], peers[7999]['address'], 'HOLDFAST_PEERS' in "
        "os.environ)"
    )
    key = controller.launch(sys.executable, "-S", "-c", words, job="wide", world_size=8000)
    assert controller.wait_end(key).exit_code == 0
    controller.wait_logs(key)
    assert controller.log_of(key) == b"8000 gpu-box-0999 10.0.3.249 False\n"


def test_a_repeated_launch_runs_once(
    controller: FakeController, host: Host, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    key = controller.launch("/bin/sh", "-c", f"echo x >> {marks}; sleep 1")
    order = controller.launches[key]
    controller.wait_running(key)
    with controller.changed:
        controller.launches[key] = order
        controller._tell()
    controller.wait_end(key)
    seen = len(controller.syncs)
    with controller.changed:  # once more, after its end is on record
        controller.launches[key] = order
        controller._tell()
    controller.wait(lambda: len(controller.syncs) > seen + 3)
    assert marks.read_text() == "x\n"


def test_environment_of_a_task(
    controller: FakeController, make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_THE_SHELL", "yes")
    monkeypatch.setenv("HOLDFAST_TOKEN", "not for jobs")
    make_host(gpus=2).start()
    key = controller.launch(
        "/usr/bin/env", env={"MINE": "1"}, secrets={"KEY": "s3cret-value"}, gpus=[1]
    )
    controller.wait_logs(key)
    lines = controller.log_of(key).decode().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    assert "FROM_THE_SHELL" not in env, "a task gets what its host's environment allows (ENV-1)"
    assert "HOLDFAST_TOKEN" not in env
    assert "HOLDFAST_INCARNATION" not in env
    assert (env["MINE"], env["KEY"]) == ("1", "************")
    assert env["CUDA_VISIBLE_DEVICES"] == env["HIP_VISIBLE_DEVICES"] == "1"
    assert env["HOLDFAST_TASK"] == str(key)
    assert (env["RANK"], env["WORLD_SIZE"], env["HOLDFAST_ATTEMPT"]) == ("0", "1", "1")
    assert env["HOLDFAST_WORK"].endswith("/work/job")
    other = controller.launch("/usr/bin/env", job="other")
    controller.wait_logs(other)
    assert "CUDA_VISIBLE_DEVICES=" in controller.log_of(other).decode().splitlines()


def test_preempt_is_graceful_and_acts_once(controller: FakeController, host: Host) -> None:
    key = controller.launch(
        "/bin/sh",
        "-c",
        "trap 'echo TERM; sleep 0.5; exit 7' TERM; echo up; while :; do sleep 0.05; done",
    )
    controller.wait(lambda: controller.log_of(key) == b"up\n")
    controller.preempt(key)
    facts = controller.wait_end(key)
    assert (facts.exit_code, facts.stopped, facts.trip) == (7, True, None)
    controller.wait_logs(key)
    assert controller.log_of(key) == b"up\nTERM\n"


def test_repeated_orders_do_not_spin(controller: FakeController, host: Host) -> None:
    """An order repeats in every answer while the task takes its grace; the agent must not ask in a
    tight loop."""
    key = controller.launch("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    controller.wait(lambda: controller.log_of(key) == b"up\n")
    before = len(controller.syncs)
    controller.preempt(key, grace_seconds=2.0)
    facts = controller.wait_end(key)
    assert (facts.signal, facts.stopped) == (9, True)
    assert len(controller.syncs) - before < 25


def test_hard_preempt_kills_at_once_and_operator_stop_is_on_record(
    controller: FakeController, host: Host
) -> None:
    key = controller.launch("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    controller.wait_running(key)
    controller.preempt(
        key, hard=True, operator_stop=True, cause="host_drained", reason="maintenance"
    )
    facts = controller.wait_end(key, 5)
    assert facts.signal == 9
    assert facts.stopped
    assert facts.trip is not None
    assert facts.trip.exit_code == 79
    assert "maintenance" in facts.trip.reason


def test_preempt_before_launch(controller: FakeController, host: Host, tmp_path: Path) -> None:
    controller.wait(lambda: controller.registrations)
    key = TaskKey("never", 0, 4)
    controller.preempt(key)
    facts = controller.wait_end(key)
    assert facts.stopped
    marks = tmp_path / "marks"
    controller.launch("/bin/sh", "-c", f"echo x >> {marks}", job="never", epoch=4)
    other = controller.launch("/bin/true", job="other")
    controller.wait_end(other)
    controller.wait(lambda: host.said("reported as lost"))
    assert not marks.exists()


def test_lost_task_is_killed(controller: FakeController, host: Host) -> None:
    key = controller.launch("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    controller.wait_running(key)
    controller.lose(key)
    facts = controller.wait_end(key, 5)
    assert facts.trip is not None
    assert facts.trip.exit_code == 77
    assert not facts.stopped


def test_refused_ends_are_forgotten(controller: FakeController, host: Host) -> None:
    key = controller.launch("/bin/sleep", "1")
    controller.wait_running(key)
    controller.refused.add(key)
    # Not the last sync alone: the next one, without the task, may follow before this thread looks.
    controller.wait(
        lambda: any(task.state == "ended" for sync in controller.syncs for task in sync.tasks)
    )
    controller.wait(lambda: not controller.syncs[-1].tasks)
    wait_until(lambda: not list((host.folder / "state" / "tasks").glob("[!.]*")))


def test_agent_killed_under_a_job(controller: FakeController, host: Host) -> None:
    key = controller.launch(
        "/bin/sh", "-c", "echo one; sleep 1; echo two; exit 5", secrets={"S": "two!!"}
    )
    pid = controller.wait_running(key)
    agent = host.agent_pid()
    os.kill(agent, signal.SIGKILL)
    again = host.agent_pid(but=agent)
    assert again != agent
    facts = controller.wait_end(key)
    assert facts.exit_code == 5
    controller.wait_logs(key)
    assert controller.log_of(key) == b"one\ntwo\n"
    assert len(controller.registrations) == 1
    assert controller.pids[key] == pid


def test_agent_killed_while_a_job_ends(controller: FakeController, host: Host) -> None:
    key = controller.launch("/bin/sh", "-c", "sleep 0.3; exit 6")
    controller.wait_running(key)
    for _ in range(3):
        agent = host.agent_pid()
        os.kill(agent, signal.SIGKILL)
        host.agent_pid(but=agent)
    facts = controller.wait_end(key)
    assert facts.exit_code == 6


def test_agent_frozen_is_replaced(controller: FakeController, make_host: MakeHost) -> None:
    host = make_host(frozen_seconds=4.0).start()
    key = controller.launch("/bin/sleep", "8")
    pid = controller.wait_running(key)
    agent = host.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    host.agent_pid(but=agent)
    facts = controller.wait_end(key)
    assert facts.exit_code == 0
    assert controller.pids[key] == pid


def test_guardian_killed_ends_everything(controller: FakeController, host: Host) -> None:
    key = controller.launch("/bin/sh", "-c", "setsid sleep 300 & sleep 300")
    pid = controller.wait_running(key)
    agent = host.agent_pid()
    os.kill(host.guardian_pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid) and not is_alive(agent))
    marks = (str(key), read_bound(Path(host.config.state_dir) / "mark")[0])
    wait_until(
        lambda: not [e for e in read_table().values() if e.alive and read_marks(e.pid) == marks]
    )
    assert host.process is not None
    wait_exit(host.process, 5)
    host.start()
    controller.wait(lambda: len(controller.registrations) == 2)
    first, second = controller.registrations
    assert first.incarnation != second.incarnation
    controller.wait_logs(key)  # what the dead incarnation's task wrote is shipped by the next


def test_shutdown_reports_every_end(controller: FakeController, host: Host) -> None:
    key = controller.launch(
        "/bin/sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    )
    controller.wait(lambda: controller.log_of(key) == b"up\n")
    assert host.stop() == 0
    facts = controller.ends[key]
    assert (facts.stopped, facts.stop_cause, facts.exit_code) == (True, Cause.HOST_DRAINED, 0)
    assert controller.left
    assert controller.log_of(key) == b"up\nbye\n"
    assert (key, "stdout") in controller.logs_ended


def test_idle_host_does_not_wait_for_its_long_poll_to_shut_down(
    controller: FakeController, host: Host
) -> None:
    controller.wait(lambda: controller.syncs)
    controller.interval_seconds = 2 * MAX_WAIT_SECONDS
    controller.wait(lambda: controller.syncs[-1].wait_seconds == MAX_WAIT_SECONDS)
    patience = Patience(MAX_WAIT_SECONDS - (time.monotonic() - controller.sync_times[-1]))
    assert host.stop() == 0
    assert not patience.over
    assert controller.left


def test_shutdown_without_a_controller(controller: FakeController, make_host: MakeHost) -> None:
    with serve(controller) as address:
        host = make_host(address).start()
        key = controller.launch("/bin/sleep", "300")
        pid = controller.wait_running(key)
    patience = Patience(15)
    assert host.stop() == 0
    assert not patience.over
    assert not is_alive(pid)


def test_replaced_incarnation_gives_way(controller: FakeController, host: Host) -> None:
    key = controller.launch("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    pid = controller.wait_running(key)
    with controller.changed:
        controller.registrations.append(
            msgspec.structs.replace(controller.registrations[0], incarnation="another-incarnation")
        )
    assert host.process is not None
    assert wait_exit(host.process, 20) == 0
    assert not is_alive(pid)
    assert host.said("newer incarnation")


def test_answer_lost_while_joining(controller: FakeController, make_host: MakeHost) -> None:
    """JOIN-1: the token is spent, the answer never came; the same claim gets the key again."""
    host = make_host()
    real = controller.register

    def register(request: RegisterRequest, token: str) -> object:
        answer = real(request, token)
        if len(controller.registrations) == 1:
            return 503, Problem(status=503, code="unavailable", detail="lost on the way")
        return answer

    controller.register = register  # type: ignore[method-assign]  # this test's controller loses its first answer
    host.start()
    controller.wait(lambda: controller.syncs)
    assert len({request.claim for request in controller.registrations}) == 1


def test_wrong_join_token_says_what_to_do_and_is_looked_at_again(
    controller: FakeController, make_host: MakeHost
) -> None:
    host = make_host()
    token_file = Path(host.config.join_token_file or "")
    token_file.write_bytes(b"\xff\xfe not\nof a header")
    host.start()
    wait_until(lambda: host.said("holds is no token"))
    token_file.write_text("wrong")
    wait_until(lambda: host.said("refuses this host's join token"))
    said = host.journal.read_text()
    assert said.count("holdfast token create") == 2
    assert said.count("the agent was started") == 1
    token_file.write_text(JOIN_TOKEN)
    controller.wait(lambda: controller.syncs)
    assert (Path(host.config.state_dir) / "host.json").stat().st_mode & 0o777 == 0o600


def test_order_written_but_never_launched_is_launched_when_offered_again(
    controller: FakeController, make_host: MakeHost
) -> None:
    """An agent died between writing an order down and asking its guardian."""
    host = make_host()
    folder = Path(host.config.state_dir) / "tasks" / "job.0.1"
    folder.mkdir(parents=True)
    (folder / "order.json").write_text("{}")
    host.start()
    key = controller.launch("/bin/sh", "-c", "exit 4")
    assert controller.wait_end(key).exit_code == 4


def test_a_burst_of_failures_with_long_tails_is_reported_in_parts(
    controller: FakeController, host: Host
) -> None:
    code = "for i in range(400): print('x' * 80)\nraise SystemExit(1)"
    with controller.changed:
        keys = [
            controller.launch(sys.executable, "-S", "-c", code, job=f"job{number}")
            for number in range(40)
        ]
    for key in keys:
        assert controller.wait_end(key, 30).exit_code == 1
        controller.wait_logs(key, 30)
    wait_until(lambda: not list((host.folder / "state" / "tasks").glob("[!.]*")))
    works = host.folder / "state" / "work"
    wait_until(lambda: not list(works.glob("[!.]*")))


def test_a_job_that_removes_where_all_have_their_folders_breaks_no_later_start(
    controller: FakeController, host: Host
) -> None:
    for name in ("tasks", "work"):
        key = controller.launch(
            "/bin/rm", "-rf", f"{host.config.state_dir}/{name}", job=f"rm-{name}"
        )
        assert controller.wait_end(key).exit_code == 0
        later = controller.launch("/bin/true", job=f"after-{name}")
        facts = controller.wait_end(later)
        assert (facts.exit_code, facts.start_error, facts.lost) == (0, None, None)
    assert all(not sync.faults for sync in controller.syncs)


def test_a_host_whose_folder_is_gone_ends_and_says_that_another_start_makes_it(host: Host) -> None:
    """GUARD-10."""
    agent = host.agent_pid()
    shutil.rmtree(host.config.state_dir, ignore_errors=True)
    shutil.rmtree(host.config.state_dir, ignore_errors=True)  # what was written meanwhile
    (host.folder / "config.json").unlink(missing_ok=True)
    with contextlib.suppress(ProcessLookupError):  # it may have ended for want of its folder
        os.kill(agent, signal.SIGKILL)
    assert wait_exit(host.process, 30) == EXIT_FOLDER_GONE
    assert host.said("was removed: this host ends")
