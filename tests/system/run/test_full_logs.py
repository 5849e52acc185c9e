"""`logs --full`: what the controller did not keep comes from the host that ran it, or is counted with
the reason."""

from __future__ import annotations

import os
import re
import shutil
import sys
from functools import cache

import pytest

from tests.system.cluster import Cluster
from tests.waits import wait_exit, wait_until

pytestmark = pytest.mark.slow

LINES = 400_000
LOUD = f"""
import sys
for n in range({LINES // 1000}):
    sys.stdout.write("".join("%015d\\n" % (n * 1000 + k) for k in range(1000)))
"""


@cache
def write_whole() -> bytes:
    """What `LOUD` writes. Not made while tests are collected, which every worker does."""
    return b"".join(b"%015d\n" % n for n in range(LINES))


def run_loud(cluster: Cluster, host: str, code: str = LOUD, **fields: object) -> str:
    """Run it on this host alone, until its log has ended with a gap; the job's id."""
    job = cluster.submit(
        sys.executable, "-c", code, queue=cluster.set_queue(host, log_keep_mb=1), **fields
    )
    cluster.until(job, "succeeded", seconds=60)
    wait_until(
        lambda: [s for s in cluster.client.log_streams(job) if s.stream == "stdout" and s.ended],
        60,
        what="the log's end",
    )
    (stream,) = [s for s in cluster.client.log_streams(job) if s.stream == "stdout"]
    assert stream.kept < stream.size, "the controller keeps a part of it"
    return job


def test_the_whole_output_comes_from_the_host(shared: Cluster) -> None:
    shared.add_host("loud", queues=[shared.set_queue("loud")])
    job = run_loud(shared, "loud")
    done = shared.cli("logs", job)
    missing = re.search(rb"(\d+) bytes of stdout are not in the controller's copy", done.stderr)
    assert missing, done.stderr
    assert int(missing[1]) == len(write_whole()) - len(done.stdout)
    assert f"holdfast logs --full {job}".encode() in done.stderr
    done = shared.cli("logs", "--full", job)
    assert (done.returncode, done.stdout == write_whole(), done.stderr) == (0, True, b"")
    assert b"".join(shared.client.logs(job, full=True, stream="stdout")) == write_whole()


def test_run_counts_what_it_did_not_print_and_names_the_command(shared: Cluster) -> None:
    shared.add_host("run", queues=[shared.set_queue("run", log_keep_mb=1)])
    done = shared.cli("run", "--queue", "run", "--", sys.executable, "-c", LOUD)
    (job,) = shared.client.jobs(queue="run")
    missing = re.search(rb"(\d+) bytes of stdout are not in the controller's copy", done.stderr)
    assert len(done.stdout) + int(missing[1] if missing else 0) == len(write_whole())
    assert done.stdout == write_whole() or f"holdfast logs --full {job.id}".encode() in done.stderr
    assert shared.cli("logs", "--full", job.id).stdout == write_whole()


def test_a_secret_stays_masked_in_what_the_host_gives(shared: Cluster) -> None:
    shared.add_host("masked", queues=[shared.set_queue("masked")])
    word = "s3cr3t-" + os.urandom(8).hex()
    code = "import os; key = os.environ['KEY']" + LOUD.replace('"%015d\\n"', 'key + " %015d\\n"')
    job = run_loud(shared, "masked", code, secrets={"KEY": word})
    done = shared.cli("logs", "--full", job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == LINES
    assert word.encode() not in done.stdout
    assert done.stdout.count(b"*" * len(word)) == LINES


def test_a_server_that_the_host_does_not_call_gives_it_too(cluster: Cluster) -> None:
    cluster.add_host("far", queues=[cluster.set_queue("far")])
    job = run_loud(cluster, "far")
    other = cluster.client_of(cluster.add_controller())
    assert b"".join(other.logs(job, full=True, stream="stdout")) == write_whole()


def test_what_the_host_has_no_more_is_counted_with_the_reason(cluster: Cluster) -> None:
    host = cluster.add_host("clean", queues=[cluster.set_queue("clean")])
    job = run_loud(cluster, "clean")
    for folder in (host.state / "tasks").glob("[!.]*"):
        shutil.rmtree(folder)
    done = cluster.cli("logs", "--full", job)
    assert done.returncode == 1
    assert b"clean has removed the files of this task" in done.stderr
    missing = re.search(rb"(\d+) bytes of stdout are missing", done.stderr)
    assert missing
    assert int(missing[1]) == len(write_whole()) - len(done.stdout)
    host.begin_close()
    wait_exit(host.guardian, 15)
    done = cluster.cli("logs", "--full", job)
    assert done.returncode == 1
    assert b"host clean, which ran it, is gone" in done.stderr


def test_a_frozen_host_is_said_not_waited_for_without_end(cluster: Cluster) -> None:
    host = cluster.add_host("frozen", queues=[cluster.set_queue("frozen")])
    job = run_loud(cluster, "frozen")
    host.freeze()
    try:
        done = cluster.cli("logs", "--full", job)
    finally:
        host.thaw()
    assert done.returncode == 1
    assert b"host frozen does not answer" in done.stderr
