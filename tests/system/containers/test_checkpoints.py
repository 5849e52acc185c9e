"""What a user in a container does to go on where the last attempt was: the job library, inside an
image, against the whole of Holdfast."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.system.checkpoints.conftest import blobs_of, write_script
from tests.system.cluster import Cluster
from tests.system.containers import python_image
from tests.system.containers.engines import Engine
from tests.waits import wait_until

pytestmark = pytest.mark.heavy
SECONDS = 60.0


@pytest.fixture(scope="module")
def layer() -> bytes:
    return python_image.make_layer()


@pytest.fixture(scope="module")
def python(engine: Engine, layer: bytes) -> Iterator[str]:
    """An image that has Python as its entrypoint, and `holdfast` in it."""
    engine.import_image(python_image.IMAGE, layer, python_image.find_python())
    yield python_image.IMAGE
    engine.forget(python_image.IMAGE)


def make_project(cluster: Cluster) -> Path:
    """A working folder that has nothing of the hosts' own state below it: it is mounted, and would
    bring that inside."""
    folder = cluster.folder / "project"
    folder.mkdir(exist_ok=True)
    return folder


SAVES_AT_THE_DRAIN = """
    import os, time
    import holdfast

    saved = holdfast.checkpoint.load()
    step = holdfast.checkpoint.step() or 0
    holdfast.on_drain(lambda: holdfast.checkpoint.save(b"of step %d" % (step + 10), step=step + 10))
    print("began at", step, "with", saved, "in", os.path.dirname(holdfast.__file__), flush=True)
    holdfast.beat(step)
    while step < 10:
        time.sleep(0.05)
    """


@pytest.mark.parametrize("form", ["program", "shell"])
def test_a_container_saves_at_the_drain_and_the_next_goes_on_elsewhere(
    cluster: Cluster, engine: Engine, python: str, form: str
) -> None:
    """On another host, in another container. As the main program, with the library in the image;
    and with the library lent to it, below a shell that has another line to run (TELL-1)."""
    queue = cluster.set_queue(f"drain-{form}")
    before, after = f"before-{form}", f"after-{form}"
    cluster.add_host(before, queues=[queue], environment=engine.environment)
    project = make_project(cluster)
    script = write_script(project, f"drain-{form}", SAVES_AT_THE_DRAIN)
    line = f"{python_image.find_python()} {script} && echo the next line"
    package = Path(holdfast.__file__).parent
    lent = {
        "shell": line,
        "volumes": [f"{package}:/lent/holdfast:ro"],
        "env": {"PYTHONPATH": "/lent"},
    }
    command = {"argv": [script]} if form == "program" else lent
    job = cluster.submit(
        image=python,
        runtime=engine.kind,
        queue=queue,
        cwd=str(project),
        grace_seconds=15,
        **command,
    )
    wait_until(lambda: cluster.output(job), SECONDS, what="the job to begin")
    cluster.add_host(after, queues=[queue], environment=engine.environment)
    cluster.client.act_on_host(before, "drain", hard=True)
    cluster.until(job, "succeeded", seconds=SECONDS)
    first, second = cluster.client.attempts(job)
    assert (first.host, first.cause, first.charged_to, second.host) == (
        before,
        "host_drained",
        "nothing",
        after,
    )
    where = f"in {python_image.SITE}/holdfast" if form == "program" else "in /lent/holdfast"
    assert cluster.output(job, attempt=1).decode() == f"began at 0 with None {where}\n", (
        "and nothing after its end"
    )
    said = cluster.output(job, attempt=2).decode()
    assert said.splitlines()[0] == f"began at 10 with b'of step 10' {where}"
    assert ("the next line" in said) == (form == "shell")
    wait_until(
        lambda: not blobs_of(cluster, job), what="the bytes of a job that succeeded to be deleted"
    )


def test_an_image_without_python_saves_by_renaming_a_file(
    cluster: Cluster, engine: Engine, image: str
) -> None:
    queue = cluster.set_queue("plain")
    cluster.add_host("plain", queues=[queue], environment=engine.environment)
    retry = {"max_retries": 1, "retry_delay": 0.0}
    job = cluster.submit("resume", image=image, runtime=engine.kind, queue=queue, retry=retry)
    cluster.until(job, "succeeded", seconds=SECONDS)
    first, second = cluster.client.attempts(job)
    assert (first.exit_code, second.outcome) == (3, "succeeded")
    wait_until(
        lambda: cluster.output(job, attempt=2) == b"goes on from step 7 with all of it\n",
        SECONDS,
        what="its output",
    )


MEMBER = """
    import json, os, socket, time
    import holdfast

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    step = holdfast.checkpoint.step() or 0

    def meet():
        '''Tell rank 0 where this rank begins, and hear where all do.'''
        if rank == 0:
            door = socket.create_server(address)
            guests = [door.accept()[0] for _ in range(size - 1)]
            begins = {"0": step, **dict(json.loads(guest.recv(100)) for guest in guests)}
            for guest in guests:
                guest.sendall(json.dumps(begins).encode())
            return begins
        while True:
            try:
                guest = socket.create_connection(address)
                break
            except OSError:
                time.sleep(0.05)
        guest.sendall(json.dumps([str(rank), step]).encode())
        return json.loads(guest.recv(1000))

    holdfast.on_drain(lambda: holdfast.checkpoint.save(b"at the drain", step=50 + rank))
    if step == 0:
        holdfast.checkpoint.save(b"on the way", step=5 + rank)
    begins = meet()
    with open(os.environ["HOLDFAST_PEERS_FILE"]) as file:
        peers = [len(json.load(file)), len(json.loads(os.environ["HOLDFAST_PEERS"]))]
    saved = (holdfast.checkpoint.load() or b"").decode()
    print(json.dumps({"begins": begins, "saved": saved, "peers": peers, "epoch": os.environ["HOLDFAST_EPOCH"]}), flush=True)
    while step == 0:
        time.sleep(0.05)
    """


def test_a_gang_of_containers_meets_falls_together_and_goes_on(
    cluster: Cluster, engine: Engine, python: str
) -> None:
    """Two agents, a rank each; rank 1 is killed. Rank 0 saves at the drain, and rank 1 has what it
    saved on its way."""
    queue = cluster.set_queue("gang")
    for name in ("left", "right"):
        cluster.add_host(name, queues=[queue], cpu_slots=1, environment=engine.environment)
    project = make_project(cluster)
    script = write_script(project, "member", MEMBER)
    job = cluster.submit(
        script,
        image=python,
        runtime=engine.kind,
        queue=queue,
        tasks=2,
        cwd=str(project),
        grace_seconds=15,
        retry={"max_retries": 1, "retry_delay": 0.0},
    )
    wait_until(
        lambda: tell(cluster, job, 1), SECONDS, what="both ranks of the first attempt to have met"
    )
    wait_until(
        lambda: len(cluster.client.checkpoints(job)) == 2,
        SECONDS,
        what="both saves to be on record",
    )
    host = next(task.host_name for task in cluster.client.tasks(job) if task.rank == 1)
    assert host is not None
    os.kill(find_member(cluster, job, host), signal.SIGKILL)
    cluster.until(job, "succeeded", seconds=SECONDS)
    first, second = cluster.client.attempts(job)
    assert (first.trigger_rank, first.cause, first.exit_code) == (1, "nonzero_exit", 137)
    assert (
        {member.host for member in first.members}
        == {member.host for member in second.members}
        == {"left", "right"}
    )
    once, again = tell(cluster, job, 1), tell(cluster, job, 2)
    assert [said["begins"] for said in once.values()] == [{"0": 0, "1": 0}] * 2
    assert [said["begins"] for said in again.values()] == [{"0": 50, "1": 6}] * 2
    assert [said["saved"] for said in again.values()] == ["at the drain", "on the way"]
    assert [said["peers"] for said in [*once.values(), *again.values()]] == [[2, 2]] * 4
    assert once[0]["epoch"] != again[0]["epoch"]


def tell(cluster: Cluster, job: str, attempt: int) -> dict[int, dict[str, object]]:
    """What each rank of an attempt said; empty until both did."""
    said = {}
    for rank in range(2):
        text = b"".join(cluster.client.logs(job, attempt=attempt, rank=rank)).decode()
        if not text.endswith("\n"):
            return {}
        said[rank] = json.loads(text)
    return said


def find_member(cluster: Cluster, job: str, host: str) -> int:
    """The pid of the program inside, on this host: not the small init, nor the runner or a client
    of the runtime."""
    for pid in cluster.hosts[host].task_pids(job):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0] == python_image.find_python().encode() and b"member.py" in words[1]:
            return pid
    raise AssertionError(f"no member on {host}")
