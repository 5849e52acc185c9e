"""Leases and fences: which host may run a job and until when; two never do at once (LEASE-1 to 3,
FENCE-1)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.wire import agent as wire
from tests.system.chronicle import CODE, check_no_overlap, lives_of
from tests.system.cluster import MARGIN, TTL, Cluster, Host, signal_all
from tests.waits import crowding, is_alive, wait_exit, wait_until

pytestmark = pytest.mark.slow


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


LONG_TTL = 300.0  # where something else than the lease must end a task, and be seen to on the slowest machine


def start_chronicle(
    cluster: Cluster,
    queue: str,
    *more: str,
    seconds: float = 120,
    lease_ttl: float = TTL,
    **fields: Any,
) -> tuple[str, Path]:
    """A job that writes down its life, running, and the file it writes to."""
    file = cluster.folder / f"{queue}.chronicle"
    job = cluster.submit(
        sys.executable,
        CODE,
        str(file),
        str(seconds),
        *more,
        queue=queue,
        lease_ttl=lease_ttl,
        **fields,
    )
    cluster.until(job, "running")
    wait_until(lambda: file.exists() and file.stat().st_size, what="the job's first words")
    return job, file


def identity_of(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((host.state / "host.json").read_text())
    return found


def post_sync(
    cluster: Cluster, host: Host, *reports: wire.TaskReport, incarnation: str = ""
) -> httpx.Response:
    """A sync as this host's agent would send it, seq 0: older than any real one."""
    who = identity_of(host)
    request = wire.SyncRequest(
        incarnation=incarnation or who["incarnation"], seq=0, tasks=list(reports)
    )
    headers = {"Authorization": f"Bearer {who['host_key']}", "Content-Type": "application/json"}
    url = f"{cluster.controller.url}/v1/agent/sync"
    return httpx.post(
        url, content=wire.encode(request), headers=headers, timeout=20, trust_env=False
    )


def test_silent_hosts_lose_their_jobs_only_when_both_clocks_say_so(cluster: Cluster) -> None:
    """Three faults side by side: a black hole that stays, one that heals between the two clocks,
    and a frozen agent."""
    queues = ("hole", "healed", "frozen")
    # Its guardian replaces the agent later than any machine gets to the end of this.
    more = {"frozen": {"frozen_seconds": 3600.0}}
    hosts = {
        name: cluster.add_host(
            name, queues=[cluster.set_queue(name)], proxied=True, **more.get(name, {})
        )
        for name in queues
    }
    jobs = {name: start_chronicle(cluster, name) for name in queues}
    spare = cluster.add_host("spare", cpu_slots=4)
    old = {name: hosts[name].task_pids(jobs[name][0]) for name in queues}
    agent = wait_until(hosts["frozen"].agent_pid)
    began = boottime()
    for name in ("hole", "healed"):
        hosts[name].proxy.black_hole = True  # type: ignore[union-attr]  # it was started above
    os.kill(agent, signal.SIGSTOP)  # the guardian alone must keep the time

    wait_until(
        lambda: not any(is_alive(p) for p in old["healed"]),
        TTL + 5,
        what="the guardian to end the task",
    )
    hosts["healed"].proxy.restore()  # type: ignore[union-attr]  # it was started above
    for name in queues:
        job, file = jobs[name]
        cluster.until_attempt(job, 2, seconds=12)
        wait_until(
            lambda job=job, file=file: 2 in lives_of(file, job),
            what="the second attempt's first words",
        )
        lives = check_no_overlap(file, job)
        ended, again = lives[1][1] - began, lives[2][0] - began
        # The last renewal was at most an interval (and a slow box's second) before the fault.
        early, late = 2.5 * crowding(), 4 * crowding()
        assert TTL - MARGIN - early < ended < TTL - MARGIN + 0.5, (name, ended)
        if name != "healed":
            assert TTL + MARGIN - early < again < TTL + MARGIN + late, (name, again)
        first = cluster.client.attempts(job)[0]
        assert (first.outcome, first.cause, first.charged_to) == (
            "requeued",
            "agent_transient",
            "infra",
        ), name
    assert cluster.client.attempts(jobs["healed"][0])[0].exit_code == 77, (
        "the host said itself that the lease was lost"
    )
    assert {cluster.client.attempts(jobs[n][0])[1].host for n in ("hole", "frozen")} == {"spare"}

    # The partition heals. What the host then reports of the old attempt is stale and changes
    # nothing.
    before = {name: cluster.snapshot(jobs[name][0]) for name in queues}
    refused = len(cluster.controller.messages("a stale report was refused"))
    hosts["hole"].proxy.restore()  # type: ignore[union-attr]  # it was started above
    os.kill(agent, signal.SIGCONT)
    wait_until(
        lambda: len(cluster.controller.messages("a stale report was refused")) > refused,
        what="the refusal of the stale report",
    )
    wait_until(
        lambda: not cluster.client.host("hole").dead and cluster.client.host("hole").running == 0
    )
    for name in queues:
        assert cluster.snapshot(jobs[name][0]) == before[name], name
    assert all(spare.task_pids(jobs[name][0]) for name in ("hole", "frozen"))


def test_a_stale_report_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    host = cluster.add_host("one", queues=[cluster.set_queue("one")])
    other = cluster.add_host("two", queues=[cluster.set_queue("two")])
    job, file = start_chronicle(cluster, "one", seconds=60)
    old_incarnation = identity_of(host)["incarnation"]
    host.kill_guardian()
    wait_until(lambda: not host.marked_pids(), what="its tasks to die with it")
    host.start()
    cluster.until_attempt(job, 2)
    running = cluster.client.job(job)
    old_key, key = TaskKey(job, 0, running.epoch - 1), TaskKey(job, 0, running.epoch)
    assert cluster.client.attempts(job)[0].epoch < running.epoch
    on = cluster.host_of(job)
    off = other if on is host else host
    before = cluster.snapshot(job)

    success = TaskFacts(exit_code=0)
    trip = TaskFacts(trip=Trip(watchdog="time_limit", exit_code=75, reason="made up"), signal=9)  # type: ignore[arg-type]  # plain words stand for the typed value in a test
    for stale in (
        old_key,
        TaskKey(job, 0, 1),
        TaskKey(job, 0, running.epoch + 1),
        TaskKey(job, 1, running.epoch),
    ):
        for facts in (success, trip):
            answer = post_sync(cluster, on, wire.TaskReport(key=stale, state="ended", facts=facts))
            assert answer.status_code == 200
            told = wire.decode_sync_answer(answer.content)
            assert (
                [r.key for r in told.refused],
                [r.status for r in told.refused],
                told.acked,
            ) == ([stale], [409], [])
    answer = post_sync(cluster, on, wire.TaskReport(key=old_key, state="running", pid=1))
    assert wire.decode_sync_answer(answer.content).lost == [old_key], (
        "a host that still runs it is told to end it"
    )
    assert cluster.snapshot(job) == before, "a stale epoch changed something"

    answer = post_sync(cluster, off, wire.TaskReport(key=key, state="ended", facts=success))
    assert [r.key for r in wire.decode_sync_answer(answer.content).refused] == [key], (
        "a host touched another's lease"
    )
    assert cluster.snapshot(job) == before, "another host changed something"

    answer = post_sync(
        cluster,
        host,
        wire.TaskReport(key=key, state="ended", facts=success),
        incarnation=old_incarnation,
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_incarnation")
    assert cluster.snapshot(job) == before, "an old incarnation changed something"
    assert cluster.client.job(job).state == "running"
    check_no_overlap(file, job)


def test_evidence_does_not_wait_for_the_lease(cluster: Cluster) -> None:
    """kill -9 of the whole host's Holdfast, then a start: a new incarnation, and the job runs again
    in seconds."""
    host = cluster.add_host("killed", queues=[cluster.set_queue("killed")])
    job, file = start_chronicle(cluster, "killed", lease_ttl=LONG_TTL)
    first = cluster.client.host("killed").incarnation
    pids = [host.guardian.pid, host.agent_pid()]
    signal_all(pids, signal.SIGKILL)
    host.guardian.wait()
    host.start()
    wait_until(
        lambda: 2 in lives_of(file, job),
        LONG_TTL / 10,
        what="the second attempt: a new incarnation is evidence",
    )
    check_no_overlap(file, job)
    assert cluster.client.host("killed").incarnation != first
    attempt = cluster.client.attempts(job)[0]
    assert (attempt.outcome, attempt.cause) == ("requeued", "agent_transient")


def test_an_operators_word_frees_a_dead_machine_at_once(cluster: Cluster) -> None:
    """A machine that stands still, tasks and all; `hosts terminate`; and then it comes back."""
    host = cluster.add_host("still", queues=[cluster.set_queue("still")])
    job, file = start_chronicle(cluster, "still", lease_ttl=LONG_TTL)
    cluster.add_host("spare")
    frozen = [*host.freeze(), *host.marked_pids(job)]
    signal_all(frozen, signal.SIGSTOP)
    done = cluster.cli("hosts", "terminate", "still", "--reason", "burnt down")
    assert done.returncode == 0, done.stderr
    cluster.until_attempt(job, 2)
    wait_until(lambda: 2 in lives_of(file, job))
    check_no_overlap(file, job)
    assert [a.host for a in cluster.client.attempts(job)] == ["still", "spare"]
    before = cluster.snapshot(job)
    # It rises from the dead: it learns that it was given up, ends its task, and goes (AGT-4).
    signal_all(frozen, signal.SIGCONT)
    wait_until(lambda: not host.task_pids(job), LONG_TTL / 10, what="the lost task to be ended")
    assert wait_exit(host.guardian, 20) == 0
    assert cluster.snapshot(job) == before
    assert cluster.client.job(job).state == "running"
    # Its key opens nothing any more; started again, it asks for a join token.
    host.start()
    wait_until(lambda: "the controller refuses this host's key" in host.log(), what="a refusal")
    assert [h.name for h in cluster.client.hosts()] == ["spare"]


def test_a_machine_that_slept_through_its_lease_ends_its_task_when_it_wakes(
    cluster: Cluster,
) -> None:
    host = cluster.add_host("asleep", queues=[cluster.set_queue("asleep")])
    job, file = start_chronicle(cluster, "asleep")
    cluster.add_host("spare")
    frozen = [*host.freeze(), *host.marked_pids(job)]
    signal_all(frozen, signal.SIGSTOP)
    cluster.until_attempt(job, 2, seconds=TTL + MARGIN + 6)
    wait_until(lambda: 2 in lives_of(file, job))
    before = cluster.snapshot(job)
    woken = boottime()
    # All but the agent, which might hear of it from the controller: the guardian alone must look at
    # its deadlines.
    agent = host.agent_pid()
    signal_all([pid for pid in frozen if pid != agent], signal.SIGCONT)
    wait_until(
        lambda: not host.task_pids(job), 5, what="the guardian to see that the lease is over"
    )
    late = lives_of(file, job)[1][1] - woken
    assert late < 0.5 * crowding(), (
        f"the old attempt lived on for {late:.2f} s after the machine woke"
    )
    signal_all([agent], signal.SIGCONT)
    wait_until(
        lambda: cluster.controller.messages("a stale report was refused"),
        what="its late report to be refused",
    )
    wait_until(lambda: cluster.client.host("asleep").running == 0)
    assert cluster.snapshot(job) == before
