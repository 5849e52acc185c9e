"""`make demo`: five jobs, four disasters, one machine, under a minute. Exit 0 only if every check
holds.

1. a reference run: digits, trained to the end without trouble
2. the same run, stuck on purpose (GIL held in C): trip, forensics, requeue, on from its own file,
   the same accuracy
3. a run whose process gets kill -9: it fails with the reason; `retry` takes it to the end
4. a job whose agent gets kill -9, and which does not notice
5. a job that only loads memory, slowly and without a beat, in a queue with short limits: it must
   not be killed
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "demo-run"
HOLDFAST = [sys.executable, "-m", "holdfast"]
TRAIN = [sys.executable, str(ROOT / "examples" / "digits" / "train.py")]
BEGAN = time.monotonic()
# Of a wedge both watchdogs would trip, and the one that trips first would depend on the machine's load.
LIMITS = {"stall_timeout_seconds": 3, "stall_sample_interval_seconds": 0.5}
STRICT = {
    **LIMITS,
    "health_watch": "on",
    "health_window_seconds": 3,
    "health_load_grace_seconds": 4,
    "health_sample_interval_seconds": 0.5,
}


def say(text: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


def call(*words: str) -> Any:
    """Run one `holdfast` command with --json and return what it printed."""
    at = words.index("--") if "--" in words else len(words)
    done = subprocess.run(
        [*HOLDFAST, *words[:at], "--json", *words[at:]],
        cwd=SCRATCH,
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode:
        raise SystemExit(
            f"holdfast {' '.join(words)} failed ({done.returncode}): {done.stderr.strip()}"
        )
    return json.loads(done.stdout)


def submit(name: str, argv: list[str], queue: str = "demo", **env: str) -> str:
    """Submit one job and return its id."""
    pairs = [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
    return str(call("submit", "--queue", queue, "--name", name, *pairs, "--", *argv)["id"])


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 40.0) -> Any:
    """Poll until `condition` returns something; end the demo once nothing has moved for
    `seconds`."""
    moved, deadline = look_at_work(), time.monotonic() + seconds
    while not (value := condition()):
        time.sleep(0.15)
        if time.monotonic() < deadline:
            continue
        if moved == (moved := look_at_work()):
            logs = SCRATCH / "holdfast-data" / "log"
            raise SystemExit(
                f"nothing moved for {seconds:g} s in the wait for {what}; logs: {logs}"
            )
        deadline = time.monotonic() + seconds
    return value


def look_at_work() -> object:
    """Return what changes while the demo goes on: the states and steps of its jobs, and the sizes
    of the logs."""
    data = SCRATCH / "holdfast-data"
    sizes = [(path.name, path.stat().st_size) for path in sorted((data / "log").glob("*"))]
    jobs = call("jobs") if (data / "url").exists() else []
    return sizes, [(job["id"], job["state"], job["attempts"], job["step"]) for job in jobs]


def ended(job: str) -> Any:
    """Return the job once it has ended, else None."""
    record = call("show", job)
    return record if record["state"] in ("succeeded", "failed", "cancelled") else None


def log_of(job: str) -> str:
    """Return the output of the job's last attempt."""
    done = subprocess.run(
        [*HOLDFAST, "logs", job], cwd=SCRATCH, capture_output=True, text=True, timeout=30
    )
    return done.stdout


def process_of(job: str) -> int | None:
    """Return the pid of the job's program, found by the mark in its environment. Its keeper may carry
    the mark too, and a keeper's death is the host's failure."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marked = f"HOLDFAST_JOB_ID={job}\0".encode() in (entry / "environ").read_bytes()
                if marked and b"task-keeper" not in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
    return None


def agent_of(guardian_root: int) -> int | None:
    """Return the pid of the agent process below `up`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if (
                b"holdfast.agent" in words
                and b"HOLDFAST_GUARDIAN_FD=" in environ
                and str(SCRATCH).encode() in environ + b" ".join(words)
            ):
                return int(entry.name)
    return None


def accuracy(job: str) -> str:
    """Return the accuracy that the job printed."""
    found = re.search(r"accuracy ([\d.]+)", log_of(job))
    return found[1] if found else "none"


class Checks:
    """The claims of the demo, and those that did not hold."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def expect(self, claim: str, holds: bool, seen: object = "") -> None:
        """Record one claim."""
        say(f"{'ok  ' if holds else 'NOT '} {claim}" + (f" ({seen})" if str(seen) else ""))
        if not holds:
            self.failed.append(claim)


def start_up(slots: int = 6) -> subprocess.Popen[bytes]:
    """Start `holdfast up` in the scratch folder and wait until it answers."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir()
    log = (SCRATCH / "up.log").open("wb")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    up = subprocess.Popen(
        [*HOLDFAST, "up", "--slots", str(slots), "--port", "0"],
        cwd=SCRATCH,
        stdout=log,
        stderr=log,
        env=environ,
    )

    def ready() -> bool:
        if up.poll() is not None:
            raise SystemExit(
                f"`holdfast up` ended with {up.returncode}:\n{(SCRATCH / 'up.log').read_text()}"
            )
        return (SCRATCH / "holdfast-data" / "url").exists()

    wait_for("holdfast up to be ready", ready, 60)
    wait_for("the agent to register", lambda: [h for h in call("hosts") if h["state"] == "active"])
    return up


def tell_story(jobs: dict[str, str]) -> None:
    """Print each job's attempts and events in words."""
    print("\nThe story of each job\n=====================")
    for name, job in jobs.items():
        record = call("show", job)
        print(f"\n{name}  ({job}): {record['reason']}")
        attempts = call("attempts", job)
        for a in attempts:
            span = _seconds(a["started_at"] or a["reserved_at"], a["ended_at"])
            kept = (
                ""
                if a["outcome"] == "succeeded"
                else f", time lost {span - _useful(a):.1f} s of {span:.1f} s"
            )
            cause = f", cause {a['cause']}" if a["cause"] else ""
            print(
                f"  attempt {a['number']} on {a['host']}: {a['outcome']}{cause}, exit code "
                f"{a['exit_code']}{kept}"
            )
            print(f"    {a['reason']}")
        for event in call("events", "--job", job):
            print(f"    {event['at'][11:19]}  {event['kind']:<20} {event['message'][:90]}")


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _useful(attempt: dict[str, Any]) -> float:
    """Return the seconds of an attempt up to its last beat, which its next attempt need not repeat."""
    last = next(
        (
            m["facts"].get("trip", {}).get("evidence", {}).get("silent_seconds")
            for m in attempt["members"]
            if m.get("facts")
        ),
        None,
    )
    span = _seconds(attempt["started_at"] or attempt["reserved_at"], attempt["ended_at"])
    return max(0.0, span - last) if last is not None else 0.0


def play(up: subprocess.Popen[bytes], checks: Checks) -> dict[str, str]:
    """Submit the jobs, kill processes, wait, and check."""
    for queue, limits in (("demo", LIMITS), ("strict", STRICT)):
        call("queues", "set", queue, *[f"{k}={v}" for k, v in limits.items()])
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    run = [*TRAIN, "--steps", "600", "--step-seconds", "0.004"]
    counting = (
        "import holdfast, time\n"
        "for i in holdfast.track(range(1, 121)):\n"
        "    print('line', i, flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    jobs = {
        "reference": submit(
            "reference", [*run, "--save", str(SCRATCH / "reference.npz")], **one_thread
        ),
        "wedged": submit(
            "wedged",
            [*run, "--save", str(SCRATCH / "wedged.npz"), "--wedge-at", "250"],
            **one_thread,
        ),
        "killed": submit(
            "killed",
            [*run, "--save", str(SCRATCH / "killed.npz"), "--step-seconds", "0.02"],
            **one_thread,
        ),
        "orphaned": submit("orphaned", [sys.executable, "-c", counting]),
        "loading": submit(
            "loading", [sys.executable, str(ROOT / "examples" / "slow_load.py")], "strict"
        ),
    }
    say("five jobs are submitted: reference, wedged, killed, orphaned, loading")

    def step_of(name: str) -> int:
        return call("show", jobs[name])["step"] or 0

    victim = wait_for(
        "the third job's process", lambda: step_of("killed") >= 60 and process_of(jobs["killed"])
    )
    os.kill(victim, signal.SIGKILL)
    say(f"killed: its process {victim} got kill -9")
    counting_pid = wait_for("the fourth job's process", lambda: process_of(jobs["orphaned"]))
    agent = wait_for("the agent's process", lambda: agent_of(up.pid))
    os.kill(agent, signal.SIGKILL)
    say(f"orphaned: the agent {agent} above process {counting_pid} got kill -9")
    wait_for("another agent", lambda: (agent_of(up.pid) or agent) != agent)
    checks.expect(
        "the job under the dead agent is still the same process",
        process_of(jobs["orphaned"]) == counting_pid,
        counting_pid,
    )

    failed = wait_for("the killed job to fail", lambda: ended(jobs["killed"]))
    checks.expect(
        "a killed process fails its job and says how",
        failed["state"] == "failed" and failed["exit_code"] == 137,
        failed["reason"],
    )
    call("retry", jobs["killed"])
    say("killed: `holdfast retry` asks for another attempt")
    judge(jobs, checks)
    return jobs


def judge(jobs: dict[str, str], checks: Checks) -> None:
    """Wait for every end and compare it with the claims."""
    for name, job in jobs.items():
        record = wait_for(f"{name} to end", lambda job=job: ended(job))
        checks.expect(f"{name} succeeded", record["state"] == "succeeded", record["reason"])
    first = call("attempts", jobs["wedged"])
    checks.expect(
        "the wedge was a stall, exit code 76, requeued",
        [a["exit_code"] for a in first] == [76, 0],
        first[0]["reason"],
    )
    checks.expect(
        "its stacks were kept", "section" in json.dumps(call("show", jobs["wedged"], "--forensics"))
    )
    checks.expect("it went on from its own file", "going on from step" in log_of(jobs["wedged"]))
    wanted = accuracy(jobs["reference"])
    checks.expect(
        "same accuracy with and without the wedge",
        accuracy(jobs["wedged"]) == wanted != "none",
        wanted,
    )
    checks.expect(
        "same accuracy after the kill -9",
        accuracy(jobs["killed"]) == wanted,
        accuracy(jobs["killed"]),
    )
    lines = [int(n) for n in re.findall(r"^line (\d+)$", log_of(jobs["orphaned"]), re.M)]
    checks.expect(
        "no line of output was lost with the agent",
        lines == list(range(1, 121)),
        f"{len(lines)} lines",
    )
    checks.expect("it noticed nothing: one attempt", len(call("attempts", jobs["orphaned"])) == 1)
    checks.expect(
        "the slow loader was not killed: one attempt", len(call("attempts", jobs["loading"])) == 1
    )


def main() -> int:
    """Run the demo; return its exit code."""
    say("starting `holdfast up` in a scratch folder: its own PostgreSQL, a controller, one agent")
    up = start_up()
    say(f"up: {(SCRATCH / 'holdfast-data' / 'url').read_text().strip()}")
    checks = Checks()
    try:
        jobs = play(up, checks)
        tell_story(jobs)
    finally:
        code = stop_up(up)
    print()
    checks.expect("`up` stopped cleanly", code in (0, 130), f"exit code {code}")
    return conclude(checks)


def stop_up(up: subprocess.Popen[bytes]) -> int:
    """Stop `holdfast up` as Ctrl-C does, and return its exit code."""
    up.send_signal(signal.SIGINT)
    try:
        return up.wait(30)
    except subprocess.TimeoutExpired:
        up.kill()
        return -9


def conclude(checks: Checks) -> int:
    """Say how the checks went; return the demo's exit code. The scratch folder stays after a failure."""
    if checks.failed:
        say(
            f"{len(checks.failed)} of the checks failed: {'; '.join(checks.failed)}. "
            f"Logs: {SCRATCH}"
        )
        return 1
    shutil.rmtree(SCRATCH, ignore_errors=True)
    say("all checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
