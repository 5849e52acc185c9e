"""Hundreds of hosts that are told to end, every process of each in an order of chance.

`python -m tests.system.agent.overlap_trial TRIES [LANES]` starts a `holdfast up` and two hosts a
lane. In each try a job runs on one of the lane's hosts, whose guardian, agent, other children of the
agent, and tasks get TERM, INT or KILL in any order. Right: nothing of attempt 1 is written after the
first line of attempt 2, a task that saves in its grace has saved, and nothing is charged. Prints
what was wrong, and exits 1 where anything was.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.client import Client

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
SCRIPT = """
out={lines}
[ "$HOLDFAST_ATTEMPT" = 1 ] || {{ echo "$EPOCHREALTIME 2 run" >>$out; exit 0; }}
trap 'echo "$EPOCHREALTIME 1 term" >>$out; sleep 0.4; echo "$EPOCHREALTIME 1 saved" >>$out; exit {code}' TERM INT
while :; do echo "$EPOCHREALTIME 1 run" >>$out; sleep 0.02; done
"""


def list_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_agent(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"holdfast.agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def list_descendants(pid: int) -> list[int]:
    found = list_children(pid)
    return [*found, *(below for child in found for below in list_descendants(child))]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    give_up_at = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > give_up_at:
            raise TimeoutError(what)
        time.sleep(0.05)
    return found


class Lane:
    """Two hosts that only this lane's jobs may use."""

    def __init__(self, number: int, url: str, client: Client, folder: Path) -> None:
        self.name = f"lane{number}"
        self.url, self.client, self.folder = url, client, folder
        self.chance = random.Random(number)
        self.hosts = {f"{self.name}-{i}": self.start(f"{self.name}-{i}") for i in range(2)}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        words = ["holdfast", "agent", "--join", self.url, "--state", str(self.folder / name)]
        words += ["--name", name, "--slots", "1", "--label", f"lane={self.name}"]
        secret = self.client.create_token(role="join").secret  # good for one host
        with open(self.folder / f"{name}.log", "ab") as log:
            env = {**os.environ, "HOLDFAST_JOIN_TOKEN": secret}
            return subprocess.Popen(words, stdout=log, stderr=log, env=env, start_new_session=True)

    def count_active(self) -> int:
        return sum(h.name in self.hosts and h.state == "active" for h in self.client.hosts())

    def try_once(self, number: int) -> list[str]:
        wait_for(lambda: self.count_active() == 2, f"{self.name}: two hosts")
        lines = self.folder / f"{self.name}-{number}.lines"
        code = self.chance.choice([0, 1, 143])
        script = SCRIPT.format(lines=lines, code=code)
        argv = ("bash", "-c", script)
        job = self.client.submit(argv=argv, host_labels={"lane": self.name}).id
        wait_for(lambda: lines.exists() and lines.stat().st_size > 300, f"{job} to run")
        (task,) = self.client.tasks(job)
        name = task.host_name
        assert name is not None
        guardian = self.hosts.pop(name)
        told = self.tell_all(guardian.pid)
        self.hosts[f"{self.name}-{number + 2}"] = self.start(f"{self.name}-{number + 2}")
        wait_for(lambda: self.client.job(job).state in ("succeeded", "failed"), f"{job} to end")
        guardian.wait(60)
        return [f"{job} ({told}, exit {code}): {text}" for text in self.judge(job, lines)]

    def tell_all(self, guardian: int) -> str:
        agents = [pid for pid in list_children(guardian) if is_agent(pid)]
        others = [pid for agent in agents for pid in list_children(agent)]
        known = {guardian, *agents, *others}
        tasks = [pid for pid in list_descendants(guardian) if pid not in known]
        steps = [("guardian", pid, self.chance.choice([TERM, TERM, INT])) for pid in [guardian]]
        steps += [("agent", pid, self.chance.choice([TERM, TERM, INT, KILL])) for pid in agents]
        steps += [("other", pid, self.chance.choice([TERM, INT, KILL])) for pid in others]
        if self.chance.random() < 0.7:
            number = self.chance.choice([TERM, INT])
            steps += [("task", pid, number) for pid in tasks]
        self.chance.shuffle(steps)
        pause = self.chance.choice([0.0, 0.0, 0.001, 0.02, 0.1])
        for _, pid, number in steps:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(pause)
        words = ", ".join(f"{who} {signal.Signals(n).name}" for who, _, n in steps)
        return f"{words}, {pause:g} s apart"

    def judge(self, job: str, lines: Path) -> list[str]:
        rows = [line.split() for line in lines.read_text().splitlines()]
        one = [float(row[0]) for row in rows if row[1] == "1"]
        two = [float(row[0]) for row in rows if row[1] == "2"]
        wrong = []
        if two and one[-1] > two[0]:
            wrong.append(f"OVERLAP of {one[-1] - two[0]:.3f} s")
        if any(row[2] == "term" for row in rows) and not any(row[2] == "saved" for row in rows):
            wrong.append("GRACE lost")
        if not any(row[2] == "term" for row in rows):
            wrong.append("GRACE not given")
        first = min(self.client.attempts(job), key=lambda attempt: attempt.number)
        if (first.cause, first.charged_to) != ("host_drained", "nothing"):
            wrong.append(f"CHARGED {first.cause} to {first.charged_to}: {first.reason}")
        return wrong


def main(tries: int, lanes: int) -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-overlap-") as name:
        folder = Path(name)
        words = ["holdfast", "up", "--slots", "1", "--port", "0"]
        with open(folder / "up.log", "ab") as log:
            up = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
        made: list[Lane] = []
        try:
            address = folder / "holdfast-data" / "url"
            wait_for(address.exists, "holdfast up")
            os.chdir(folder)
            client = Client()
            url = address.read_text().strip()
            made += [Lane(n, url, client, folder) for n in range(lanes)]
            wrong: list[str] = []

            def run(lane: Lane, count: int) -> None:
                for number in range(count):
                    try:
                        wrong.extend(lane.try_once(number))
                    except Exception as error:
                        wrong.append(f"{lane.name}, try {number}: {error!r}")
                        return
                    print(f"{lane.name}: {number + 1} of {count}", flush=True)

            share = -(-tries // lanes)
            threads = [threading.Thread(target=run, args=(lane, share)) for lane in made]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            living = [up, *(host for lane in made for host in lane.hosts.values())]
            for process in living:
                process.send_signal(signal.SIGTERM)
            for process in living:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
    print(*wrong, f"{len(wrong)} wrong of {share * lanes} tries", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3))
