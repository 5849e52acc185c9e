"""What attempts leave is kept, also after a bad end, and comes back equal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow

LEAVES = """
mkdir -p out/deep; printf hello > out/a; chmod 750 out/a; head -c 20000000 /dev/urandom > out/big
ln -s a out/inside; ln -s /etc/passwd out/absolute; ln -s ../../.. out/deep/climbs; mkfifo out/pipe
printf x > "$(printf 'out/n\\377')"; : > out/empty; exit 3
"""


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
    listed = cluster.cli("outputs", job, "--list").stdout.decode()
    assert "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" in listed
    run = cluster.cli("run", "--outputs", "out", "--shell", "mkdir out; echo hi > out/a")
    assert b"outputs complete: 1 files" in run.stderr, run.stderr
