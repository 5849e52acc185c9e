"""Real DDP over gloo, a rank on each host: the rank whose CPU quota was cut is named; a healthy run names
none (`make slow-ranks`); and a rank that computes wrongly has its host set aside (`make ddp`).

`make slow-ranks` wants two processors on which nothing else runs. A rank that has to wait for one is slow by
itself, and is named, as it should be: with twenty other processes on two processors, ranks waited for 6 to 9 % of
the time in spite of their weight, and a healthy one was named by processor time in two of three runs, by the waits
that the job tells in none of three. With ten others none was named in three runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.core.records import EventRecord
from tests.system.cluster import Cluster
from tests.system.gangs.test_ddp import ROOT, TORCH
from tests.waits import wait_until

SCRIPT = Path(__file__).parent / "paced_ddp.py"
FINDINGS = ("task.straggler", "job.corrupt")
GROUPS = Path("/sys/fs/cgroup")
QUOTA = 0.25
"""The share of a processor that each rank has. The kernel counts in ticks of 4 ms, so a rank is stopped
for 12 ms and more at once: a twentieth of a step. With a smaller share it is stopped for longer, and
then healthy ranks differ by as much as a slow one does."""
CUT = 0.8
PERIOD = 10_000  # µs

HEALTHY_STEPS = 100

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not TORCH.exists(), reason=f"no torch: {TORCH} is not there; run `make ddp`"
    ),
]


def set_quota(folder: Path, share: float) -> None:
    if (folder / "cpu.cfs_period_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD)))
    else:
        (folder / "cpu.max").write_text(f"{int(share * PERIOD)} {PERIOD}")


@contextmanager
def limit(pid: int, processor: int) -> Iterator[Path]:
    """Let the process have `QUOTA` of one processor only, before all others that want it, by a
    control group of its own."""
    old = (GROUPS / "cpu" / "cpu.cfs_period_us").exists()
    folder = (GROUPS / "cpu" if old else GROUPS) / f"holdfast-test-{pid}"
    try:
        folder.mkdir()
        set_quota(folder, QUOTA)
        name, most = ("cpu.shares", 262_144) if old else ("cpu.weight", 10_000)
        (folder / name).write_text(str(most))  # what else this machine does takes none of it
        (folder / "cgroup.procs").write_text(str(pid))
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {processor})
    except OSError as error:
        pytest.skip(f"no CPU quota can be set here: {error}")
    try:
        yield folder
    finally:
        for held in (folder / "cgroup.procs").read_text().split():
            ((folder.parent) / "cgroup.procs").write_text(held)
        folder.rmdir()


def start(cluster: Cluster, hosts: int, *words: str) -> str:
    for number in range(hosts):
        cluster.add_host(f"host{number}", cpu_slots=1)
    cluster.client.set_config({"sync_interval_seconds": 1.0})
    files = {name.upper(): str(cluster.folder / name) for name in ("wrong", "go")}
    environment = {"PYTHONPATH": str(ROOT / "src"), **files}
    return cluster.submit(
        str(TORCH), str(SCRIPT), *words, tasks=2, env=environment, name="paced", grace_seconds=1
    )


def read_step(cluster: Cluster, job: str) -> int:
    found = cluster.client.job(job)
    assert not found.state.terminal, cluster.tell(job)
    return found.step or 0


def find(cluster: Cluster, job: str) -> list[EventRecord]:
    return [e for e in cluster.client.events(job_id=job) if e.kind in FINDINGS]


def find_slow(cluster: Cluster, job: str, rank: int) -> list[EventRecord]:
    return [event for event in find(cluster, job) if event.rank == rank]


@pytest.mark.parametrize("words", [["waits"], []], ids=["told by the job", "by processor time"])
def test_a_rank_whose_quota_was_cut_by_a_fifth_is_named(cluster: Cluster, words: list[str]) -> None:
    job = start(cluster, 2, "100000", *words)
    cluster.until(job, "running", seconds=60)
    ready = [cluster.folder / f"go{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in ready), 120, what="the ranks to be ready")
    with ExitStack() as stack:
        tasks = sorted(cluster.client.tasks(job), key=lambda task: task.rank)
        pids = [cluster.hosts[task.host_name or ""].task_pids(job)[0] for task in tasks]
        cpus = sorted(os.sched_getaffinity(0))[:2]
        _, slow = [stack.enter_context(limit(*one)) for one in zip(pids, cpus, strict=True)]
        (cluster.folder / "go").touch()
        wait_until(lambda: read_step(cluster, job) >= HEALTHY_STEPS, 300, what="the ranks to step")
        assert [event.message for event in find(cluster, job)] == []
        set_quota(slow, CUT * QUOTA)
        begun = read_step(cluster, job)

        def find_cut() -> list[EventRecord]:
            return [e for e in find_slow(cluster, job, 1) if e.data["at_step"] > begun]

        wait_until(find_cut, 240, what="the slow rank to be named")
    event = find_cut()[-1]
    print(f"cut at about step {begun}, named by step {event.data['at_step']}: {event.message}")
    assert event.data["measure"] == ("own" if words else "cpu")
    assert event.data["ratio"] > 1.12
    assert "takes" in cluster.cli("show", job).stdout.decode()
    cluster.client.cancel(job, hard=True)


def test_a_rank_that_computes_wrongly_has_its_host_set_aside(cluster: Cluster) -> None:
    """With two ranks there is no majority, and the step is done again by the next attempt."""
    job = start(cluster, 3, "400", "checksums")
    (cluster.folder / "go").touch()
    cluster.until(job, "running", seconds=60)
    wait_until(lambda: read_step(cluster, job) >= 10, 120, what="the ranks to step")
    wrong = cluster.folder / "wrong"
    wrong.write_text(f"1 {read_step(cluster, job) + 20}")
    attempt = cluster.until_attempt(job, 1, "ended", seconds=120)
    assert attempt.cause == "silent_corruption"
    os.unlink(wrong)
    wait_until(
        lambda: [h for h in cluster.client.hosts() if h.state == "quarantined"],
        180,
        what="the host of the wrong rank to be set aside",
    )
    cluster.client.cancel(job, hard=True)
