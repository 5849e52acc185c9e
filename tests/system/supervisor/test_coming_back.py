"""What a script that comes back asks of hosts that are not there yet: those its predecessor never
met, and those on their way back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor import Context, Process
from holdfast.supervisor.rosters.state import STATE_FILE, SavedRun
from holdfast.supervisor.script import open_run
from holdfast.wire.bus.messages import MachineFacts
from tests.system.supervisor.rig import ECHO, PATIENCE, Managers, attach, local_context, python
from tests.waits import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def scripts(managers: Managers, tmp_path: Path) -> Iterator[Any]:
    """Makes one script after another with the same state folder; the last one ends everything,
    before the managers are closed."""
    made: list[Context] = []

    def begin() -> Context:
        if made:
            made[-1].detach()
        made.append(local_context(state_dir=tmp_path / "state", orphan_grace=300))
        return made[-1]

    yield begin
    made[-1].shutdown()


def test_a_group_starts_on_a_host_that_comes_only_to_the_next_script(
    scripts: Any, managers: Managers, tmp_path: Path
) -> None:
    """Its order waited with the handle, and was lost with the script that gave it. It is given
    once."""
    first = scripts()
    (here,), _ = attach(first, managers, 1)
    (there,) = first.request_hosts(1)
    code = (
        "import os, sys; open(sys.argv[1] + os.environ['RANK'], 'a').write('ran\\n'); sys.exit(7)"
    )
    group = first.create_process_group([here, there], python(code, str(tmp_path / "rank")))
    assert group[0].returncode().result(PATIENCE) == 7

    second = scripts()
    (group,) = second.groups()
    assert not group[1].host.attached
    managers.start(second, name="m1")
    assert [process.returncode().result(PATIENCE) for process in group] == [7, 7]
    assert group[1].host.hostname().result(0) == "m1"
    after = second.create_process_group(
        group.hosts, ["true"]
    )  # ordered: everything that was launched before has begun
    assert [process.returncode().result(PATIENCE) for process in after] == [0, 0]
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["ran\n"] * 2


# A manager that its warden never takes for frozen, because a busy machine starts a fresh one slowly.
NEVER_FROZEN = """
import sys; import holdfast.supervisor.host.warden as w
w.fork_warden.__defaults__ = (float("inf"),)
from holdfast.cli.main import main; sys.argv[0] = 'holdfast'; main()
"""


def test_a_rank_that_runs_is_not_started_again_on_whoever_comes_first(
    scripts: Any, managers: Managers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROSTER-5: the script was killed before the state told that its host was attached, and a fresh
    manager is quicker."""
    monkeypatch.setattr(open_run, "REATTACH_SECONDS", 10 * PATIENCE)
    first = scripts()
    command = [*python(NEVER_FROZEN), *first.manager_command()[3:], "--name", "m0"]
    manager = managers.start_command(command)
    hosts = first.request_hosts(1)
    pid = first.create_process_group(hosts, ["sleep", "6000"])[0].pid().result(PATIENCE)
    os.kill(manager.pid, signal.SIGSTOP)
    first.detach()
    file = tmp_path / "state" / STATE_FILE
    state = json.loads(file.read_text())
    state["hosts"][0] |= {"identity": "", "facts": None}
    file.write_text(json.dumps(state))

    second = scripts()
    managers.start(second, name="m1")
    wait_until(lambda: second.status().managers_idle, PATIENCE, what="the fresh one")
    os.kill(manager.pid, signal.SIGCONT)
    ((process,),) = second.groups()
    assert process.pid().result(PATIENCE) == pid
    assert process.host.hostname().result(0) == "m0"


def test_what_is_asked_before_the_hosts_are_back_reaches_them(
    scripts: Any, managers: Managers
) -> None:
    first = scripts()
    hosts, _ = attach(first, managers, 1)
    talker = first.create_process_group(hosts, python(ECHO))
    sleeper = first.create_process_group(hosts, ["sleep", "6000"])
    assert talker[0].recv().result(PATIENCE) == "ready"
    assert sleeper[0].pid().result(PATIENCE) > 0

    second = scripts()
    talker, sleeper = second.groups()
    assert not second.hosts()[0].attached
    asked = talker.signal(0)
    talker.broadcast("to all")
    talker[0].send("to one")
    fresh = second.create_process_group(second.hosts(), ["sh", "-c", "exit 3"])
    (ended,) = sleeper.end(PATIENCE)

    assert asked.result(PATIENCE) == 1
    answers = [
        talker[0].recv(lambda message: message != "ready").result(PATIENCE) for _ in range(2)
    ]
    assert answers == ["to all", "to one"]
    assert fresh[0].returncode().result(PATIENCE) == 3
    assert ended.result(PATIENCE) == -signal.SIGTERM


def test_the_state_never_tells_of_an_end_on_a_host_that_waits(scripts: Any) -> None:
    """Else what has run would be launched anew. The manager comes, and the process ends, while the
    file is being made."""
    ctx = scripts()
    hosts = ctx.request_hosts(1)
    (process,) = group = ctx.create_process_group(hosts, ["true"])

    class Meanwhile(list[Process]):
        """Looked at, and by then it has come to its end."""

        def __iter__(self) -> Iterator[Process]:
            hosts[0].revive(b"\1" * 16, MachineFacts(hostname="m0"), None)
            process.set_returncode(0)
            return super().__iter__()

    group.processes = Meanwhile(group.processes)
    state = SavedRun(run="", keys=ctx._run.state.keys, port=ctx.port)
    state.update(ctx._run.roster, ctx._run.crew)
    assert state.groups[0].returncodes == {0: 0}
    assert state.hosts[0].identity
