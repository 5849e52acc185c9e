"""Every Python block of the guide and the reference is run as it stands; only the numbers of hosts
and ranks are smaller."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.supervisor
from holdfast.errors import ValidationError
from holdfast.supervisor import Context, Host, Process
from tests.system.supervisor.rig import PATIENCE, Managers, local_context, python
from tests.waits import free_port, run_patiently, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
POLICIES = ROOT / "examples" / "policies"
FEWER = [("64", "2"), ("16", "2"), ("gpus=8", "gpus=0"), ("=8", "=2"), ("port=55555, ", "")]


def read_blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return [
        textwrap.dedent(block) for block in re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    ]


class Guide:
    """The blocks of the page, each known by words in it, and the names that a script has by
    then."""

    def __init__(self, ctx: Context) -> None:
        self.blocks = read_blocks("guides/supervisor.md")
        public = {name: getattr(holdfast.supervisor, name) for name in holdfast.supervisor.__all__}
        self.names: dict[str, Any] = {**public, "ctx": ctx, "subprocess": subprocess}

    def find(self, words: str) -> str:
        """The one block with these words, fewer of everything. It is struck off."""
        (block,) = [block for block in self.blocks if words in block]
        self.blocks.remove(block)
        for number, fewer in FEWER:
            block = block.replace(number, fewer)
        return block

    def run(self, words: str) -> None:
        exec(compile(self.find(words), words, "exec"), self.names)  # noqa: S102  the page is our own

    def borrow(self, policy: str, *names: str) -> None:
        """Take functions of a policy that ships, as the guide says to."""
        found: dict[str, Any] = {"__name__": policy, "__file__": str(POLICIES / policy)}
        sys.modules[policy] = type(sys)(policy)
        try:
            exec(compile((POLICIES / policy).read_text(), str(POLICIES / policy), "exec"), found)  # noqa: S102  and so are they
        finally:
            del sys.modules[policy]
        self.names |= {name: found[name] for name in names}


@pytest.fixture
def local() -> Iterator[Context]:
    made = local_context()
    yield made
    made.shutdown()


def test_every_block_of_the_guide_runs(
    local: Context, managers: Managers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Guide(local)
    names = guide.names
    monkeypatch.chdir(tmp_path)
    run_ten_lines(guide, tmp_path)

    names["hosts"] = hosts = local.request_hosts(2)
    local.start_local_managers(2)
    once = "import os, sys; name = f'been-{os.environ[\"RANK\"]}'; been = os.path.exists(name); open(name, 'w'); sys.exit(not been)"
    names["command"] = python(once)
    guide.run("all_ended_well(group)")
    assert [process.returncode().result(0) for process in names["group"]] == [0] * 4

    local.return_hosts(hosts[:1])
    hosts[0].time_connection_lost().result(PATIENCE)
    guide.run("lost = [")
    guide.run("for host in lost")
    assert names["hosts"][0] is hosts[1]
    assert hosts[0].time_cleared().done()

    names["command"] = python("print(1)")
    local.start_local_managers(1)  # for the successor above
    guide.run("run_group(ctx, hosts")
    assert names["failure"] is None

    local.start_local_managers(6)
    guide.run("choose_hosts(ctx, 64")
    assert len(names["hosts"]) == 2
    names["log"] = logging.getLogger("guide")
    ask_every_host(guide, tmp_path)

    names["group"] = local.create_process_group(names["hosts"][:1], ["true"])
    with pytest.raises(ValidationError, match="log_format"):  # this context has none
        guide.run("follow_output(")
    talk_with_processes(guide, names["hosts"][1])
    look_at_a_hang(guide, names["hosts"][0])
    guide.borrow("spare_hosts.py", "Bench")
    host = names["hosts"][0]
    names |= {"index": 0, "host": host, "bench": names["Bench"](local, 1, True)}
    guide.run("bench.exchange")
    assert host.connection_lost()
    assert names["hosts"][0].attached

    start_over_ssh(guide, managers, local)
    come_back(guide, managers)
    assert guide.blocks == []


def run_ten_lines(guide: Guide, folder: Path) -> None:
    """In a file of its own, with the line that stands in for the machines."""
    block = guide.find("on each machine").replace(
        "    hosts = ", "    ctx.start_local_managers(2)\n    hosts = "
    )
    (folder / "policy.py").write_text(block)
    (folder / "train.py").write_text("import os; print('rank', os.environ['RANK'])")
    run_patiently(
        [sys.executable, "policy.py"],
        cwd=folder,
        check=True,
        seconds=PATIENCE,
        stdout=subprocess.DEVNULL,
    )
    logs = sorted(path.name for path in (folder / "logs").iterdir())
    assert logs == [f"train{rank}.txt" for rank in range(4)]


def talk_with_processes(guide: Guide, host: Host) -> None:
    ctx, names = guide.names["ctx"], guide.names
    says = (
        "from holdfast.supervisor import get_message_queue\nqueue = get_message_queue()\nstep = 3\n"
    )
    (trains,) = ctx.create_process_group([host], python(says + guide.find('"step": step')))
    assert [trains.recv().result(PATIENCE) for _ in range(2)] == [{"step": 3}, {"section": "eval"}]
    answers = "\nassert order == {'lr': 0.1}, order\nqueue.send([queue.recv()])\nqueue.recv()"
    names["group"] = group = ctx.create_process_group(
        [host], python(guide.find("order = queue.recv()") + answers)
    )
    names["process"] = group[0]
    guide.run("process.send(")
    assert names["loss"] == {"loss": 2.5}
    assert names["answers"] == [["checkpoint"]]
    group[0].end(0)


def ask_every_host(guide: Guide, folder: Path) -> None:
    (folder / "ask.py").write_text(
        "def time_read(nothing): return 2.0\ndef slower(a, b): return max(a, b)\n"
    )
    block = guide.find("ctx.mapreduce").replace("/shared", str(folder))
    exec(compile(block, "mapreduce", "exec"), guide.names)  # noqa: S102  the page is our own
    assert (guide.names["slowest"], guide.names["missing"]) == (2.0, {})


def look_at_a_hang(guide: Guide, host: Host) -> None:
    ctx, names = guide.names["ctx"], guide.names
    block = guide.find("watch_progress(group").replace("60", "1, first_seconds=2")
    exec(compile(block, "watch", "exec"), names)  # noqa: S102  the page is our own
    names["group"] = group = ctx.create_process_group(
        [host], python("import time; time.sleep(6000)")
    )
    failure = names["watch"](group)
    assert "no progress for" in failure.sentence
    words = Path("debug-report.txt").read_text()
    assert words.startswith("rank 0 is in <module> (<string>:1)"), words
    group[0].end(0)


def start_over_ssh(guide: Guide, managers: Managers, ctx: Context) -> None:
    """An ssh that stays here: `sh -c` takes the machine's name for its own and runs the rest, as a
    shell there would."""
    guide.names |= {
        "SSH": ["sh", "-c", 'exec sh -c "$1"'],
        "HOLDFAST": f"{sys.executable} -m holdfast",
    }
    guide.run("def start_over_ssh")
    ctx.request_hosts(1)
    managers.running.append(guide.names["start_over_ssh"](ctx, "over-ssh"))
    wait_until(lambda: "over-ssh" in map(str, ctx.hosts()), PATIENCE, what="the manager over ssh")


def come_back(guide: Guide, managers: Managers) -> None:
    """The same three lines in two scripts, one after the other, with the managers of the first."""
    guide.names["command"] = ["sleep", "6000"]
    block = guide.find("state_dir=").replace(
        "Context(", f'Context(port={free_port()}, bind="127.0.0.1", '
    )
    pids: list[list[int]] = []
    for script in range(2):
        names = dict(guide.names)
        exec(compile(block, "state_dir", "exec"), names)  # noqa: S102  the page is our own
        ctx = names["ctx"]
        if script == 0:
            for _ in range(2):
                managers.start(ctx)
        found: list[Process] = list(names["groups"][0])
        pids.append([process.pid().result(PATIENCE) for process in found])
        if script == 0:
            ctx.detach()
        else:
            assert ctx.shutdown()
    assert pids[0] == pids[1]


def test_the_reference_shows_the_signature_there_is() -> None:
    (block,) = read_blocks("reference/supervisor.md")
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(Context).parameters.values()
    ]
    shown = re.sub(r"\s+", " ", block).strip().replace('"', "'")
    assert shown == f"Context{inspect.Signature(bare)}"
