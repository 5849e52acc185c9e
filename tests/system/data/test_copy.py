"""`holdfast cp` with a running task, and with one that is over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.system.small_disk import SmallDisk
from tests.system.small_disk import disk as disk
from tests.waits import wait_until

pytestmark = pytest.mark.slow

WORKS = """
mkdir out; head -c 30000000 /dev/urandom > out/big; printf model > out/model.pt; echo ready
while [ ! -e go ]; do sleep 0.05; done; cat there/sent
"""


def start_copy(cluster: Cluster, *words: str) -> subprocess.Popen[bytes]:
    """Begin a copy by the command line."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", "cp", *words],
        env=clean_environment(
            HOLDFAST_URL=cluster.controller.url,
            HOLDFAST_TOKEN=cluster.controller.token_file.read_text().strip(),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_files_come_and_go_and_no_kill_ends_a_copy(cluster: Cluster) -> None:
    host = cluster.add_host("only")
    job = cluster.submit(shell=WORKS, outputs=["out"])
    wait_until(lambda: cluster.output(job) == b"ready\n", 60)
    here = cluster.folder / "here"
    here.mkdir()
    work = cluster.folder / "only" / "work" / job

    one = cluster.cli("cp", f"{job}:out/model.pt", str(here))
    assert one.returncode == 0, one.stderr
    assert (here / "model.pt").read_bytes() == b"model"

    for dies in ("client", "controller", "agent"):
        whole = here / dies
        whole.mkdir()
        process = start_copy(cluster, f"{job}:out/big", f"{whole}/")
        wait_until(lambda at=whole: any(n.endswith(".part") for n in os.listdir(at)), 60)
        if dies == "client":
            process.kill()
            process.communicate()
            process = start_copy(cluster, f"{job}:out/big", f"{whole}/")
        elif dies == "controller":
            cluster.controller.kill()
            cluster.controller.start()
        else:
            host.kill_agent()
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (dies, out, err)
        assert os.listdir(whole) == ["big"]
        assert (whole / "big").read_bytes() == (work / "out" / "big").read_bytes()

    (here / "sent").write_bytes(b"hello\n")
    sent = cluster.cli("cp", str(here / "sent"), f"{job}:there/sent")
    assert sent.returncode != 0, "there is no folder `there` yet"
    assert b"No such file" in sent.stderr
    os.mkdir(work / "there")
    assert cluster.cli("cp", str(here / "sent"), f"{job}:there/").returncode == 0
    (here / "go").write_bytes(b"")
    assert cluster.cli("cp", str(here / "go"), f"{job}:").returncode == 0
    cluster.until(job, "succeeded", seconds=60)
    assert cluster.output(job) == b"ready\nhello\n"

    cluster.client.wait_outputs(job, timeout_seconds=60)
    later = cluster.cli("cp", f"{job}:out/model.pt", str(here / "later.pt"))
    assert later.returncode == 0, later.stderr
    assert (here / "later.pt").read_bytes() == b"model"


def test_a_full_disk_at_either_end_is_told_and_the_copy_then_goes_on(
    cluster: Cluster, disk: SmallDisk
) -> None:
    cluster.add_host("only")
    job = cluster.submit(shell="head -c 3000000 /dev/urandom > big; echo ready; sleep 600")
    wait_until(lambda: cluster.output(job) == b"ready\n", 60)
    left = cluster.folder / "only" / "work" / job / "big"
    for words in ((f"{job}:big", f"{disk.path}/here"), (str(left), f"{job}:{disk.path}/there")):
        disk.fill()
        full = cluster.cli("cp", *words)
        assert full.returncode != 0
        assert b"No space left on device" in full.stderr, full.stderr
        disk.free()
        again = cluster.cli("cp", *words)
        assert again.returncode == 0, again.stderr
    for name in ("here", "there"):
        assert (disk.path / name).read_bytes() == left.read_bytes()
