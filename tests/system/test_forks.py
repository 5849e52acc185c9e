"""What is forked for a test is like what is started, and does not outlive the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.config import MARK_FILE
from holdfast.process import table
from holdfast.process.files import read_bound
from tests.system.cluster import Cluster, Host, clean_environment, read_words
from tests.system.forks import Origin
from tests.waits import is_alive, wait_exit, wait_until

pytestmark = pytest.mark.slow

NOWHERE = {"url": "http://127.0.0.1:9", "queues": ["default"], "join_token_file": "/dev/null"}
# Asks for a host, says its pid and the one's that forked it, and never ends.
ASKER = """
import json, os, signal, sys, time
from tests.system.forks import find_origin
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
host = find_origin("host").start([sys.argv[1]], dict(os.environ), 2)
print(json.dumps([host.pid, int(open(f"/proc/{host.pid}/stat").read().rpartition(")")[2].split()[1])]))
sys.stdout.flush()
time.sleep(600)
"""


def test_a_forked_guardian_and_its_agent_show_what_started_ones_do(tmp_path: Path) -> None:
    options = {**NOWHERE, "state_dir": str(tmp_path / "host"), "name": "host"}
    host = Host(tmp_path, "host", options, environment={"COLOUR": "green"}).start()
    try:
        agent = wait_until(host.agent_pid, what="an agent")
        for pid in (host.guardian.pid, agent):
            assert os.getsid(pid) == os.getpgid(pid) == pid
            assert os.readlink(f"/proc/{pid}/cwd") == os.getcwd()
            assert b"COLOUR=green" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert table.read_marks(host.guardian.pid) == (None, None)
        mark = read_bound(host.state / MARK_FILE)[0]
        assert table.read_marks(agent) == ("agent-1", mark)
        assert b"HOLDFAST_INCARNATION" in Path(f"/proc/{agent}/environ").read_bytes()
        assert read_words(agent)[1:4] == [b"-P", b"-m", b"holdfast.agent"]
        host.guardian.kill()
        assert wait_exit(host.guardian, 15) == -signal.SIGKILL
        wait_until(lambda: not is_alive(agent), what="the agent to follow its guardian")
    finally:
        assert host.finish_close(15) == []


def test_the_worker_of_a_forked_agent_is_forked_too_and_answers_it(cluster: Cluster) -> None:
    host = cluster.add_host("host", environment={"COLOUR": "green"})
    agent = host.agent_pid()
    worker = wait_until(lambda: find_worker(agent), what="the worker that asks drivers")
    assert os.getsid(worker) == agent
    assert b"COLOUR=green" in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    said = host.log()
    assert "GPU probe" not in said, said
    assert "could not be asked" not in said, said
    host.kill_agent()
    wait_until(lambda: not is_alive(worker), what="the worker to follow its agent")


def find_worker(agent: int) -> int:
    """The pid of the agent's worker, which is a fork of the agent: its heap is where the agent's
    is. 0 while there is none."""
    for pid in table.read_children(agent) or []:
        if b"holdfast.agent.probes.worker" in read_words(pid):
            assert read_heap(pid) == read_heap(agent)
            return pid
    return 0


def read_heap(pid: int) -> str:
    """Where a process's heap begins, which chance decides at each start of a program."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next(line.partition("-")[0] for line in maps if line.endswith("[heap]"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_was_forked_ends_with_the_tests(tmp_path: Path, number: int) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({**NOWHERE, "state_dir": str(tmp_path / "host")}))
    asker = subprocess.Popen(
        [sys.executable, "-c", ASKER, str(options)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
        env=clean_environment(),
    )
    with asker, asker.stdout as said:  # type: ignore[union-attr]  # it is a pipe
        try:
            guardian, origin = json.loads(said.readline())
            (agent,) = wait_until(lambda: table.read_children(guardian), what="an agent")
            os.killpg(asker.pid, number)
            wait_exit(asker, 15)
            for pid in (origin, guardian, agent):
                wait_until(lambda pid=pid: not is_alive(pid), what=f"{pid} to end")
        finally:
            asker.kill()


def test_what_only_a_started_program_reads_is_refused() -> None:
    with pytest.raises(AssertionError, match="only a real start reads it"):
        Origin("rig").start(["{}"], {**os.environ, "LD_PRELOAD": "/lib/x.so"}, 2)
