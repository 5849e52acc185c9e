"""`holdfast supervise` on one machine, under `holdfast up`: all ranks share it, and nothing of them
is left when it stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.up.up_rig import SECONDS, Rig, wait_for

pytestmark = pytest.mark.slow

POLICY = """
import sys, time
from pathlib import Path
from holdfast.supervisor import Context
with Context(port=55555) as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    group = ctx.create_process_group(hosts, [sys.executable, "-c", "print('from a rank', flush=True)"], processes_per_host=2)
    codes = [p.returncode().result(60) for p in group]
    print("codes", codes, flush=True)
    if sys.argv[1] == "hold":
        hold = ctx.create_process_group(hosts, ["sh", "-c", "setsid sleep 6000 & exec sleep 6000"])
        Path("held").write_text(" ".join(str(p.pid().result(60)) for p in hold))
        time.sleep(6000)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def up(tmp_path: Path, migrated_cluster: Path) -> Iterator[Rig]:
    (tmp_path / "policy.py").write_text(POLICY)
    rig = Rig(tmp_path, cluster=migrated_cluster)
    rig.start()
    yield rig
    rig.close()


def test_a_policy_on_one_machine(up: Rig) -> None:
    done = up.run("supervise", "-f", "policy.py", "--hosts", "2", "--", "7", seconds=3 * SECONDS)
    assert (done.returncode, done.stdout.count(b"from a rank")) == (7, 2), (
        done.stderr
    )  # rank 0's host's two
    assert b"codes [0, 0, 0, 0]" in done.stdout
    held = up.run("supervise", "policy.py", "--hosts", "2", "--", "hold")
    assert held.returncode == 0, held.stderr
    wait_for("the processes", (up.folder / "held").exists, 2 * SECONDS)
    pids = [int(word) for word in (up.folder / "held").read_text().split()]
    assert set(pids) <= set(up.tree())
    runaways = [pid for pid in up.tree() if is_sleep(pid)]
    assert len(runaways) >= len(pids)
    assert up.stop() == 0
    assert not [pid for pid in {*pids, *runaways} if Path(f"/proc/{pid}").exists()]


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False
