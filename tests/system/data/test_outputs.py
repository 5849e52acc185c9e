"""What attempts leave is kept, also after a bad end, and comes back equal."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.groups import TaskGroup, list_groups
from tests.system.cluster import Cluster, clean_environment
from tests.system.small_disk import SmallDisk
from tests.system.small_disk import disk as disk
from tests.waits import wait_until

pytestmark = pytest.mark.slow

LEAVES = """
mkdir -p out/deep; printf hello > out/a; chmod 750 out/a; head -c 20000000 /dev/urandom > out/big
ln -s a out/inside; ln -s /etc/passwd out/absolute; ln -s ../../.. out/deep/climbs; mkfifo out/pipe
printf x > "$(printf 'out/n\\377')"; : > out/empty; exit 3
"""


NAMED = "mkdir out; echo 1 > 'out/a[1]'; echo 2 > out/a1; echo 3 > out/b"


def test_outputs_of_a_failure_are_kept_and_come_back_equal(cluster: Cluster) -> None:
    host = cluster.add_host("only")
    job = cluster.submit(shell=LEAVES, outputs=["out/"], retry={"max_retries": 0})
    cluster.until(job, "failed", seconds=60)

    def look() -> list[object]:
        return [o for o in cluster.client.outputs(job) if o.state.settled]

    wait_until(lambda: look(), 30, what=host.log()[-2000:])
    (found,) = cluster.client.outputs(job)
    assert (found.state, found.attempt, found.rank, found.host) == ("partial", 1, 0, "only")
    assert {one.path: one.why.split(",")[0] for one in found.left_out} == {
        "out/absolute": "a link that leads out",
        "out/deep/climbs": "a link that leads out",
        "out/pipe": "a device",
    }
    assert found.files == 4
    back = cluster.folder / "back"
    got = cluster.cli("outputs", job, "--get", str(back))
    assert got.returncode == 0, got.stderr
    assert b"out/pipe was not kept: a device" in got.stderr, "what is missing is told at once"
    work = next(path for path in (cluster.folder / "only" / "work").glob(f"{job}*"))
    for name in (b"a", b"big", b"n\xff", b"empty"):
        there, here = (
            os.fsencode(work / "out") + b"/" + name,
            os.fsencode(back / "out") + b"/" + name,
        )
        assert Path(os.fsdecode(here)).read_bytes() == Path(os.fsdecode(there)).read_bytes()
    assert (back / "out" / "a").stat().st_mode & 0o7777 == 0o750
    assert os.readlink(back / "out" / "inside") == "a"
    assert sorted(os.listdir(os.fsencode(back / "out"))) == [
        b"a", b"big", b"deep", b"empty", b"inside", b"n\xff",
    ]  # fmt: skip
    listed = cluster.cli("outputs", job, "--list", "--json").stdout.decode()
    assert "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" in listed
    run = cluster.cli("run", "--outputs", "out", "--outputs", "none", "--shell", NAMED)
    assert b"outputs partial: 3 files" in run.stderr, run.stderr
    assert b"none was not kept: No such file" in run.stderr
    for name, there in (("out/a[1]", ["a[1]"]), ("out/[a]1", ["a1"]), ("out/*1*", ["a1", "a[1]"])):
        to = cluster.folder / f"{len(there)}{name[-1]}"
        got = cluster.cli("outputs", "@last", "--get", str(to), name)
        assert got.returncode == 0, got.stderr
        assert sorted(os.listdir(to / "out")) == there, "a name that is there is no pattern"


SENDS = "mkdir out; head -c {size} /dev/urandom > out/big; sha256sum out/big | cut -c1-64"


def read_back(cluster: Cluster, job: str) -> bytes:
    """Fetch the outputs and return the SHA-256 of the file."""
    to = cluster.folder / f"back-{job}"
    got = cluster.cli("outputs", job, "--wait", "--get", str(to))
    assert got.returncode == 0, got.stderr
    return hashlib.sha256((to / "out" / "big").read_bytes()).hexdigest().encode() + b"\n"


def kill_a_fetch(cluster: Cluster, job: str) -> None:
    """Kill -9 a command that fetches the outputs: no file is half here under its name."""
    to = cluster.folder / f"back-{job}" / "out"
    token = cluster.controller.token_file.read_text().strip()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", "outputs", job, "--get", str(to.parent)],
        env=clean_environment(HOLDFAST_URL=cluster.controller.url, HOLDFAST_TOKEN=token),
    ) as fetch:
        try:
            wait_until(lambda: to.is_dir() and any(n.endswith(".part") for n in os.listdir(to)), 60)
        finally:
            fetch.kill()
    assert fetch.returncode == -9
    assert not (to / "big").exists()


@pytest.mark.parametrize("dies", ["agent", "controller"])
def test_a_death_in_the_middle_of_a_transfer_loses_nothing(cluster: Cluster, dies: str) -> None:
    """OUT-4, and OUT-7 where this machine has control groups."""
    host = cluster.add_host("only")
    job = cluster.submit(shell=SENDS.format(size=120_000_000), outputs=["out"])
    packs = cluster.folder / "blobs" / "packs"
    wait_until(lambda: packs.is_dir() and len(os.listdir(packs)) >= 2, 60)
    home = (cluster.folder / "only" / "groups.folder").read_text()
    if dies == "agent":
        if home:
            assert [group for group in list_groups(home) if is_of_a_reader(group)]
        host.kill_agent()
    else:
        cluster.controller.kill()
        cluster.controller.start()
    cluster.until(job, "succeeded", seconds=60)
    assert cluster.cli("wait", job, "--outputs").returncode == 0
    assert all(o.state.settled for o in cluster.client.outputs(job))
    if dies == "agent":
        kill_a_fetch(cluster, job)
    assert read_back(cluster, job) == cluster.output(job)
    (found,) = cluster.client.outputs(job)
    assert (found.state, found.left_out) == ("complete", [])
    if home:
        wait_until(lambda: not any(map(is_of_a_reader, list_groups(home))), 30)


def is_of_a_reader(group: TaskGroup) -> bool:
    return group.name.startswith("outputs")


def test_a_lost_host_leaves_what_it_had_sent_and_the_next_attempt_does_not_wait(
    cluster: Cluster,
) -> None:
    """OUT-1, OUT-5."""
    line = "mkdir -p out; echo $HOLDFAST_ATTEMPT > out/a; [ $HOLDFAST_ATTEMPT = 2 ] || sleep 600"
    first = cluster.add_host("first")
    job = cluster.submit(shell=line, outputs=["out"])
    wait_until(lambda: [o for o in cluster.client.outputs(job) if o.files], 60)
    first.kill_guardian()
    cluster.add_host("second")
    assert cluster.cli("hosts", "terminate", "first", "--reason", "it burnt").returncode == 0
    cluster.until(job, "succeeded", seconds=60)
    wait_until(lambda: all(o.state.settled for o in cluster.client.outputs(job)), 60)
    one, two = cluster.client.outputs(job)
    assert (one.state, one.host, one.files) == ("partial", "first", 1)
    assert "its host was lost" in one.reason
    assert (two.state, two.host, two.files) == ("complete", "second", 1)
    for attempt in ("1", "2"):
        to = cluster.folder / attempt
        assert cluster.cli("outputs", job, "--get", str(to), "--attempt", attempt).returncode == 0
        assert (to / "out" / "a").read_text() == f"{attempt}\n"


def test_a_host_that_is_shut_down_sends_its_outputs_first(cluster: Cluster) -> None:
    host = cluster.add_host("only")
    line = "mkdir out; trap 'head -c 50000000 /dev/zero > out/big; exit 0' TERM; echo up; sleep 60 & wait"
    job = cluster.submit(shell=line, outputs=["out"])
    wait_until(lambda: cluster.output(job) == b"up\n", 60)
    host.guardian.terminate()
    host.guardian.wait(60)
    found = cluster.client.outputs(job)[0]
    left = (cluster.folder / "only" / "work" / job / "out" / "big").stat().st_size
    assert (found.state, found.bytes) == ("complete", left)


def test_a_rented_host_that_ends_itself_sends_its_outputs_to_a_controller_that_is_back(
    cluster: Cluster,
) -> None:
    """SELF-1: between the end of its tasks and its own it waits for what is still to be sent."""
    host = cluster.add_host("rented", self_destruct_seconds=3.0)
    line = "mkdir out; trap 'echo kept > out/a; exit 0' TERM; echo up; sleep 60 & wait"
    job = cluster.submit(shell=line, outputs=["out"])
    wait_until(lambda: cluster.output(job) == b"up\n", 60)
    cluster.controller.kill()
    wait_until(lambda: (cluster.folder / "rented" / "work" / job / "out" / "a").exists(), 60)
    cluster.controller.start()
    host.guardian.wait(60)
    found = cluster.client.outputs(job)[0]
    assert (found.state, found.files) == ("complete", 1)


def test_a_full_disk_at_either_end_loses_nothing(cluster: Cluster, disk: SmallDisk) -> None:
    """The laptop's is full while it fetches; the same command then goes on."""
    cluster.add_host("only")
    line = "mkdir out; head -c 6000000 /dev/urandom > out/big; sha256sum out/big | cut -c1-64"
    job = cluster.submit(shell=line, outputs=["out"])
    cluster.until(job, "succeeded", seconds=60)
    disk.fill()
    got = cluster.cli("outputs", job, "--wait", "--get", str(disk.path / "back"))
    assert got.returncode == 2, got.stderr
    assert b"No space left on device" in got.stderr
    disk.free()
    got = cluster.cli("outputs", job, "--get", str(disk.path / "back"))
    assert got.returncode == 0, got.stderr
    data = (disk.path / "back" / "out" / "big").read_bytes()
    assert hashlib.sha256(data).hexdigest().encode() + b"\n" == cluster.output(job)
