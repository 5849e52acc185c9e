"""Host managers that `srun` started, and the library over them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.supervisor import Context
from holdfast.supervisor.line.keys import KEY_VARIABLE
from tests.system.slurm.cluster import Cluster, wait_for
from tests.system.supervisor.rig import local_context, python, start_family
from tests.waits import is_alive, wait_exit

PATIENCE = 60.0
REPORT = """
import json, os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURMD_NODENAME"]
print(json.dumps({name: os.environ[name] for name in names}))
print("HOLDFAST_SUPERVISOR_KEY" in os.environ)
sys.exit(10 + int(os.environ["RANK"]))
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    made = local_context(log_format=str(tmp_path / "{name}.txt"), key_file=tmp_path / "manager-key")
    yield made
    made.shutdown()


def start_managers(
    slurm: Cluster, ctx: Context, log: Path, nodes: int, **env: str
) -> subprocess.Popen[bytes]:
    """With the key from the environment where `env` has it."""
    words = [
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
    ]
    command = ctx.manager_command()
    if KEY_VARIABLE in env:
        del command[command.index("--key-file") :]
    return slurm.start_srun(log, *words, "--job-name=managers", *command, **env)


def find_job(slurm: Cluster) -> str:
    return slurm.ask("squeue", "--noheader", "--name=managers", "--format=%A").strip()


def test_a_step_of_managers_runs_a_group(slurm: Cluster, ctx: Context, tmp_path: Path) -> None:
    log = tmp_path / "srun.txt"
    hosts = ctx.request_hosts(3)
    srun = start_managers(slurm, ctx, log, 3, **{KEY_VARIABLE: ctx.key_file.read_text()})
    assert {host.hostname().result(PATIENCE) for host in hosts} == {"n1", "n2", "n3"}, (
        "Slurm's names, not the box's"
    )
    group = ctx.create_process_group(hosts, python(REPORT), processes_per_host=2, name="r{rank}")
    assert [process.returncode().result(PATIENCE) for process in group] == [10, 11, 12, 13, 14, 15]
    for process in group:
        told, key = (tmp_path / f"r{process.rank}.txt").read_text().splitlines()
        assert json.loads(told) == {
            "RANK": str(process.rank),
            "WORLD_SIZE": "6",
            "LOCAL_RANK": str(process.rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(process.rank // 2),
            "SLURMD_NODENAME": process.host.hostname().result(),
        }
        assert key == "False", "no rank needs the key"
    job = find_job(slurm)
    assert ctx.shutdown()
    assert wait_exit(srun, PATIENCE) == 0, log.read_text()
    assert slurm.wait_job(job, "COMPLETED")["ExitCode"] == "0:0"


def test_a_replaced_host_is_a_failed_task_and_its_neighbours_go_on(
    slurm: Cluster, ctx: Context, tmp_path: Path
) -> None:
    log = tmp_path / "srun.txt"
    hosts = ctx.request_hosts(2)
    srun = start_managers(slurm, ctx, log, 3)
    names = [host.hostname().result(PATIENCE) for host in hosts]
    (stays,) = ctx.create_process_group(hosts[:1], ["sleep", "6000"])
    pid = stays.pid().result(PATIENCE)
    (fresh,) = ctx.replace_hosts(hosts[1:])
    assert fresh.hostname().result(PATIENCE) not in names, "the third was waiting"
    wait_for(lambda: "72" in log.read_text(), "srun to tell of it")
    assert not stays.returncode().done()
    assert stays.pid().result() == pid
    job = find_job(slurm)
    assert ctx.shutdown()
    assert wait_exit(srun, PATIENCE) == 72, log.read_text()
    assert slurm.wait_job(job, "FAILED")["ExitCode"] == "72:0"


def test_scancel_ends_the_trees_and_the_script_learns_it(
    slurm: Cluster, ctx: Context, tmp_path: Path
) -> None:
    log = tmp_path / "srun.txt"
    hosts = ctx.request_hosts(2)
    srun = start_managers(slurm, ctx, log, 2)
    families = [start_family(ctx, host, tmp_path) for host in hosts]
    pids = {pid for _, members in families for pid in members}
    slurm.ask("scancel", find_job(slurm))
    for host, (process, _) in zip(hosts, families, strict=True):
        host.time_connection_lost().result(PATIENCE)
        assert host.lost_reason == "the host manager got SIGTERM"
        assert process.returncode().result(PATIENCE) == -signal.SIGTERM, (
            "told before the manager went"
        )
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "the end of both trees")
    assert wait_exit(srun, PATIENCE) != 0
    # One member of each tree ignores TERM: the managers killed it and then went, before Slurm's own
    # KILL came.
    assert log.read_text().count("Exited with exit code 143") == 2, log.read_text()
