"""Make one report of where every rank of a hung run is: equal stacks once, with their ranks.

In a policy, before a hung group is ended:

    from debug_gather import gather_debug
    log.error("%s", gather_debug(ctx, group, "debug-report.txt"))

or, to see it work, with a command that runs for some seconds before the report and its end:

    python debug_gather.py --hosts 2 --local --after 30 -- python train.py

A collector on each host takes the stacks of its ranks and their children (py-spy, else gdb), says
which are stopped or stuck in the kernel, and which left a dump of NCCL's flight recorder
(TORCH_NCCL_DEBUG_INFO_TEMP_FILE). Collectors merge their reports up a tree of width `WIDTH`, so
that the script reads one message and no host more than `WIDTH`. Ranks that do not answer in time
are named. Copy it and edit it: `look_at_rank` says what a report holds. This file must be readable
on every host, and the hosts must reach each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from multiprocessing.connection import (
    Client,
    Listener,
)  # bytes and its keyed handshake only: nothing is unpickled
from pathlib import Path
from typing import Any

from holdfast.supervisor import (
    Context,
    Host,
    HostLost,
    Process,
    ProcessGroup,
    as_completed,
    get_message_queue,
)

WIDTH = 16
COLLECT_SECONDS = 60.0  # for a host's own stacks
MERGE_SECONDS = 20.0  # for each level of the tree
TOOL_SECONDS = 20.0
RENDEZVOUS_PORTS = range(29500, 30500)  # one at random: another run may share the machine
FLIGHT_FILES = "/tmp/nccl_trace_rank_"  # torch's default; the rank is appended

STATES = {
    "T": "is stopped by a signal (SIGSTOP, or a terminal)",
    "D": "is in the kernel and cannot be interrupted: a disk, a network file system or a driver",
    "Z": "has ended",
}

log = logging.getLogger("policy")
Report = dict[str, list[int]]  # by text: the ranks that it describes


# ---- on each host


def run_tool(*words: str) -> str | None:
    """Return a tool's output, or None if it is missing, fails, or takes too long."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None


def find_py_spy() -> str:
    """Find py-spy beside this interpreter or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def read_state(pid: int) -> str:
    """Read the kernel's letter for the process's state; "" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def find_stacks(pid: int, state: str) -> str | None:
    """Read the stacks of a process and its children, without the parts that differ between
    ranks."""
    freely = ["--nonblocking"] if state == "T" else []  # py-spy cannot stop a stopped process
    stacks = run_tool(find_py_spy(), "dump", "--pid", str(pid), "--subprocesses", *freely)
    if stacks is not None:
        stacks = re.sub(r"^Process \d+: .*?^Python v[^\n]*\n", "Process", stacks, flags=re.M | re.S)
        return re.sub(r"^(\s*Thread) (0x[0-9A-Fa-f]+|\d+)", r"\1", stacks, flags=re.M)
    stacks = run_tool("gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12")
    if stacks is None:
        return None
    threads = re.search(
        r"^Thread .*?(?=^\[Inferior|\Z)", stacks, flags=re.M | re.S
    )  # before the stacks gdb prints about itself
    return re.sub(r"0x[0-9a-f]+|LWP \d+|\b\d{3,}\b", "…", threads.group() if threads else stacks)


def look_at_rank(rank: int, pid: int) -> list[str]:
    """Describe a rank in texts that are the same for all ranks in the same state."""
    state = read_state(pid)
    stacks = find_stacks(pid, state)
    found = [
        stacks.strip()
        if stacks
        else "no stacks: neither py-spy nor gdb could look at it, or it has ended"
    ]
    if state in STATES:
        found.append(STATES[state])
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        flight = settings.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", FLIGHT_FILES)
        if os.path.exists(f"{flight}{rank}"):
            found.append(
                f"left a dump of NCCL's flight recorder on its host, {flight}<rank>; torch's "
                "fr_trace reads it"
            )
    return found


def merge(into: Report, other: Report) -> None:
    """Put two reports together: equal texts once."""
    for text, ranks in other.items():
        into[text] = sorted({*into.get(text, []), *ranks})


def collect() -> None:
    """Do one host's part: look, take the children's reports, pass all of them up."""
    queue = get_message_queue()
    hello = queue.recv()
    key = bytes.fromhex(hello["key"])
    with Listener((hello["address"], 0), backlog=WIDTH, authkey=key) as listener:
        queue.send({"port": listener.address[1]})
        order = queue.recv(lambda message: "ranks" in message)
        report: Report = {}
        lock = threading.Lock()

        def take_children() -> None:
            left = order["children"]
            while left:
                with (
                    contextlib.suppress(Exception),
                    listener.accept() as child,
                ):  # a stranger without the key is refused
                    heard = json.loads(child.recv_bytes())
                    left -= 1
                    with lock:
                        merge(report, heard)

        taking = threading.Thread(target=take_children, daemon=True)
        taking.start()
        deadline = time.monotonic() + order["seconds"]
        for rank, pid in order["ranks"]:
            found = look_at_rank(rank, pid)
            with lock:
                merge(report, {text: [rank] for text in found})
        taking.join(max(0.0, deadline - time.monotonic()))
        with lock:
            words = json.dumps(report).encode()
        if order["parent"] is None:
            queue.send({"report": words})
        else:
            with Client(tuple(order["parent"]), authkey=key) as parent:
                parent.send_bytes(words)


# ---- in the script


def gather_debug(
    ctx: Context, group: ProcessGroup, file: str | os.PathLike[str] | None = None
) -> str:
    """Return a report on a running group, and write it to `file`. Takes two minutes at most and
    ends nothing."""
    pids = find_pids(group)
    hosts = [host for host in group.hosts if host.attached]
    collectors = ctx.create_process_group(
        hosts, [sys.executable, os.path.abspath(__file__), "--collect"], name="debug{rank}"
    )
    try:
        key = secrets.token_hex(32)
        for process in collectors:
            with contextlib.suppress(HostLost):
                process.send(
                    {
                        "key": key,
                        "address": process.host.facts.address if process.host.facts else "",
                    }
                )
        ports: dict[Process, int] = {}
        with contextlib.suppress(TimeoutError):
            for future in as_completed(
                [process.recv() for process in collectors], timeout=MERGE_SECONDS
            ):
                if future.exception() is None:
                    ports[future.whom] = future.result()["port"]
        report = grow_tree(list(ports), ports, pids) if ports else {}
    finally:
        for ended in collectors.end(grace_seconds=1):
            ended.exception()
        collectors.forget()
    words = render(report, group.world_size)
    if file is not None:
        Path(file).write_text(words)
    return words


def find_pids(group: ProcessGroup) -> dict[Any, list[tuple[int, int]]]:
    """Return rank and pid of every running process, by host."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for process in group:
        pid = process.pid()
        if pid.done() and pid.exception() is None and not process.returncode().done():
            found.setdefault(process.host, []).append((process.rank, pid.result()))
    return found


def grow_tree(
    nodes: list[Process], ports: dict[Process, int], pids: dict[Any, list[tuple[int, int]]]
) -> Report:
    """Tell each collector its ranks, its parent and its number of children; return the first one's
    report."""
    answer = nodes[0].recv(lambda message: "report" in message)
    depths = [0] * len(nodes)
    for index in range(len(nodes)):
        depths[index] = depths[(index - 1) // WIDTH] + 1 if index else 0
    for index, process in enumerate(nodes):
        parent = nodes[(index - 1) // WIDTH] if index else None
        with contextlib.suppress(HostLost):  # its ranks are missing from the report
            process.send(
                {
                    "ranks": pids.get(process.host, []),
                    "parent": [parent.host.facts.address, ports[parent]]
                    if parent and parent.host.facts
                    else None,
                    "children": max(0, min(WIDTH, len(nodes) - 1 - index * WIDTH)),
                    "seconds": COLLECT_SECONDS + MERGE_SECONDS * (max(depths) - depths[index]),
                }
            )
    try:
        report: Report = json.loads(
            answer.result(COLLECT_SECONDS + MERGE_SECONDS * (max(depths) + 1))["report"]
        )
    except Exception as error:
        log.warning("the first collector said nothing: %s", error)
        return {}
    return report


def render(report: Report, world_size: int) -> str:
    """Put the stacks of the fewest ranks first: the others often wait for a rank that is
    elsewhere."""
    parts = [
        f"{name_ranks(ranks)}:\n{text}"
        for text, ranks in sorted(report.items(), key=lambda item: len(item[1]))
    ]
    missing = sorted(set(range(world_size)) - {rank for ranks in report.values() for rank in ranks})
    if missing:
        parts.append(
            f"{name_ranks(missing)}: nothing was heard of them; ended, or their hosts are lost or "
            "do not answer"
        )
    return "\n\n".join(parts) + "\n"


def name_ranks(ranks: list[int]) -> str:
    """Write [0, 1, 2, 5] as "4 ranks (0-2, 5)"."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"{len(ranks)} rank{'s' if len(ranks) > 1 else ''} ({words})"


def find_rendezvous(hosts: list[Host]) -> dict[str, str]:
    """Choose where torch's ranks meet: on the first host, once it is there. Raises HostLost."""
    hosts[0].hostname().result()
    address = hosts[0].facts.address if hosts[0].facts is not None else "127.0.0.1"
    return {"MASTER_ADDR": address, "MASTER_PORT": str(random.choice(RENDEZVOUS_PORTS))}


def main() -> int:
    """Run a command, report on it after some seconds, end it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument(
        "--after", type=float, default=30.0, help="seconds after the last rank started"
    )
    parser.add_argument("--report", default="debug-report.txt")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        hosts = ctx.request_hosts(options.hosts)
        if options.local:
            ctx.start_local_managers(options.hosts)
        env = find_rendezvous(hosts)
        group = ctx.create_process_group(
            hosts, options.command, options.per_host, env=env, name="train{rank}"
        )
        for future in as_completed([process.pid() for process in group]):
            future.result()
        time.sleep(options.after)
        print(gather_debug(ctx, group, options.report), end="")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--collect"]:
        collect()
    else:
        sys.exit(main())
