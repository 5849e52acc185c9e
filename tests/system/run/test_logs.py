"""Output: no job harms another, its host or the controller by what it prints, and what is kept is
what was printed."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from holdfast.client import Client
from holdfast.core.records import JobRecord
from holdfast.wire.logs.lines import LogLine
from holdfast.wire.logs.search import LogFound, LogSearchEnd
from tests.system.cluster import Cluster
from tests.system.proxy import Proxy
from tests.system.watchdogs.test_watchdogs import BEAT
from tests.waits import wait_exit, wait_until

pytestmark = pytest.mark.slow

FLOOD_MB = int(os.environ.get("FLOOD_MB", "200"))  # by hand: FLOOD_MB=1024
FLOOD = """
import sys, time
piece = b"".join(b"%015d\\n" % n for n in range(65536))  # 1 MiB
for n in range({0}):
    sys.stdout.buffer.write(piece)
    time.sleep(0.01)
sys.stdout.buffer.write(b"the last line\\n")
"""
BINARY = """
import random, sys
noise = random.Random(7)
sys.stdout.buffer.write(noise.randbytes(700_001) + bytes(range(256)))
sys.stderr.buffer.write(noise.randbytes(50_003) + b"\\r\\n\\x00\\xff")
sys.exit(4)
"""


def disk_usage(folder: Path) -> int:
    """Blocks, not lengths: what was punched out costs nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_a_flood_is_bounded_on_disk_in_the_database_and_in_memory(cluster: Cluster) -> None:
    cluster.client.set_config({"log_disk_mb": 16, "log_keep_mb": 4})
    host = cluster.add_host("h")
    flood = cluster.submit(sys.executable, "-c", FLOOD.format(FLOOD_MB))
    quiet = cluster.submit(
        sys.executable,
        "-c",
        "import time\nfor n in range(50): print(n, flush=True); time.sleep(0.05)",
    )
    controller, agent = psutil.Process(cluster.controller.pid), psutil.Process(host.agent_pid())
    peak = {"controller": 0, "agent": 0, "disk": 0}
    while not cluster.client.job(flood).state.terminal:
        peak["controller"] = max(peak["controller"], controller.memory_info().rss)
        peak["agent"] = max(peak["agent"], agent.memory_info().rss)
        peak["disk"] = max(peak["disk"], disk_usage(host.state))
        time.sleep(0.1)
    assert cluster.client.job(flood).state == "succeeded"
    assert cluster.until(quiet, "succeeded").attempts == 1
    size = FLOOD_MB * (1 << 20) + len(b"the last line\n")
    (stream,) = wait_until(
        lambda: [s for s in cluster.client.log_streams(flood) if s.stream == "stdout" and s.ended],
        60,
        what="the log's end",
    )
    assert stream.size == size
    assert stream.kept <= 5 << 20
    with psycopg.connect(cluster.dsn) as connection:
        row = connection.execute(
            "select count(*), sum(length(data)) from log_chunks where job_id = %s", (flood,)
        ).fetchone()
    assert row is not None
    assert row[1] <= 5 << 20, row
    assert row[0] < 2000, row
    assert peak["controller"] < 400 << 20, peak
    assert peak["agent"] < 250 << 20, peak
    # The guardian looks once a second, and ten times a second once a log is over its limit: it
    # writes up to 100 MB/s.
    assert peak["disk"] < 150 << 20, peak
    wait_until(
        lambda: disk_usage(host.state) < 40 << 20,
        20,
        what=f"the disk to be given back: {disk_usage(host.state)}",
    )
    kept = cluster.output(flood)
    assert kept.startswith(b"000000000000000\n000000000000001\n")
    assert kept.endswith(b"000000000065535\nthe last line\n")
    print(f"peaks of {FLOOD_MB} MB: " + ", ".join(f"{k} {v >> 20} MB" for k, v in peak.items()))


def test_binary_output_is_exact_through_run_and_logs(shared: Cluster) -> None:
    shared.add_host("binary", queues=[shared.set_queue("binary")])
    noise = random.Random(7)
    out, err = (
        noise.randbytes(700_001) + bytes(range(256)),
        noise.randbytes(50_003) + b"\r\n\x00\xff",
    )
    done = shared.cli("run", "--queue", "binary", "--", sys.executable, "-c", BINARY)
    assert done.returncode == 4
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(out).digest()
    assert done.stderr.startswith(err), "its own bytes come first, then the notice of its end"
    (job,) = shared.client.jobs(queue="binary")
    done = shared.cli("logs", job.id)
    assert (done.returncode, done.stdout == out, done.stderr == err) == (0, True, True)
    done = shared.cli("logs", "-f", job.id, "--stream", "stdout")
    assert (done.returncode, done.stdout == out) == (4, True), "it exits as its job did"


def test_logs_outlive_their_host_and_are_searched(shared: Cluster) -> None:
    host = shared.add_host("mortal", queues=[shared.set_queue("mortal")])
    job = shared.submit("/bin/echo", "remember me", queue="mortal")
    shared.until(job, "succeeded")
    wait_until(lambda: shared.output(job) == b"remember me\n")
    host.begin_close()
    wait_exit(host.guardian, 10)
    shutil.rmtree(host.state)
    assert shared.output(job) == b"remember me\n"
    line, end = shared.client.search_logs("^remember", [job])
    assert isinstance(line, LogFound)
    assert (line.job, line.rank, line.text) == (job, 0, "remember me")
    assert isinstance(end, LogSearchEnd)
    assert (end.matches, end.missing_bytes) == (1, 0)


def test_following_goes_on_across_a_requeue(shared: Cluster) -> None:
    shared.add_host("follow", queues=[shared.set_queue("follow", stall_timeout_seconds=1)])
    code = (
        BEAT
        + "\nfor n in range(20): print(attempt, n, flush=True); beat(n); time.sleep(0.02)\nif attempt == 1: wedge()\nsys.exit(3)"
    )
    job = shared.submit(sys.executable, "-c", code, queue="follow")
    heard: list[tuple[int, bytes]] = []
    ended = []

    def follow() -> None:
        for item in shared.client.follow(job):
            if isinstance(item, LogLine):
                heard.append((item.attempt, item.data))
            else:
                ended.append(item)

    listener = threading.Thread(target=follow, daemon=True)
    listener.start()
    shared.until(job, "failed")
    listener.join(15)
    assert not listener.is_alive(), "the end of the job ends the following"
    for attempt in (1, 2):
        text = b"".join(data for number, data in heard if number == attempt)
        assert text == b"".join(b"%d %d\n" % (attempt, n) for n in range(20))
        assert shared.output(job, attempt=attempt) == text
    assert ended[-1].state == "failed"
    assert ended[-1].exit_code == 3


FALLS_TWICE = """
import os, sys, time
attempt = int(os.environ["HOLDFAST_ATTEMPT"])
for n in range(100):
    print("attempt", attempt, "line", n, flush=True)
    time.sleep(0.005)
sys.exit(attempt < 3)
"""
ALL_LINES = [b"attempt %d line %d" % (attempt, n) for attempt in (1, 2, 3) for n in range(100)]


def test_run_shows_the_attempts_that_were_over_before_it_looked(shared: Cluster) -> None:
    shared.add_host("first", queues=[shared.set_queue("first")])
    words = ("--queue", "first", "--idempotency-key", "first", "--max-retries", "2")
    words += ("--retry-delay", "0s", "--", sys.executable, "-c", FALLS_TWICE)
    submitted = shared.cli("submit", *words)
    job = submitted.stdout.decode().strip()
    shared.until(job, "succeeded", seconds=60)
    done = shared.cli("run", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ALL_LINES
    assert (
        b"requeued after attempt 1: exit code 1; its last line: attempt 1 line 99; retry 1 of 2"
        in done.stderr
    )
    assert (
        b"requeued after attempt 2: exit code 1; its last line: attempt 2 line 99; retry 2 of 2"
        in done.stderr
    )


def test_a_reader_that_comes_and_goes_misses_no_attempt(shared: Cluster) -> None:
    """CLIENT-1: its connection is lost while the job waits, and after each tenth piece."""
    queue = shared.set_queue("comes")
    with Proxy(shared.controller.port) as proxy:
        token = shared.controller.token_file.read_text().strip()
        client = Client(f"http://127.0.0.1:{proxy.port}", token, retry_seconds=30.0)
        job = shared.submit(
            sys.executable, "-c", FALLS_TWICE, queue=queue,
            retry={"max_retries": 2, "retry_delay": 0.0},
        )  # fmt: skip
        heard, ended = list[LogLine](), list[JobRecord]()
        news = client.follow(job)
        assert next(news).state == "queued"  # type: ignore[union-attr]  # the first is the job
        proxy.refuse = True
        proxy.cut()
        shared.add_host("comes", queues=[queue])
        shared.until(job, "succeeded", seconds=60)
        proxy.refuse = False
        for item in news:
            (heard if isinstance(item, LogLine) else ended).append(item)  # type: ignore[arg-type]  # each to its own
            if len(heard) % 10 == 9:
                proxy.cut()
        client.close()
    assert [line.gap for line in heard if line.gap] == []
    assert b"".join(line.data for line in heard).splitlines() == ALL_LINES
    assert ended[-1].state == "succeeded"


def test_an_attempt_whose_output_is_gone_holds_back_no_other(shared: Cluster) -> None:
    """FOLLOW-3: its last bytes had time to come, and nothing waits for them again."""
    shared.add_host("gone", queues=[shared.set_queue("gone")])
    job = shared.submit(
        sys.executable, "-c", FALLS_TWICE, queue="gone",
        retry={"max_retries": 2, "retry_delay": 0.0},
    )  # fmt: skip
    shared.until(job, "succeeded", seconds=60)
    with psycopg.connect(shared.dsn, autocommit=True) as database:
        for table in ("log_chunks", "log_streams"):
            database.execute(f"delete from {table} where job_id = %s and attempt < 3", (job,))
    text = [i.data for i in shared.client.follow(job, since=1) if isinstance(i, LogLine)]
    assert b"".join(text).splitlines() == ALL_LINES[200:]


def test_secrets_are_shown_to_nobody(shared: Cluster) -> None:
    host = shared.add_host("secrets", queues=[shared.set_queue("secrets", stall_timeout_seconds=1)])
    word = "s3cr3t-" + os.urandom(8).hex()
    code = BEAT + (
        "\nkey = os.environ['API_KEY']\nprint('key is', key, flush=True)\n"
        "for c in key: sys.stderr.write(c); sys.stderr.flush(); time.sleep(0.01)\n"
        "import subprocess; subprocess.Popen(['sleep', '1000', key][:2] + [], env=os.environ)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)', "
        "key])\ntime.sleep(0.3)\nbeat(1); wedge()"
    )
    job = shared.submit(
        sys.executable, "-c", code, queue="secrets", secrets={"API_KEY": word}, watchdog_cap=0
    )
    shared.until(job, "failed")
    wait_until(lambda: b"key is" in shared.output(job), what="its output")
    out, err = shared.output(job), shared.output(job, "stderr")
    assert out == b"key is " + b"*" * len(word) + b"\n"
    assert err == b"*" * len(word), "written letter by letter, it is masked all the same"
    (found,) = wait_until(lambda: shared.client.forensics(job), what="forensics")
    assert "key is" in "".join(found.sections.values()), "the log's tail is in the forensics"
    for command in (
        ("show", job, "--forensics", "--json"),
        ("show", job, "--json"),
        ("attempts", job, "--json"),
        ("events", "--json"),
    ):
        done = shared.cli(*command)
        assert done.returncode == 0, done.stderr
        assert word.encode() not in done.stdout, command
    assert word not in host.log()
    assert word not in shared.controller.log_path.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system to fill up")
def test_a_full_disk_of_one_host_hurts_nobody_else(cluster: Cluster) -> None:
    small = cluster.folder / "full"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        full = cluster.add_host("full", queues=[cluster.set_queue("full")])
        fine = cluster.add_host("fine", queues=[cluster.set_queue("fine")])
        flood = cluster.submit(
            sys.executable, "-c", FLOOD.format(20) + "\nsys.exit(0)", queue="full"
        )
        other = cluster.submit(
            sys.executable, "-c", "import time; time.sleep(3); print('mine')", queue="fine"
        )
        wait_until(
            lambda: cluster.client.job(flood).state.terminal,
            30,
            what="the flood to end one way or another",
        )
        left = shutil.disk_usage(small).free
        (small / "filler").write_bytes(b"x" * left)
        long = cluster.submit("sleep", "2", queue="full")
        assert cluster.until(other, "succeeded").attempts == 1
        wait_until(lambda: cluster.output(other) == b"mine\n")
        wait_until(
            lambda: [f.part for h in cluster.client.hosts() for f in h.faults] == ["starts"],
            20,
            what="the host with the full disk to be set aside",
        )
        cluster.until(long, "queued")  # it waits for a host, at no charge
        assert full.guardian.poll() is None, "the guardian outlives a full disk"
        assert full.agent_pid(), "the agent outlives a full disk"
        (small / "filler").unlink()
        again = cluster.submit("/bin/echo", "room again", queue="full")
        cluster.until(again, "succeeded")
        wait_until(lambda: cluster.output(again) == b"room again\n")
        assert cluster.until(long, "succeeded").infra_charged == 0
        assert fine.guardian.poll() is None
        for host in (full, fine):
            host.begin_close()
        wait_exit(full.guardian, 15)
    finally:
        cluster.hosts["full"].finish_close(5) if "full" in cluster.hosts else None
        subprocess.run(["umount", "-l", str(small)], check=True)
        cluster.hosts.pop("full", None)
