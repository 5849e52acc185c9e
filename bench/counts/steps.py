"""The steps of the acts. Each step waits until its effect is there."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.agents import Agent
from bench.cases.pages import Browser, _Connection
from bench.counts.rig import Rig, crowding
from bench.http import Connection
from bench.processes import end_process
from bench.scale import wait_until
from bench.system import holdfast_command
from holdfast.wire.agent import SyncRequest, decode_sync_answer, encode

RANKS = 8
HOSTS = 100
_GANG = 'read word < {gate}.$HOLDFAST_RANK; test "$word" = end'
_CLIENT = """
import sys
from countedcalls import double
for line in sys.stdin:
    assert list(double.map(range(100))) == [2 * n for n in range(100)]
    print("done", flush=True)
"""
_numbers = itertools.count()


def _make_gates(rig: Rig, count: int) -> Path:
    gate = rig.folder / f"gate-{next(_numbers)}"
    for rank in range(count):
        os.mkfifo(f"{gate}.{rank}")
    return gate


def _open_gates(gate: Path, words: dict[int, str]) -> None:
    for rank, word in words.items():
        Path(f"{gate}.{rank}").write_text(f"{word}\n")


# ---- hosts that are simulated


def join_hosts(rig: Rig) -> None:
    """Register the simulated hosts, which have no slots, where they are not there yet."""
    if "hosts" in rig.kept:
        return
    parts = urlsplit(rig.place.url)
    agents = [Agent(f"sim-{n}", parts.hostname or "", parts.port or 0) for n in range(HOSTS)]

    async def join() -> None:
        for agent in agents:
            await agent.register(rig.place.token, 0, ("syncs",))

    rig.kept["loop"], rig.kept["hosts"] = asyncio.new_event_loop(), agents
    rig.kept["loop"].run_until_complete(join())
    rig.ends.callback(rig.kept["loop"].close)
    for agent in agents:
        rig.ends.callback(agent.close)


async def _sync(agent: Agent) -> None:
    agent.seq += 1
    request = SyncRequest(
        incarnation=agent.incarnation, seq=agent.seq, settings_rev=agent.settings_rev
    )
    status, answer = await agent.post("/v1/agent/sync", agent.key, encode(request))
    assert status == 200, answer[:300]
    agent.settings_rev = decode_sync_answer(answer).settings_rev


def sync_in_turn(rig: Rig) -> None:
    """Let each simulated host say that there is nothing new, one after the other."""

    async def sync() -> None:
        for agent in rig.kept["hosts"]:
            await _sync(agent)

    rig.kept["loop"].run_until_complete(sync())


def sync_at_once(rig: Rig) -> None:
    """Let all simulated hosts say at once that there is nothing new."""

    async def sync() -> None:
        await asyncio.gather(*map(_sync, rig.kept["hosts"]))

    rig.kept["loop"].run_until_complete(sync())


# ---- plain jobs


def submit(rig: Rig, count: int) -> None:
    """Submit so many jobs, in one request, that no host takes."""
    jobs = [{"argv": ["true"], "queue": "nowhere"}] * count
    rig.place.connection.call("POST", "/v1/jobs/batch", {"jobs": jobs})


def submit_at_once(rig: Rig) -> None:
    """Submit 48 jobs, each by itself, from eight connections."""

    def submit_some(connection: Connection) -> None:
        for _ in range(6):
            connection.call("POST", "/v1/jobs", {"argv": ["true"], "queue": "nowhere"})

    connections = [Connection(rig.place.url, rig.place.token) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(submit_some, connections))
    for connection in connections:
        connection.close()


def run_job(rig: Rig, queue: str) -> None:
    """Submit a job, wait until it runs, let it end, and wait until it has ended."""
    gate = _make_gates(rig, 1)
    argv = ["sh", "-c", f"read word < {gate}.0"]
    job_id = rig.client.submit(argv, queue=queue).id
    rig.until(job_id, "running")
    rig.settle()
    _open_gates(gate, {0: "end"})
    rig.until(job_id, "succeeded")


def run_many(rig: Rig, queue: str, count: int) -> None:
    """Submit so many jobs that do nothing, in one request, and wait for their ends."""
    jobs = [{"argv": ["true"], "queue": queue}] * count
    rig.place.connection.call("POST", "/v1/jobs/batch", {"jobs": jobs})
    rig.until_empty(queue)


# ---- gangs


def no_gang(rig: Rig) -> None:
    """Check that no gang is left of an act that failed."""
    assert "gang" not in rig.kept


def start_frail_gang(rig: Rig) -> None:
    """Submit a gang of which no failure is forgiven, and wait until all its ranks run."""
    start_gang(rig, retries=0)


def start_gang(rig: Rig, retries: int = 1) -> None:
    """Submit a gang, and wait until all its ranks run."""
    gate = _make_gates(rig, RANKS)
    retry: dict[str, Any] = {"max_retries": retries, "retry_delay": 0.0}
    argv = ["sh", "-c", _GANG.format(gate=gate)]
    job_id = rig.client.submit(argv, queue="host16", tasks=RANKS, retry=retry).id
    rig.until(job_id, "running")
    rig.kept["gang"] = (job_id, gate)


def restart_gang(rig: Rig) -> None:
    """Let a rank fail, and wait until all run again."""
    job_id, gate = rig.kept["gang"]
    _open_gates(gate, {3: "fail"})
    rig.until_attempt(job_id, 2)


def fail_gang(rig: Rig) -> None:
    """Let a rank fail whose failure is not forgiven."""
    job_id, gate = rig.kept.pop("gang")
    _open_gates(gate, {3: "fail"})
    rig.until(job_id, "failed")


def end_gang(rig: Rig) -> None:
    """Let all ranks end, and wait until the gang has."""
    job_id, gate = rig.kept.pop("gang")
    _open_gates(gate, dict.fromkeys(range(RANKS), "end"))
    rig.until(job_id, "succeeded")


# ---- calls, pages, sessions


def warm_calls(rig: Rig) -> None:
    """Have 100 calls done while time goes on, because a loop's look starts their executor."""
    _ask_calls(rig)
    wait_until(
        lambda: _heard(rig, 0.5) or not rig.pass_time(2.0, 0.9, 28.0),
        "the first 100 calls to be done",
        60 * crowding(),
    )


def map_calls(rig: Rig) -> None:
    """Have 100 calls done by an executor that is there."""
    _ask_calls(rig)
    wait_until(lambda: _heard(rig, 0.5), "100 calls to be done", 60 * crowding())


def _ask_calls(rig: Rig) -> None:
    if "calls" not in rig.kept:
        rig.kept["calls"] = _start_client(rig)
    stdin = rig.kept["calls"].stdin
    stdin.write("go\n")
    stdin.flush()


def _heard(rig: Rig, seconds: float) -> bool:
    """Return whether the calls are done, within so many seconds."""
    stdout = rig.kept["calls"].stdout
    return bool(select.select([stdout], [], [], seconds)[0]) and stdout.readline() == "done\n"


def _start_client(rig: Rig) -> subprocess.Popen[str]:
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=rig.folder,
        env=rig.place.environ() | {"PYTHONPATH": str(rig.folder)},
    )
    rig.ends.callback(end_process, client, signal.SIGTERM, 10.0)
    return client


def open_page(rig: Rig) -> None:
    """Open the page of the jobs."""
    if "browser" not in rig.kept:
        rig.kept["browser"] = Browser(rig.place)
    browser = rig.kept["browser"]
    with _Connection(browser.address) as connection:
        browser.get(connection, "/jobs")


def hold_job(rig: Rig) -> None:
    """Start a job that runs until it is let go."""
    gate = _make_gates(rig, 1)
    job_id = rig.client.submit(["sh", "-c", f"read word < {gate}.0"], queue="host2").id
    rig.until(job_id, "running")
    rig.kept["held"] = (job_id, gate)


def let_job_go(rig: Rig) -> None:
    """Let that job end."""
    job_id, gate = rig.kept.pop("held")
    _open_gates(gate, {0: "end"})
    rig.until(job_id, "succeeded")


def run_exec(rig: Rig) -> None:
    """Run a program in that job, by the command."""
    job_id, _ = rig.kept["held"]
    command = [*holdfast_command(), "exec", job_id, "-n", "--", "true"]
    subprocess.run(
        command, check=True, env=rig.place.environ(), capture_output=True, timeout=60 * crowding()
    )
