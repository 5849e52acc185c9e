"""Idle submit to process start, against an HTTP round trip that forks and execs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from bench.figures import Figures, Line, percentile, spread
from bench.http import Connection
from bench.limits.bare_server import start_bare_server
from bench.scale import Scale, say, wait_until
from bench.system import Place, Scratch, start_up

name = "latency"
budget = "p50 <= 4 x bare, p99 <= 6 x bare, over loopback"
_PROGRAM = [
    shutil.which("date") or "/bin/date",
    "+%s%N",
]  # tells the wall clock in nanoseconds, with less start than any interpreter
_PAUSE_SECONDS = 0.15
_READ_SECONDS = 0.05  # after a submission: a read of its log would take the cores from its start


def run(scale: Scale) -> Figures:
    """Milliseconds from before the submission is sent to the clock reading of the started
    program."""
    samples = scale.pick(200, 5)
    limits: list[float] = []
    found: list[float] = []
    with Scratch() as scratch:
        url, _ = start_bare_server(scratch)
        place = start_up(scratch, slots=2)
        with Connection(url) as bare:
            for number in range(samples + 2):
                first = _sample_bare(bare, scratch.folder / "stdout")
                time.sleep(_PAUSE_SECONDS)
                second = _sample_job(place)
                time.sleep(_PAUSE_SECONDS)
                if number >= 2:  # the first two warm both up
                    limits.append(first)
                    found.append(second)
                if number % 50 == 0:
                    say(f"  sample {number}/{samples}: bare {first:.2f} ms, job {second:.2f} ms")
    lines = []
    for percent, times in ((50, 4.0), (99, 6.0)):
        value, limit = percentile(found, percent), percentile(limits, percent)
        lines.append(
            Line(
                what=f"submit to process start, p{percent}",
                unit="ms",
                value=spread([value]),
                limit_name="bare HTTP + fork-exec",
                limit=spread([limit]),
                budget=f"<= {times:g} x",
                met=value <= times * limit,
            )
        )
    note = (
        f"{samples} samples at idle, one every {2 * _PAUSE_SECONDS:g} s. The start is the wall "
        "clock that the job's program "
        f"(`{' '.join(_PROGRAM)}`, granularity 1 ns) prints as its first act, so exec and loading "
        "are in both columns. "
        f"Slowest {max(found):.1f} ms, bare {max(limits):.1f} ms."
    )
    return Figures(name=name, lines=tuple(lines), notes=(note,))


def _sample_bare(bare: Connection, stdout: Path) -> float:
    stdout.unlink(missing_ok=True)
    body = json.dumps({"argv": _PROGRAM, "stdout": str(stdout)}).encode()
    began = time.time_ns()
    status, _ = bare.request("POST", "/spawn", body)
    if status != 200:
        raise RuntimeError(f"the bare server answered {status}")
    text = wait_until(
        lambda: (stdout.read_text() if stdout.exists() else "") or None,
        "the bare program's clock",
        10,
    )
    return (int(text) - began) / 1e6


def _sample_job(place: Place) -> float:
    body = json.dumps({"argv": _PROGRAM}).encode()
    began = time.time_ns()
    status, answer = place.connection.request("POST", "/v1/jobs", body)
    if status != 201:
        raise RuntimeError(f"not submitted: HTTP {status} {answer[:300]!r}")
    job = json.loads(answer)["id"]
    time.sleep(_READ_SECONDS)

    def read() -> str | None:
        status, data = place.connection.request("GET", f"/v1/jobs/{job}/logs?stream=stdout")
        return data.decode().strip() if status == 200 and data.endswith(b"\n") else None

    return (
        int(wait_until(read, f"the clock of job {job}", 30, every_seconds=_READ_SECONDS)) - began
    ) / 1e6
