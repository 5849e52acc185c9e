"""The supervisor's bus: round trips, launches, a broadcast to a large fleet, the loss of a host,
memory per host."""

from __future__ import annotations

from typing import Any

from bench.figures import Figures, Line, spread
from bench.processes import need_descriptors, run_module
from bench.scale import Scale, say
from bench.supervisor_fleet import LARGE_HEARTBEAT_SECONDS

name = "supervisor"
budget = ">= 27,000 round trips/s, >= 18,000 launches/s and >= 0.5 of raw ZeroMQ, broadcast <= 1.3 of raw ZeroMQ, loss seen <= 3.5 s"
ROUND_TRIPS = 27_000
LAUNCHES = 18_000
BROADCAST_RATIO = 1.3
LOSS_SECONDS = 3.5
NOMINAL_LOSS_SECONDS = 3.0
_PAYLOAD_BYTES = 64
# A launch on the wire: command, names and numbers of eight processes.
_LAUNCH_BYTES = 96
_PER_HOST = 8
_PATIENCE_SECONDS = 600


def run(scale: Scale) -> Figures:
    """Every fleet is simulated hosts on real connections, CURVE on both sides of the comparison."""
    small, large = scale.pick(1000, 20), scale.pick(16_000, 40)
    need_descriptors(large)
    rounds = scale.rounds
    frames, bulk_frames, fleets, wide, wide_raw = [], [], [], [], []
    for number in range(1, scale.pick(3, 1) + 1):
        frames.append(_run("supervisor_raw", small, 1, _PER_HOST, _PAYLOAD_BYTES, rounds))
        bulk_frames.append(_run("supervisor_raw", small, 1, 1, _LAUNCH_BYTES, rounds))
        fleets.append(
            _run("supervisor_fleet", small, 1, _PER_HOST, _PAYLOAD_BYTES, rounds, "messages")
        )
        say(
            f"  {small} hosts, {number}: raw {_rate(frames[-1], small)}, round trips "
            f"{_rate(fleets[-1], small)}"
        )
    spread_over = scale.pick(4, 1)
    for number in range(1, scale.pick(2, 1) + 1):
        wide_raw.append(_run("supervisor_raw", large, spread_over, 1, _PAYLOAD_BYTES, rounds))
        wide.append(
            _run("supervisor_fleet", large, spread_over, 1, _PAYLOAD_BYTES, rounds, "broadcast")
        )
        say(
            f"  {large} hosts, {number}: raw {wide_raw[-1]['seconds']} s, broadcast "
            f"{wide[-1]['seconds']} s"
        )
    loss = _run("supervisor_fleet", small, 1, 1, _PAYLOAD_BYTES, scale.pick(10, 1), "loss")
    return _sum_up(small, large, frames, bulk_frames, fleets, wide_raw, wide, loss)


def _run(module: str, *arguments: object) -> dict[str, Any]:
    return run_module(module, *arguments, patience_seconds=_PATIENCE_SECONDS)


def _rate(found: dict[str, Any], hosts: int) -> str:
    return f"{hosts * _PER_HOST / spread(found['seconds']).median:,.0f}/s"


def _rates(found: list[dict[str, Any]], count: int, key: str = "seconds") -> list[float]:
    return [count / seconds for one in found for seconds in one[key]]


def _sum_up(
    small: int,
    large: int,
    frames: list[dict[str, Any]],
    bulk_frames: list[dict[str, Any]],
    fleets: list[dict[str, Any]],
    wide_raw: list[dict[str, Any]],
    wide: list[dict[str, Any]],
    loss: dict[str, Any],
) -> Figures:
    count = small * _PER_HOST
    trips, launches = spread(_rates(fleets, count)), spread(_rates(fleets, count, "launch_seconds"))
    broadcast = spread([seconds for one in wide for seconds in one["seconds"]])
    raw_broadcast = spread([seconds for one in wide_raw for seconds in one["seconds"]])
    raw_launches = spread(_rates(bulk_frames, count))
    lost = spread(loss["seconds"])
    memory = spread([one["bytes_per_host"] / 1000 for one in wide])
    raw_memory = spread([one["bytes_per_host"] / 1000 for one in wide_raw])
    lines = (
        Line(
            what=f"message round trips, {small} hosts, {count} processes", unit="1/s", value=trips,
            limit_name="raw ZeroMQ, a frame each", limit=spread(_rates(frames, count)),
            budget=f">= {ROUND_TRIPS:,}", met=trips.median >= ROUND_TRIPS,
        ),
        Line(
            what=f"launches to pid, {small} hosts, {count} processes", unit="1/s", value=launches,
            limit_name="raw ZeroMQ, a frame a host", limit=raw_launches,
            budget=f">= 0.5 x, >= {LAUNCHES:,}",
            met=launches.median >= max(LAUNCHES, 0.5 * raw_launches.median),
        ),
        Line(
            what=f"broadcast to {large} hosts and all answers", unit="s", value=broadcast,
            limit_name="raw ZeroMQ", limit=raw_broadcast, budget=f"ratio <= {BROADCAST_RATIO}",
            met=broadcast.median / raw_broadcast.median <= BROADCAST_RATIO,
        ),
        Line(
            what=f"frozen host to its loss, beside {small} others", unit="s", value=lost,
            limit_name="three missed heartbeats", limit=spread([NOMINAL_LOSS_SECONDS]),
            budget=f"<= {LOSS_SECONDS} s", met=lost.high <= LOSS_SECONDS,
        ),
        Line(
            what=f"memory of the supervisor per host, {large} hosts", unit="kB", value=memory,
            limit_name="ROUTER alone", limit=raw_memory,
        ),
    )  # fmt: skip
    strays = sum(one["lost"] for one in [*fleets, *wide, loss])
    return Figures(name=name, lines=lines, notes=_make_notes(wide, wide_raw, strays))


def _make_notes(
    wide: list[dict[str, Any]], wide_raw: list[dict[str, Any]], strays: int
) -> tuple[str, ...]:
    return (
        "All hosts are simulated on this machine and share its cores with the supervisor and the "
        "encryption of both sides. "
        "Round trips: the script calls send() and recv() for every process. The supervisor puts "
        "what is meant for one host "
        "into one frame, raw ZeroMQ is given a frame for each message, so a ratio over 1 is the "
        "batching's. While it is "
        "measured the supervisor also exchanges heartbeats with every host, one a second, one in "
        f"{LARGE_HEARTBEAT_SECONDS:g} s in "
        "the large fleet, whose simulated hosts beat on the same cores; raw ZeroMQ exchanges none.",
        f"Connecting the large fleet took {wide[0]['connect_seconds']:.0f} s with Holdfast, "
        f"{wide_raw[0]['connect_seconds']:.0f} s bare: handshakes of CURVE. Healthy hosts wrongly "
        f"lost in all runs: {strays}.",
    )
