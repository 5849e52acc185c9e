"""`holdfast cp` with a running task, and with one that is over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import wait_until

pytestmark = pytest.mark.slow

WORKS = """
mkdir out; head -c 30000000 /dev/urandom > out/big; printf model > out/model.pt; echo ready
while [ ! -e go ]; do sleep 0.05; done; cat there/sent
"""


def test_files_come_and_go_and_a_killed_agent_ends_no_copy(cluster: Cluster) -> None:
    host = cluster.add_host("only")
    job = cluster.submit(shell=WORKS, outputs=["out"])
    wait_until(lambda: cluster.output(job) == b"ready\n", 60)
    here = cluster.folder / "here"
    here.mkdir()
    work = cluster.folder / "only" / "work" / job

    one = cluster.cli("cp", f"{job}:out/model.pt", str(here))
    assert one.returncode == 0, one.stderr
    assert (here / "model.pt").read_bytes() == b"model"

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", "cp", f"{job}:out/big", f"{here}/"],
        env=clean_environment(
            HOLDFAST_URL=cluster.controller.url,
            HOLDFAST_TOKEN=cluster.controller.token_file.read_text().strip(),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: any(n.endswith(".part") for n in os.listdir(here)), 60)
    host.kill_agent()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    assert (here / "big").read_bytes() == (work / "out" / "big").read_bytes()

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
