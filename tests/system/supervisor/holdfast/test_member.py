"""Ranks of a supervised job, started as their agent starts them: what they read, what they pass on,
and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.run_seed import SEED_VARIABLE
from holdfast.errors import ValidationError
from holdfast.supervisor.member.first_rank import LOG_FILE
from holdfast.supervisor.member.member import TERM_MARGIN_SECONDS, clean_environment, read_member
from tests.system.supervisor.rig import PATIENCE, find_descendants, wait_gone
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow

SEED = "5eed" * 16
PREAMBLE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from holdfast.supervisor import Context, HostLost
ME = Path(sys.argv[0]).parent
def tell(name, value):
    (ME / f"{name}.part").write_text(json.dumps(value))
    (ME / f"{name}.part").rename(ME / name)
SHOW = [sys.executable, "-c", "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))"]
"""


def words(port: int = 1, **more: str) -> dict[str, str]:
    """What an agent says to a rank."""
    return {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HOLDFAST_JOB_ID": "j1",
        "HOLDFAST_ATTEMPT": "1",
        "HOLDFAST_RANK": "0",
        "HOLDFAST_TASK": "j1:0:1",
        "HOLDFAST_HOST_NAME": "box",
        "HOLDFAST_HOST_LABELS": '{"zone": "a"}',
        "HOLDFAST_GRACE": "15",
        SEED_VARIABLE: SEED,
        "TORCHELASTIC_RUN_ID": "j1",
        **more,
    }


# ---- what is read and passed on


def test_what_a_rank_reads(tmp_path: Path) -> None:
    member = read_member(words(7))
    assert (member.rank, member.hosts, member.url, member.machine) == (
        0,
        2,
        "tcp://127.0.0.1:7",
        "box",
    )
    assert (member.labels, member.term_grace_seconds) == ({"zone": "a"}, 13.0)
    assert (read_member(words(7, MASTER_ADDR="fd00::7")).url, member.own_address) == (
        "tcp://[::1]:7",
        "127.0.0.1",
    )
    peers = [
        {"rank": 0, "host": "a", "address": "10.0.0.7"},
        {"rank": 1, "host": "b", "address": "10.0.0.8"},
    ]
    (tmp_path / "peers").write_text(json.dumps(peers))
    for more in (
        {"HOLDFAST_PEERS": json.dumps(peers)},
        {"HOLDFAST_PEERS_FILE": str(tmp_path / "peers")},
    ):
        second = read_member(words(7, RANK="1", MASTER_ADDR="10.0.0.7", **more))
        assert (second.url, second.own_address) == ("tcp://10.0.0.7:7", "10.0.0.8")
        first = read_member(words(7, MASTER_ADDR="10.0.0.7", **more))
        assert (first.url, first.own_address) == ("tcp://127.0.0.1:7", "10.0.0.7")
    assert read_member(words(7, RANK="1", MASTER_ADDR="fd00::7")).url == "tcp://[fd00::7]:7"
    alone = {
        name: value
        for name, value in words().items()
        if "HOST_" not in name and name != "HOLDFAST_GRACE"
    }
    assert (read_member(alone).machine, read_member(alone).term_grace_seconds) == (None, None)


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "HOLDFAST_ATTEMPT", SEED_VARIABLE])
def test_what_is_missing_or_broken_is_said_without_the_seed(name: str) -> None:
    lacking = {key: value for key, value in words().items() if key != name}
    with pytest.raises(ValidationError, match=name):
        read_member(lacking)
    with pytest.raises(ValidationError) as caught:
        read_member({**lacking, name: f"{SEED}x"})
    assert SEED not in str(caught.value)


@given(st.floats(0, 86_400))
def test_processes_have_nearly_all_of_the_grace(grace: float) -> None:
    found = read_member(words(HOLDFAST_GRACE=str(grace))).term_grace_seconds
    assert found is not None
    assert grace / 2 <= found <= grace
    assert grace - found <= TERM_MARGIN_SECONDS


@pytest.mark.parametrize(
    ("visible", "gpus", "local", "seen"),
    [("4,5,6", 1, "1", "5"), ("4,5", 2, "1", "4,5"), ("3", 1, "0", "3"), ("", 0, "1", ""), ("4,5", 0, "1", "4,5"), ("4,5", 1, "9", "4,5")],
)  # fmt: skip
def test_a_rank_offers_its_own_device_alone(visible: str, gpus: int, local: str, seen: str) -> None:
    kept = clean_environment(words(CUDA_VISIBLE_DEVICES=visible, LOCAL_RANK=local), gpus)
    assert kept["CUDA_VISIBLE_DEVICES"] == seen


# ---- real ranks

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ranks of one job: `start(code)` is rank 0 with a script, `start(None, rank=1)`
    another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "work").mkdir()
    begun: list[subprocess.Popen[bytes]] = []

    def begin(
        code: str | None, *, rank: int = 0, command: list[str] | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        script = tmp_path / "policy.py"
        if code is not None:
            script.write_text(PREAMBLE + code)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
        }
        env = {
            **inherited,
            **words(port, RANK=str(rank), HOLDFAST_WORK=str(tmp_path / "work"), **more),
        }
        line = [sys.executable, "-P", "-m", "holdfast.supervisor.member", "0", ""]
        line += command or [sys.executable, str(script)]
        with open(tmp_path / f"rank{rank}.err", "ab") as errors:
            begun.append(subprocess.Popen(line, env=env, stderr=errors, start_new_session=True))
        return begun[-1]

    yield begin
    for process in begun:
        below = find_descendants(process.pid) if process.poll() is None else []
        process.kill()
        process.wait()
        for pid in below:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def read(path: Path) -> Any:
    """What a script told, once it did."""
    wait_until(
        path.exists,
        PATIENCE,
        what=f"{path.name}; {(path.parent / 'rank0.err').read_text()[-2000:]}",
    )
    return json.loads(path.read_text())


def test_two_ranks_meet_and_the_seed_goes_no_further(start: Start, tmp_path: Path) -> None:
    first = start(
        """
tell("script", dict(os.environ))
with Context(port=55555) as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts, labels={"zone": "a"})
    names = [host.hostname().result(60) for host in hosts]
    groups = [ctx.create_process_group([h], [*SHOW, str(ME / f"env{i}")]) for i, h in enumerate(hosts)]
    codes = [p.returncode().result(60) for g in groups for p in g]
    tell("met", [names, codes, ctx.address, ctx.key_file.read_text()])
sys.exit(3)
"""
    )
    other = start(None, rank=1, HOLDFAST_HOST_NAME="other", HOLDFAST_RANK="1")
    names, codes, address, key = read(tmp_path / "met")
    assert (sorted(names), codes) == (["box", "other"], [0, 0])
    assert (first.wait(PATIENCE), other.wait(PATIENCE)) == (3, 0)
    secrets = [SEED, json.loads(key)["client_secret"]]
    for name in ("script", "env0", "env1"):
        seen = json.loads((tmp_path / name).read_text())
        assert not [
            variable
            for variable, value in seen.items()
            if any(secret in value for secret in secrets)
        ], name
        assert not {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} & seen.keys(), name
        assert seen["HOLDFAST_TASK"] == "j1:0:1"  # beats and checkpoints go by it
        assert ("RANK" in seen) == (name != "script")
    assert address.startswith("tcp://127.0.0.1:")
    assert [path.name for path in (tmp_path / "work").iterdir()] == [
        LOG_FILE
    ]  # the file with the keys is gone


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("", 0),
        ("sys.exit(41)", 41),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("raise OSError('no')", 1),
    ],
)
def test_the_end_of_the_script_is_the_ranks(start: Start, code: str, found: int) -> None:
    rank = start(code)
    assert rank.wait(PATIENCE) == found


def test_a_script_that_cannot_be_started(start: Start, tmp_path: Path) -> None:
    rank = start(None, command=["/no/such/python", "policy.py"])
    assert rank.wait(PATIENCE) == 127
    assert "/no/such/python" in (tmp_path / "rank0.err").read_text()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("hosts = ctx.replace_hosts([host])", "ended with 72 (it was replaced)"),
        (
            "os.kill(host.peer.pid, signal.SIGKILL); hosts = ctx.request_hosts(1)",
            "ended with -9 (signal 9)",
        ),
    ],
    ids=["replaced", "killed"],
)
def test_the_scripts_own_host_comes_back(
    start: Start, tmp_path: Path, what: str, said: str
) -> None:
    rank = start(f"""
with Context() as ctx:
    (host,) = ctx.request_hosts(1)
    host.hostname().result(60)
    {what}
    tell("again", hosts[0].hostname().result(60))
    group = ctx.create_process_group(hosts, ["true"])
    sys.exit(group[0].returncode().result(60))
""")
    assert read(tmp_path / "again") == "box"
    assert rank.wait(PATIENCE) == 0
    assert said in (tmp_path / "rank0.err").read_text()


def test_a_host_that_was_given_back_does_not_come_again(start: Start, tmp_path: Path) -> None:
    rank = start("""
from holdfast.process import table
def managers():
    found = [pid for pid in table.read_children(os.getppid()) if pid != os.getpid()]
    return [pid for pid in found if table.read_entry(pid) and table.read_entry(pid).alive]
with Context() as ctx:
    (host,) = ctx.request_hosts(1)
    host.hostname().result(60)
    before = managers()
    ctx.return_hosts([host])
    while managers():
        time.sleep(0.02)
    (other,) = ctx.request_hosts(1)
    try:
        other.hostname().result(2.5)  # it would have been started again after 1 s
    except TimeoutError:
        tell("none", len(before))
""")
    assert rank.wait(PATIENCE) == 0
    assert read(tmp_path / "none") == 1
    assert "another is started" not in (tmp_path / "rank0.err").read_text()


def test_a_script_that_falls_dead_ends_before_the_others_notice(
    start: Start, tmp_path: Path
) -> None:
    """FIRST-1, with a process that does not mind TERM. The others' limit is three times as long
    here, for a loaded machine."""
    first = start("""
ctx = Context(heartbeat=3.0)
hosts = ctx.request_hosts(2)
stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
group = ctx.create_process_group([h for h in hosts if h.hostname().result(60)], stubborn)
tell("pids", [p.pid().result(60) for p in group])
os._exit(5)
""")
    other = start(None, rank=1, HOLDFAST_HOST_NAME="other")
    pids = read(tmp_path / "pids")
    assert first.wait(PATIENCE) == 5
    assert other.poll() is None
    assert other.wait(PATIENCE) == 70
    wait_gone(pids, "the processes")


def test_a_drain_kills_who_does_not_mind(start: Start, tmp_path: Path) -> None:
    rank = start(
        """
ctx = Context()
(host,) = ctx.request_hosts(1)
group = ctx.create_process_group([host], ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
tell("pid", group[0].pid().result(60))
group[0].returncode().result()
""",
        HOLDFAST_GRACE="3",
    )
    pid = read(tmp_path / "pid")
    for member in [rank.pid, *find_descendants(rank.pid)]:
        with suppress(ProcessLookupError):  # a `sleep 0.1` that was over meanwhile
            os.kill(member, signal.SIGTERM)
    assert rank.wait(PATIENCE) == 128 + signal.SIGTERM
    wait_gone([pid], "it")


def test_a_drain_leaves_processes_their_grace(start: Start, tmp_path: Path) -> None:
    """FIRST-3: TERM comes to every process at once, as the guardian sends it; the host's ranks save
    for longer than 5 s."""
    saver = """
import os, signal, sys, time
def save(*_):
    save.times += 1
    if save.times > 1: return
    time.sleep(6.5)
    open(sys.argv[1], "w").write(f"saved, told {save.times} times")
    sys.exit(0)
save.times = 0
signal.signal(signal.SIGTERM, save)
open(sys.argv[2] + ".new", "w").write("1")
os.rename(sys.argv[2] + ".new", sys.argv[2])  # whole once it is there
while True: time.sleep(0.1)
"""
    rank = start(f"""
ctx = Context()
(host,) = ctx.request_hosts(1)
group = ctx.create_process_group([host], [sys.executable, "-c", {saver!r}, str(ME / "saved"), str(ME / "ready")])
group[0].returncode().result()
""")
    read(tmp_path / "ready")
    members = [rank.pid, *find_descendants(rank.pid)]
    for pid in members:
        os.kill(pid, signal.SIGTERM)
    assert rank.wait(PATIENCE) == 128 + signal.SIGTERM
    assert (
        tmp_path / "saved"
    ).read_text() == "saved, told 1 times"  # many a program takes a second TERM for haste
    wait_gone(members, "all of it")


def test_nothing_outlives_the_parent_where_nobody_clears_its_tree(
    start: Start, tmp_path: Path
) -> None:
    """FIRST-4: kill -9 of the parent alone, with no guardian above it."""
    rank = start("""
with Context() as ctx:
    (host,) = ctx.request_hosts(1)
    group = ctx.create_process_group([host], ["sleep", "6000"])
    tell("pid", group[0].pid().result(60))
    group[0].returncode().result()
""")
    pid = read(tmp_path / "pid")
    below = find_descendants(rank.pid)
    assert len({*below, pid}) >= 4  # the script, the host manager, its warden, the process
    rank.kill()
    wait_gone([*below, pid], "all of it")
