"""`make demo-fleet`: a pool from 0, 30 jobs, three disasters, one machine, in about a minute. Exit
0 only if every check holds.

The pool's machines are agents of this machine. 30 runs of the digits arrive at once, and it grows
to its `max`. Meanwhile:

1. one host gets kill -9, guardian and agent, while it runs a job
2. one host is frozen (SIGSTOP): it is there, and says nothing any more
3. one job wedges (GIL held in C)

Their work runs again, every job succeeds, and the pool shrinks to its `min`, which is 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import msgspec
from demo import (
    LIMITS,
    SCRATCH,
    TRAIN,
    Checks,
    call,
    conclude,
    log_of,
    say,
    start_up,
    stop_up,
    wait_for,
)

from holdfast.client import Client
from holdfast.core.fleet.actions import CycleSummary

POOL = "demo"
MIN, MAX, JOBS = 0, 4, 30
MACHINES = SCRATCH / "machines"
POOL_FILE = f"""
[pool.{POOL}]
provider = "local"
config = {{ folder = "{MACHINES}", grace_seconds = 2 }}
queues = ["demo"]
min = {MIN}
max = {MAX}
jobs_per_host = 3
idle_timeout = "4s"
heartbeat_timeout = "6s"
poll = "0.5s"

[[pool.{POOL}.offers]]
name = "one-slot"
cpu_slots = 1
usd_per_hour = 0.5
"""
# What happens to the hosts of two jobs, which are long enough to be caught in the act.
STRUCK = {"killed": (signal.SIGKILL, "got kill -9"), "frozen": (signal.SIGSTOP, "are frozen")}
DEEDS = {
    "hosts_rented": "spawned",
    "hosts_promoted": "promoted",
    "hosts_failed": "failed",
    "tasks_reset": "freed",
    "hosts_ended": "ended",
}


def find_processes(part: str) -> list[int]:
    """Return the processes that name a file of the demo with this part in its path."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(word.startswith(f"{SCRATCH}/") and part in word for word in words):
                found.append(int(entry.name))
    return sorted(found)


def submit_all(client: Client) -> dict[str, str]:
    """Submit the jobs, those with a part to play first; return their ids by name."""
    jobs = {}
    for name in [*STRUCK, "wedged", *(f"job-{n}" for n in range(4, JOBS + 1))]:
        steps, pace = ("400", "0.02") if name in STRUCK else ("150", "0.004")
        words = [*TRAIN, "--save", str(SCRATCH / f"{name}.npz")]
        words += ["--steps", steps, "--step-seconds", pace]
        words += ["--wedge-at", "100"] if name == "wedged" else []
        env = {"OPENBLAS_NUM_THREADS": "1"}
        jobs[name] = client.submit(argv=tuple(words), name=name, queue="demo", env=env).id
    return jobs


def strike(client: Client, jobs: dict[str, str]) -> dict[str, str]:
    """Kill one host and freeze another, each while its job trains; return their ids."""
    struck = {}
    for name, (number, word) in STRUCK.items():
        wait_for(f"{name} to train", lambda job=jobs[name]: (client.job(job).step or 0) >= 40, 90)
        host = client.attempts(jobs[name])[-1].host_ids[0]
        pids, runs = find_processes(host), find_processes(f"/{name}.npz")
        for pid in pids:
            os.kill(pid, number)
        say(f"{name}: guardian and agent {pids} of {host}, above process {runs}, {word}")
        struck[name] = host
    return struck


def watch_jobs(client: Client, jobs: dict[str, str]) -> set[str]:
    """Wait until every job has ended; return those that were seen to run twice at once."""
    said, doubled = 0, set()

    def all_ended() -> bool:
        nonlocal said
        doubled.update(name for name in STRUCK if len(find_processes(f"/{name}.npz")) > 1)
        states = Counter(str(job.state) for job in client.jobs(queue="demo"))
        done = sum(states[state] for state in ("succeeded", "failed", "cancelled"))
        if done >= said + 10:
            say(f"{done} of {len(jobs)} jobs have ended")
            said = done
        return done == len(jobs)

    wait_for(f"{len(jobs)} jobs to end", all_ended, 120)
    return doubled


def wait_for_quiet(client: Client) -> None:
    """Wait until the pool is as small as it may be."""

    def is_small() -> bool:
        status = client.pool_cycles(POOL, limit=1)[0].status
        return (status.active_hosts, status.total_hosts) == (MIN, MIN)

    wait_for("the pool to shrink to its min", is_small, 60)


def play(client: Client, checks: Checks) -> None:
    """Make the pool, submit, strike, wait, and check."""
    call("queues", "set", "demo", *[f"{key}={value}" for key, value in LIMITS.items()])
    call("config", "set", "sync_interval_seconds", "1")
    (SCRATCH / "pool.toml").write_text(POOL_FILE)
    call("pools", "create", "-f", "pool.toml")
    checks.expect("the pool begins with no host", not find_processes(MACHINES.name))
    jobs = submit_all(client)
    say(f"{JOBS} jobs are submitted")
    struck = strike(client, jobs)
    doubled = watch_jobs(client, jobs)
    checks.expect("no job was seen to run twice at once", not doubled, ", ".join(doubled))
    say("the pool falls idle")
    wait_for_quiet(client)
    cycles = list(reversed(client.pool_cycles(POOL, limit=500)))
    show_cycles(cycles)
    judge_jobs(client, jobs, struck, checks)
    judge_pool(client, cycles, struck, checks)


def show_cycles(cycles: list[CycleSummary]) -> None:
    """Print the cycles at which something changed, as a table over time."""
    print(f"\nThe pool over time: those of its {len(cycles)} cycles at which something changed\n")
    print("     at  queued  starting  active  ending  did")
    last = None
    for cycle in cycles:
        status, actions = cycle.status, msgspec.to_builtins(cycle.actions)
        did = ", ".join(f"{word} {actions[key]}" for key, word in DEEDS.items() if actions[key])
        counts = (status.spawning_hosts, status.active_hosts, status.terminating_hosts)
        if did or counts != last:
            at = (cycle.timestamp - cycles[0].timestamp).total_seconds()
            starting, active, ending = counts
            print(
                f"{at:6.1f}s  {status.queued_tasks:6}  {starting:8}  {active:6}  {ending:6}  {did}"
            )
        last = counts
    print(flush=True)


def judge_jobs(
    client: Client, jobs: dict[str, str], struck: dict[str, str], checks: Checks
) -> None:
    """Compare what became of the jobs with the claims."""
    ends = {name: client.job(job) for name, job in jobs.items()}
    sad = [f"{name}: {job.reason}" for name, job in ends.items() if job.state != "succeeded"]
    checks.expect(f"all {JOBS} jobs succeeded", not sad, "; ".join(sad))
    for name, host in struck.items():
        attempts = client.attempts(jobs[name])
        checks.expect(
            f"{name}: its job ran again, elsewhere, at no charge to its retries",
            len(attempts) == 2
            and attempts[0].host_ids == (host,) != attempts[1].host_ids
            and attempts[1].retry_count == 0,
            attempts[0].reason,
        )
        checks.expect(
            f"{name}: it went on from its own file", "going on from step" in log_of(jobs[name])
        )
    attempts = client.attempts(jobs["wedged"])
    checks.expect(
        "wedged: its watchdog ended it, exit code 76, and it ran again",
        [a.exit_code for a in attempts] == [76, 0],
        attempts[0].reason,
    )
    others = [name for name in jobs if name not in (*struck, "wedged")]
    again = [name for name in others if len(client.attempts(jobs[name])) != 1]
    checks.expect(
        f"the other {len(others)} noticed nothing: one attempt each", not again, again or ""
    )


def judge_pool(
    client: Client, cycles: list[CycleSummary], struck: dict[str, str], checks: Checks
) -> None:
    """Compare what the pool did with the claims."""
    sizes = [c.status.spawning_hosts + c.status.active_hosts for c in cycles]
    checks.expect(
        f"the pool grew from 0 to {MAX} hosts, and never over its max",
        (sizes[0], max(sizes)) == (0, MAX),
        f"from {sizes[0]} to {max(sizes)}",
    )
    faults = {str(e.host_id): e.message for e in client.events(kinds=["host.failed"])}
    checks.expect(
        "the two hosts, and no others, were found in error",
        set(faults) == set(struck.values()),
        "; ".join(faults.values()),
    )
    errors = [c.error for c in cycles if c.error]
    checks.expect("no cycle failed", not errors, errors or "")
    last = cycles[-1].status
    checks.expect(
        f"the pool shrank to its min, {MIN}", last.total_hosts == MIN, f"{last.total_hosts}"
    )
    left = find_processes(MACHINES.name)
    checks.expect(
        "no process of its machines is left, the frozen ones included", not left, left or ""
    )
    status = client.pool(POOL)
    checks.expect(
        "what it cost is on record, and nothing runs up a bill",
        status.spent_today_usd > 0 == status.usd_per_hour,
        f"${status.spent_today_usd:.4f} at $0.50 an hour for each host",
    )


def end_leftovers() -> list[int]:
    """Kill what is left of the demo, for a pool's machines outlive the controller; return it."""
    left = find_processes("")
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def main() -> int:
    """Run the demo; return its exit code."""
    say("starting `holdfast up` in a scratch folder: its own PostgreSQL and a controller")
    up = start_up(slots=0)
    url = (SCRATCH / "holdfast-data" / "url").read_text().strip()
    say(f"up: {url}")
    checks = Checks()
    try:
        os.chdir(SCRATCH)  # where the client finds the token
        with Client() as client:
            play(client, checks)
    finally:
        code = stop_up(up)
        left = end_leftovers()
    checks.expect("`up` stopped cleanly", code in (0, 130), f"exit code {code}")
    checks.expect("no process of the demo is left", not left, left or "")
    return conclude(checks)


if __name__ == "__main__":
    sys.exit(main())
