"""The five watchdogs over the wire: what they end, with which code, and what becomes of the job."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from tests.system.chronicle import CODE, read_chronicle
from tests.system.cluster import Cluster
from tests.waits import crowding, stretch, wait_until

pytestmark = pytest.mark.slow

BEAT = """
import ctypes, json, os, socket, sys, time
attempt = int(os.environ["HOLDFAST_ATTEMPT"])
def beat(step):
    data = json.dumps({"task": os.environ["HOLDFAST_TASK"], "step": step}).encode()
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(data, os.environ["HOLDFAST_BEAT_SOCKET"])
def wedge():
    ctypes.PyDLL(None).sleep(1000)  # in C, with the GIL held: no Python in this process runs any more
"""
WEDGE_ONCE = BEAT + "\nbeat(attempt)\nif attempt == 1: wedge()\nprint('whole')"
WEDGE_ALWAYS = BEAT + "\nbeat(1)\nwedge()"
SILENT = BEAT + "\ntime.sleep(1000)"
BUSY = 80.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def lane(cluster: Cluster, name: str, **settings: Any) -> str:
    """A queue of this test alone, and a host that serves it and nothing else."""
    cluster.set_queue(name, **settings)
    cluster.add_host(name, queues=[name], cpu_slots=1)
    return name


def test_a_stalled_job_goes_to_the_front_of_its_queue_with_forensics(shared: Cluster) -> None:
    queue = lane(shared, "front", stall_timeout_seconds=1.5)
    file = shared.folder / "front.chronicle"
    wedged = shared.submit(*python(WEDGE_ONCE), queue=queue)
    shared.until(wedged, "running")
    others = [shared.submit(sys.executable, CODE, str(file), "0.1", queue=queue) for _ in range(3)]
    urgent = shared.submit(sys.executable, CODE, str(file), "0.1", queue=queue, priority=60)
    shared.until(wedged, "succeeded")
    for job in (*others, urgent):
        shared.until(job, "succeeded")
    first, second = shared.client.attempts(wedged)
    assert (first.outcome, first.cause, first.exit_code, first.charged_to) == (
        "requeued",
        "stalled",
        76,
        "watchdog",
    )
    assert (
        "it runs again, at the front of its queue; a watchdog has stopped it once, and may do so 3 "
        "times" in first.reason
    )
    assert (second.outcome, second.number, second.parent) == ("succeeded", 2, 1)
    starts = {job: shared.client.attempts(job)[-1].started_at for job in (wedged, urgent, *others)}
    # The front of its priority: before all that wait beside it, behind what is more urgent.
    assert sorted(starts, key=lambda j: starts[j]) == [urgent, wedged, *others]  # type: ignore[arg-type,return-value]  # every job has started
    (found,) = shared.client.forensics(wedged, attempt=1)
    text = "\n".join(found.sections.values())
    assert "<module>" in text or "wedge" in text, f"no Python stack in {list(found.sections)}"
    assert "sleep" in text, "the kernel's or libc's own frame"
    assert found.seconds <= stretch(10)
    assert first.has_forensics
    assert len(read_chronicle(file)) > 4


def test_a_tripped_host_is_avoided_where_another_fits(shared: Cluster) -> None:
    shared.set_queue("avoid", stall_timeout_seconds=1)
    shared.add_host("avoid-a", queues=["avoid"])
    shared.add_host("avoid-b", queues=["avoid"])
    job = shared.submit(*python(WEDGE_ONCE), queue="avoid")
    shared.until(job, "succeeded")
    first, second = shared.client.attempts(job)
    assert {first.host, second.host} == {"avoid-a", "avoid-b"}


def test_at_the_cap_a_job_fails_once(shared: Cluster) -> None:
    queue = lane(shared, "cap", stall_timeout_seconds=1)
    job = shared.submit(*python(WEDGE_ALWAYS), queue=queue, watchdog_cap=1)
    ended = shared.until(job, "failed")
    assert (ended.exit_code, ended.cause, ended.attempts, ended.watchdog_charged) == (
        76,
        "stalled",
        2,
        2,
    )
    assert [a.outcome for a in shared.client.attempts(job)] == ["requeued", "failed"]
    events = list(shared.client.events(job_id=job))
    assert [e.kind for e in events].count("job.failed") == 1
    assert [e.kind for e in events][-2:] == ["job.failed", "job.retry_exhausted"]
    assert "stopped by a watchdog 2 times, and its budget of 1 is spent" in ended.reason


def test_a_lane_may_fail_what_trips(shared: Cluster) -> None:
    queue = lane(shared, "fails", stall_timeout_seconds=1, on_trip="fail")
    ended = shared.until(shared.submit(*python(WEDGE_ALWAYS), queue=queue), "failed")
    assert (ended.exit_code, ended.attempts) == (76, 1)


def test_the_time_limit_needs_no_beat_and_no_signal(shared: Cluster) -> None:
    queue = lane(shared, "limit")
    spin = BEAT + "\nwhile True:\n    beat(1); time.sleep(0.01)"
    job = shared.submit(*python(spin), queue=queue, time_limit=1.5, watchdog_cap=0)
    ended = shared.until(job, "failed")
    assert (ended.exit_code, ended.cause) == (75, "time_limit")
    (attempt,) = shared.client.attempts(job)
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert 1.4 < (attempt.ended_at - attempt.started_at).total_seconds() < 6 * crowding()


@pytest.mark.parametrize("who", ["host", "queue"])
def test_an_operators_hard_stop_costs_the_job_nothing(shared: Cluster, who: str) -> None:
    queue = lane(shared, f"stop-{who}")
    job = shared.submit(*python(SILENT), queue=queue)
    shared.until(job, "running")
    words = (
        ("hosts", "drain", queue, "--hard")
        if who == "host"
        else ("queues", "pause", queue, "--hard")
    )
    done = shared.cli(*words, "--reason", "new driver")
    assert done.returncode == 0, done.stderr
    first = shared.until_attempt(job, 1, "ended")
    cause = "host_drained" if who == "host" else "preempted"
    assert (first.exit_code, first.cause, first.outcome, first.charged_to) == (
        79,
        cause,
        "requeued",
        "nothing",
    )
    found = shared.until(job, "queued")
    assert (found.retries_charged, found.watchdog_charged, found.infra_charged) == (0, 0, 0)
    time.sleep(0.5)
    assert shared.client.job(job).state == "queued", "switched off means nothing new"
    assert not shared.hosts[queue].task_pids(job)
    words = ("hosts", "undrain", queue) if who == "host" else ("queues", "resume", queue)
    assert shared.cli(*words).returncode == 0
    shared.until(job, "running")
    shared.client.cancel(job, hard=True)
    shared.until(job, "cancelled")


def test_loading_is_not_wedged_and_idling_is(shared: Cluster) -> None:
    """Neither ever beats. One loads memory slowly, the other sleeps; the health watch is on for
    both."""
    shared.set_queue(
        "health", health_watch="on", health_window_seconds=1.5, health_load_grace_seconds=2
    )
    shared.add_host("health", queues=["health"], cpu_slots=2)
    load = "import time\nkept = []\nfor _ in range(35):\n    kept.append(bytearray(12 << 20)); time.sleep(0.2)\nprint('loaded')"
    loading = shared.submit(*python(load), queue="health")
    idling = shared.submit(*python(SILENT), queue="health", watchdog_cap=0)
    failed = shared.until(idling, "failed")
    assert (failed.exit_code, failed.cause) == (78, "gpu_wedged")
    ended = shared.until(loading, "succeeded")
    assert ended.attempts == 1


def test_a_job_that_spins_without_a_beat_is_ended_by_the_silence_limit(shared: Cluster) -> None:
    queue = lane(shared, "spin", stall_timeout_seconds=1)
    spin = BEAT + "\nbeat(1)\nwhile True: pass"
    job = shared.submit(*python(spin), queue=queue, silence_limit=4, watchdog_cap=0)
    ended = shared.until(job, "failed")
    assert (ended.exit_code, ended.cause) == (76, "stalled")
    assert "the silence limit of 4 s" in ended.reason
    assert "of a core" in ended.reason, "what the signals said stands in the reason"
    assert "not stalled" in shared.hosts[queue].log()


def test_a_shell_beats(shared: Cluster) -> None:
    queue = lane(shared, "shell")
    beat, seen = f"{sys.executable} -P -m holdfast.cli beat", shared.folder / "first-beat-seen"
    line = f"{beat} 3 10; until [ -e {seen} ]; do sleep 0.05; done; {beat} 4; sleep 600"
    job = shared.submit(shell=line, queue=queue)
    wait_until(lambda: shared.client.job(job).step == 3, what="the first beat")
    assert shared.client.job(job).total == 10
    seen.touch()
    wait_until(lambda: shared.client.job(job).step == 4, what="the second beat")
    assert shared.client.job(job).total == 10
    shared.client.cancel(job, hard=True)
    shared.until(job, "cancelled")


def test_settings_reach_a_job_that_runs(shared: Cluster) -> None:
    queue = lane(shared, "change")
    job = shared.submit(*python(WEDGE_ALWAYS), queue=queue, watchdog_cap=0)
    wait_until(lambda: shared.client.job(job).step == 1, what="its beat")
    time.sleep(2.5)
    assert shared.client.job(job).state == "running", "the stall timeout is two minutes"
    done = shared.cli("config", "set", "stall_timeout_seconds", "1")
    try:
        assert done.returncode == 0, done.stderr
        assert shared.until(job, "failed").exit_code == 76
        job_setting = {e.name: e for e in shared.client.settings(job)}["stall_timeout_seconds"]
        assert (job_setting.value, job_setting.source) == (1.0, "cluster")
    finally:
        shared.cli("config", "unset", "stall_timeout_seconds")


# ---- GPUs, with a scripted probe


def test_gpu_health_trips_on_idle_only(shared: Cluster) -> None:
    """Four jobs side by side: idle, unreadable, busy now and then, and one that stalls only after
    its GPU fell idle."""
    script = shared.folder / "probe.jsonl"
    script.write_text("")
    shared.set_queue(
        "gpus",
        health_window_seconds=2,
        health_load_grace_seconds=2.5,
        stall_timeout_seconds=1,
        silence_limit_seconds=60,
    )
    shared.add_host(
        "gpus", queues=["gpus"], gpus=4, probe=f"scripted:tests.simulated.probe:{script}"
    )
    shared.client.pause_queue("gpus")
    idle, unknown, busy = (
        shared.submit(*python(SILENT), queue="gpus", gpus=1, watchdog_cap=0) for _ in range(3)
    )
    late = shared.submit(
        *python(BEAT + "\nbeat(1)\ntime.sleep(1000)"), queue="gpus", gpus=1, watchdog_cap=0
    )
    lines = [
        all_devices(idle, [0.0]),
        all_devices(unknown, [None]),
        all_devices(busy, [0.0, 0.0, 0.0, BUSY] * 40),
        all_devices(late, [BUSY] * 14 + [0.0]),
    ]
    script.write_text("".join(lines))
    shared.client.resume_queue("gpus")
    for job in (idle, unknown, busy, late):
        shared.until(job, "running", "failed")
    began = time.monotonic()
    failed = shared.until(idle, "failed")
    assert (failed.exit_code, failed.cause) == (78, "gpu_wedged")
    stalled = shared.until(late, "failed")
    assert stalled.exit_code in (76, 78)
    assert "not stalled" in shared.hosts["gpus"].log(), "a busy GPU re-arms"
    (attempt,) = shared.client.attempts(late)
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert (attempt.ended_at - attempt.started_at).total_seconds() > 3.5, (
        "it tripped while its GPU was busy"
    )
    time.sleep(max(0.0, 8 - (time.monotonic() - began)))
    for job, why in ((unknown, "unreadable is not idle"), (busy, "busy re-arms")):
        assert shared.client.job(job).state == "running", why
        shared.client.cancel(job, hard=True)
    assert shared.client.host("gpus").probe == "scripted", (
        "a scripted probe is shown wherever the host is"
    )
    assert "SCRIPTED PROBE" in shared.hosts["gpus"].log()


def all_devices(job: str, percents: list[float | None]) -> str:
    """Lines for a job whose device is not known before: every reading holds all four."""
    lines = []
    for percent in percents:
        gpus = [
            {"index": index, "utilisation_percent": percent, "memory_bytes": 1 << 30}
            for index in range(0 if percent is None else 4)
        ]
        tree = {"cpu_seconds": 1.0, "io_bytes": 0, "rss_bytes": 1 << 28}
        lines.append(json.dumps({"job": job, "gpus": gpus, "tree": tree}) + "\n")
    return "".join(lines)
