"""Heartbeats of 16 000 hosts, one a second each way: what they cost the supervisor, which hosts it
loses, how soon it sees a freeze."""

from __future__ import annotations

from typing import Any

from bench.figures import Figures, Line, spread
from bench.processes import need_descriptors, run_module
from bench.scale import Scale, say

name = "supervisor-heartbeats"
budget = (
    "no healthy host lost, loss of a frozen one seen <= 3.5 s, longest turn < 0.25 s, <= 1 core"
)
CORES = 1.0
LOSS_SECONDS = 3.5
NOMINAL_LOSS_SECONDS = 3.0
# A heartbeat may be so late beyond the third (`session_fleet.SLACK_SECONDS`): what a turn may take
# before it shows.
TURN_SECONDS = 0.25
_PATIENCE_SECONDS = 900


def run(scale: Scale) -> Figures:
    """Raw ZeroMQ first, then Holdfast, with hosts, connections, frames and encryption alike."""
    hosts, processes = scale.pick(16_000, 40), scale.pick(4, 1)
    windows, seconds, frozen = scale.pick(9, 1), scale.pick(10.0, 0.5), scale.pick(5, 1)
    need_descriptors(hosts)
    raw = _run("raw", hosts, processes, scale.pick(3, 1), seconds)
    say(f"  {hosts} hosts: raw {_cores(raw)}")
    found = _run("holdfast", hosts, processes, windows, seconds, frozen)
    say(f"  {hosts} hosts: Holdfast {_cores(found)}, {found['lost']} lost")
    return _sum_up(hosts, windows * seconds, raw, found)


def _run(side: str, *arguments: object) -> dict[str, Any]:
    return run_module("supervisor_beats", side, *arguments, patience_seconds=_PATIENCE_SECONDS)


def _cores(found: dict[str, Any]) -> str:
    return f"{spread(found['frames']).median:,.0f} frames/s for {spread(found['process']).median:.2f} of a core"


def _sum_up(hosts: int, seconds: float, raw: dict[str, Any], found: dict[str, Any]) -> Figures:
    what = f"{hosts} hosts, a heartbeat a second each way"
    process, worst, losses = (spread(found[key]) for key in ("process", "worst_seconds", "losses"))
    lines = (
        Line(
            what=f"the bus's thread, {what}", unit="cores", value=spread(found["thread"]),
            limit_name="raw ROUTER's thread", limit=spread(raw["thread"]),
        ),
        Line(
            what="its process, encryption included", unit="cores", value=process,
            limit_name="raw ROUTER's process", limit=spread(raw["process"]),
            budget=f"<= {CORES:g}", met=process.median <= CORES,
        ),
        Line(
            what=f"healthy hosts lost in {seconds:g} "
            "s", unit="hosts", value=spread([found["lost"]]),
            limit_name="all that were there", limit=spread([hosts]), budget="0", met=found["lost"] == 0,
        ),
        Line(
            what="longest turn of the bus in each window", unit="s", value=worst,
            limit_name="what a heartbeat may be late", limit=spread([TURN_SECONDS]),
            budget=f"< {TURN_SECONDS:g}", met=worst.high < TURN_SECONDS,
        ),
        Line(
            what=f"frozen host to its loss, beside {hosts} others", unit="s", value=losses,
            limit_name="three missed heartbeats", limit=spread([NOMINAL_LOSS_SECONDS]),
            budget=f"<= {LOSS_SECONDS} s", met=losses.high <= LOSS_SECONDS,
        ),
        Line(
            what="memory of the supervisor per "
            "host", unit="kB", value=spread([found["bytes_per_host"] / 1000]),
            limit_name="ROUTER alone", limit=spread([raw["bytes_per_host"] / 1000]),
        ),
    )  # fmt: skip
    return Figures(name=name, lines=lines, notes=_make_notes(raw, found))


def _make_notes(raw: dict[str, Any], found: dict[str, Any]) -> tuple[str, ...]:
    frames, bare = spread(found["frames"]).median, spread(raw["frames"]).median
    theirs, bare_theirs = spread(found["hosts"]).median, spread(raw["hosts"]).median
    return (
        f"Taken {frames:,.0f} frames a second, raw ZeroMQ {bare:,.0f}, and as many sent. The "
        f"simulated hosts used {theirs:.2f} cores of this "
        f"machine beside it, the raw peers {bare_theirs:.2f}. The supervisor's threads stood "
        f"{spread(found['waited']).median:.2f} of each second "
        f"in the queue for a core (raw: {spread(raw['waited']).median:.2f}); what is over 1 says "
        "that the figures are the machine's.",
        f"Connecting took {found['connect_seconds']:.0f} s, raw {raw['connect_seconds']:.0f} s: "
        "handshakes of CURVE, 64 at a time for each "
        "process of hosts.",
    )
