"""How soon the exit of a process is known: to the agent through the guardian, and to the
controller's record."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from datetime import datetime
from pathlib import Path

import msgspec

from bench.cases.trip import _submit
from bench.figures import Figures, Line, spread
from bench.scale import Scale, say, wait_until
from bench.system import ROOT, Place, Scratch, clean_environment, start_up

name = "exit"
budget = "exit seen by the agent <= 3 ms"
_AGENT = Path(__file__).resolve().parent.parent / "exit_agent.py"
_GUARDIAN = """
import sys
import msgspec
from holdfast.agent.guardian.loop import GuardianConfig, run_guardian
from pathlib import Path
given = msgspec.json.decode(sys.argv[1])
sys.exit(run_guardian(GuardianConfig(**{**given, "state_dir": Path(given["state_dir"])})))
"""


def run(scale: Scale) -> Figures:
    """Milliseconds from the kill (or the last act of the process) until each sees it."""
    say("  guardian to agent")
    bare, seen = _measure_guardian(scale.pick(200, 5))
    say("  agent to controller")
    bare_end, recorded = _measure_record(scale.pick(50, 2))
    return Figures(
        name=name,
        lines=(
            Line(
                what="kill to end seen by the agent",
                unit="ms",
                value=spread(seen),
                limit_name="own pidfd",
                limit=spread(bare),
                budget="<= 3 ms",
                met=spread(seen).median <= 3.0,
            ),
            Line(
                what="exit to the controller's record",
                unit="ms",
                value=spread(recorded),
                limit_name="own pidfd",
                limit=spread(bare_end),
            ),
        ),
        notes=(
            "Agent: a stand-in under a real guardian kills its task and times both its own pidfd "
            "and the guardian's message. "
            "Record: `ended_at` of the job in a running `holdfast up`, database clock against the "
            "wall clock of this machine.",
        ),
    )


def _measure_guardian(samples: int) -> tuple[list[float], list[float]]:
    with Scratch() as scratch:
        result = scratch.folder / "result.json"
        config = {
            "state_dir": str(scratch.folder / "state"),
            "host_id": f"bench-{os.getpid()}-{time.monotonic_ns()}",
            "agent_argv": [sys.executable, str(_AGENT), str(result), str(samples)],
            "die_with_parent": True,
        }
        command = [sys.executable, "-c", _GUARDIAN, msgspec.json.encode(config).decode()]
        guardian = scratch.start(command, "guardian", environ=clean_environment(), cwd=ROOT)

        def check() -> bool:
            if guardian.poll() is not None:
                raise RuntimeError(
                    f"the guardian ended with {guardian.returncode}: {scratch.read_log('guardian')}"
                )
            return result.exists()

        try:
            wait_until(check, "the stand-in agent's readings", 120)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{scratch.read_log('guardian')}") from None
        found = json.loads(result.read_text())
    return found["bare"], found["seen"]


def _measure_record(samples: int) -> tuple[list[float], list[float]]:
    bare, recorded = [], []
    with Scratch() as scratch:
        place = start_up(scratch)
        for _ in range(samples):
            one, two = _sample_record(place, scratch.folder)
            bare.append(one)
            recorded.append(two)
            time.sleep(0.1)
    return bare, recorded


def _sample_record(place: Place, folder: Path) -> tuple[float, float]:
    """A job that ends with 0 when a line comes through a fifo: (its exit by pidfd, the record), in
    ms after the line."""
    fifo, pid_file = folder / "fifo", folder / "pid"
    for path in (fifo, pid_file):
        path.unlink(missing_ok=True)
    os.mkfifo(fifo)
    script = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; read line < {fifo}"
    job = json.loads(_submit(place, {"shell": script}))["id"]
    pid = int(
        wait_until(lambda: pid_file.read_text() if pid_file.exists() else None, "the job's pid", 20)
    )
    time.sleep(0.2)  # until its start is on record too, and all is idle
    descriptor = os.pidfd_open(pid)
    try:
        began = time.time()
        fifo.write_text("\n")
        if not select.select([descriptor], [], [], 10)[0]:
            raise TimeoutError(f"process {pid} of job {job} did not end")
        seen = time.time()
    finally:
        os.close(descriptor)

    def read() -> str | None:
        record = place.connection.call("GET", f"/v1/jobs/{job}")
        return record["ended_at"] if record["state"] == "succeeded" else None

    ended = datetime.fromisoformat(wait_until(read, f"job {job} succeeds", 20))
    return (seen - began) * 1000, (ended.timestamp() - began) * 1000
