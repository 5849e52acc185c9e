"""A real PyTorch DDP script, the same file and unchanged, under torchrun and under Holdfast. `make
ddp` brings torch."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.system.torchrun import run_torchrun

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "gang" / "train_ddp.py"
TORCH = Path(os.environ.get("HOLDFAST_TEST_TORCH", ROOT / ".venv-torch" / "bin" / "python"))
WORLD = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not TORCH.exists(), reason=f"no torch: {TORCH} is not there; run `make ddp`"
    ),
]


def find_loss(output: str) -> str:
    """What rank 0 said at the end."""
    found = re.search(rf"world {WORLD} steps \d+ final loss (\d\.\d+)", output)
    assert found, output
    return found[1]


@pytest.fixture(scope="module")
def loss_of_torchrun() -> str:
    """The loss the script reaches under torchrun."""
    environment = {
        k: v for k, v in clean_environment().items() if not k.startswith(("MASTER_", "OMP_"))
    }
    done = run_torchrun(
        str(TORCH), WORLD, lambda _: [str(SCRIPT)], seconds=300, environment=environment
    )
    return find_loss(done)


@pytest.mark.parametrize("hosts", [1, 2])
def test_it_reaches_the_loss_it_reaches_under_torchrun(
    cluster: Cluster, loss_of_torchrun: str, hosts: int
) -> None:
    for number in range(hosts):
        cluster.add_host(f"host{number}", cpu_slots=WORLD // hosts)
    done = cluster.cli(
        "run", "--tasks", str(WORLD), "--name", "ddp", "--", str(TORCH), str(SCRIPT), seconds=250
    )
    assert done.returncode == 0, done.stderr
    assert find_loss(done.stdout.decode()) == loss_of_torchrun
    (job,) = [job for job in cluster.client.jobs() if job.name == "ddp"]
    assert len({member.host for member in cluster.client.attempts(job.id)[0].members}) == hosts


def test_it_runs_alone(cluster: Cluster) -> None:
    """A plain job has a rendezvous with itself: a script need not know how many it is."""
    cluster.add_host("one")
    job = cluster.submit(str(TORCH), str(SCRIPT), "--steps", "20")
    cluster.until(job, "succeeded", seconds=250)
    assert "world 1 steps 20 final loss" in cluster.output(job).decode()


def test_its_ranks_see_what_torchrun_lets_them_see(cluster: Cluster) -> None:
    """Every variable that torchrun sets for its workers is there, and counts in the same way."""
    words = (
        "import json, os; print('SEEN' + json.dumps({k: v for k, v in os.environ.items() if "
        "k.split('_')[0] in ('RANK', 'WORLD', 'LOCAL', 'GROUP', 'ROLE', 'MASTER', 'TORCHELASTIC', "
        "'OMP')}), flush=True)"
    )
    program = cluster.folder / "look.py"
    program.write_text(words)
    done = run_torchrun(
        str(TORCH), 2, lambda _: [str(program)], seconds=200, environment=clean_environment()
    )
    cluster.add_host("one", cpu_slots=2)
    job = cluster.submit(str(TORCH), str(program), tasks=2)
    cluster.until(job, "succeeded", seconds=60)
    theirs, ours = (read_seen(text) for text in (done, cluster.output(job).decode()))
    # Between torchrun's agent and its own workers: the error file, the limit of restarts, the
    # store, signals, NCCL's switch.
    words = ("ERROR_FILE", "MAX_RESTARTS", "USE_AGENT_STORE", "SIGNALS_TO_HANDLE")
    private = {f"TORCHELASTIC_{word}" for word in words}
    for rank in ("0", "1"):
        missing = theirs[rank].keys() - ours[rank].keys() - private
        assert not missing, f"rank {rank} misses {missing}"
        own = ("MASTER_", "TORCHELASTIC_RUN_ID")
        for name, value in theirs[rank].items():
            if name in ours[rank] and not name.startswith(own):
                assert ours[rank][name] == value, (rank, name)


def read_seen(output: str) -> dict[str, dict[str, str]]:
    """What each rank printed of its environment."""
    found = [json.loads(text) for text in re.findall(r"SEEN(\{[^}]*\})", output)]
    return {seen["RANK"]: seen for seen in found}
