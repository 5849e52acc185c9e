"""What a Holdfast that has nothing to do costs."""

from __future__ import annotations

import time

from bench.figures import Figures, Line, spread
from bench.limits.bare_server import start_bare_server
from bench.processes import list_family, read_command, read_memory_mb, sum_cpu_seconds
from bench.scale import Scale, say
from bench.system import ROLES, Scratch, name_role, start_up

name = "idle"
budget = "controller < 2 % CPU, < 120 MB"


def run(scale: Scale) -> Figures:
    """CPU in percent of one core and resident memory, after a settling time."""
    seconds = scale.pick(20.0, 1.0)
    with Scratch() as scratch:
        _, bare = start_bare_server(scratch)
        place = start_up(scratch)
        time.sleep(scale.pick(8.0, 0.5))
        family = {pid: read_command(pid) for pid in list_family(place.process.pid)}
        groups: dict[str, list[int]] = {role: [] for role in ROLES}
        for pid, command in family.items():
            groups[name_role(command, pid == place.process.pid)].append(pid)
        if not groups["controller"]:
            raise RuntimeError(f"which of these is the controller? {family}")
        groups["bare"] = [bare.pid]
        cpu: dict[str, list[float]] = {role: [] for role in groups}
        for _ in range(scale.pick(3, 1)):
            before = {role: sum_cpu_seconds(pids) for role, pids in groups.items()}
            began = time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            for role, pids in groups.items():
                cpu[role].append(100 * (sum_cpu_seconds(pids) - before[role]) / took)
            say(
                "  "
                + ", ".join(
                    f"{role} {readings[-1]:.2f} %" for role, readings in cpu.items() if groups[role]
                )
            )
        memory = {role: [read_memory_mb(pid) for pid in pids] for role, pids in groups.items()}
    lines: list[Line] = []
    for role in ROLES:
        if not groups[role]:
            continue
        ours = role == "controller"
        # Shared buffers are mapped by every server process: only the proportional sum is a size.
        size = (
            sum(m[1] for m in memory[role])
            if role == "postgres"
            else sum(m[0] for m in memory[role])
        )
        lines += [
            Line(
                what=f"{role}: CPU",
                unit="%",
                value=spread(cpu[role]),
                limit_name="idle bare uvicorn" if ours else "",
                limit=spread(cpu["bare"]) if ours else None,
                budget="< 2 %" if ours else "",
                met=spread(cpu[role]).median < 2.0 if ours else None,
            ),
            Line(
                what=f"{role}: memory ({'proportional' if role == 'postgres' else 'resident'})",
                unit="MB",
                value=spread([size]),
                limit_name="idle bare uvicorn" if ours else "",
                limit=spread([memory["bare"][0][0]]) if ours else None,
                budget="< 120 MB" if ours else "",
                met=size < 120.0 if ours else None,
            ),
        ]
    found = "; ".join(
        f"{role}: {len(pids)}" for role, pids in groups.items() if pids and role != "bare"
    )
    others = [family[pid][:100] for pid in groups["other"]]
    return Figures(
        name=name,
        lines=tuple(lines),
        notes=(f"Processes: {found}.{f' Other: {others}' if others else ''}",),
    )
