"""Run a command on N hosts; when its ranks stop making steps, say which and start all again.

    python progress_watchdog.py --hosts 2 --per-host 8 -- python train.py
    python progress_watchdog.py --hosts 2 --local -- python train.py      # everything on this machine

How long a step may take is measured, not configured: `Progress.limit_seconds`. In the training
loop:

    queue = get_message_queue()
    queue.send({"step": step})                    # after each step
    queue.send({"section": "eval"})               # no steps for a while; "checkpoint" likewise
    queue.send({"section": None})                 # steps again

Copy it and edit it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import queue
import random
import statistics
import sys
import time
from collections import deque
from typing import Any

from holdfast.supervisor import Context, Future, Host, HostLost, Process, ProcessGroup

FIRST_STEP_SECONDS = 1800.0  # until steps can be measured: imports, data, compilation
SECTION_SECONDS = {"eval": 3600.0, "checkpoint": 1800.0}
OTHER_SECTION_SECONDS = 1800.0
TIMES_MEDIAN = 10.0
LEAST_SECONDS = 60.0  # a step may always take this long
STEPS_MEASURED = 50
DELAY_SECONDS = 1.0
RENDEZVOUS_PORTS = range(29500, 30500)  # one at random: another run may share the machine

log = logging.getLogger("policy")


class Progress:
    """One rank's reports of its steps. `now` is monotonic seconds."""

    def __init__(
        self,
        now: float,
        least_seconds: float = LEAST_SECONDS,
        first_seconds: float = FIRST_STEP_SECONDS,
    ) -> None:
        self.least_seconds, self.first_seconds = least_seconds, first_seconds
        self.step = -1
        self.section: str | None = None
        self.since = now  # of the last step, or of the beginning or end of a section
        self.durations: deque[float] = deque(maxlen=STEPS_MEASURED)
        self.cut = True  # the time that runs now began with something other than a step

    def take(self, message: Any, now: float) -> None:
        """Learn from a message. A time that includes a section counts for no step."""
        if not isinstance(message, dict):
            return
        if "section" in message:
            self.section = message["section"]
        elif "step" in message:
            if not self.cut and self.section is None:
                self.durations.append(now - self.since)
            self.step = message["step"]
        else:
            return
        self.cut = "section" in message
        self.since = now

    def limit_seconds(self) -> float:
        """The time for which this rank may be silent from now on."""
        if self.section is not None:
            return SECTION_SECONDS.get(self.section, OTHER_SECTION_SECONDS)
        if not self.durations:
            return self.first_seconds
        return max(self.least_seconds, TIMES_MEDIAN * statistics.median(self.durations))

    def describe(self) -> str:
        """Say where the rank is."""
        return f"step {self.step}" + (f", in {self.section}" if self.section else "")


def find_hang(progress: dict[Process, Progress], now: float) -> str | None:
    """Name the ranks that hang: those furthest behind, because ranks wait for each other, and the
    first to be late need not be at fault."""
    late = [
        process for process, seen in progress.items() if now - seen.since > seen.limit_seconds()
    ]
    if not late:
        return None
    least = min(progress[process].step for process in late)
    behind = [process for process in late if progress[process].step == least]
    silent = now - progress[behind[0]].since
    named = ", ".join(str(process) for process in behind[:5]) + (
        f" and {len(behind) - 5} more" if len(behind) > 5 else ""
    )
    return f"no progress for {silent:.0f} s: {named} at {progress[behind[0]].describe()}"


def watch(group: ProcessGroup, options: argparse.Namespace) -> str | None:
    """Wait for the end of a run, or of its progress. Return None when all ended with 0."""
    happened: queue.SimpleQueue[tuple[Process, Future[Any]]] = queue.SimpleQueue()
    progress = {
        process: Progress(time.monotonic(), options.least, options.first) for process in group
    }

    def listen(process: Process) -> None:
        process.recv().add_done_callback(lambda future: happened.put((process, future)))

    for process in group:
        process.returncode().add_done_callback(lambda future: happened.put((future.whom, future)))
        listen(process)
    look_at = time.monotonic()
    while progress:
        with contextlib.suppress(queue.Empty):
            process, future = happened.get(timeout=0.5)
            if future.about != "returncode":
                if future.exception() is None and process in progress:
                    progress[process].take(future.result(), time.monotonic())
                    listen(process)
            else:
                error = future.exception()
                if error is not None or future.result() != 0:
                    return str(error or f"{process} ended with {future.result()}")
                progress.pop(process)
        now = time.monotonic()
        # A rank whose message waits is not late; and a look goes over all ranks.
        if now >= look_at and happened.empty():
            look_at = now + 0.5
            hang = find_hang(progress, now)
            if hang is not None:
                return hang
    return None


def find_rendezvous(hosts: list[Host]) -> dict[str, str]:
    """Choose where torch's ranks meet: on the first host, once it is there. Raises HostLost."""
    hosts[0].hostname().result()
    address = hosts[0].facts.address if hosts[0].facts is not None else "127.0.0.1"
    return {"MASTER_ADDR": address, "MASTER_PORT": str(random.choice(RENDEZVOUS_PORTS))}


def run_once(
    ctx: Context, hosts: list[Host], options: argparse.Namespace, restarts: int
) -> str | None:
    """Start every rank and watch. No rank runs afterwards."""
    try:
        env = find_rendezvous(hosts) | {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
    except HostLost as error:
        return str(error)
    group = ctx.create_process_group(
        hosts, options.command, options.per_host, env=env, name="train{rank}"
    )
    try:
        return watch(group, options)
    finally:
        for ended in group.end(grace_seconds=10):
            ended.exception()
        group.forget()


def main() -> int:
    """Run the command until it succeeds, or has failed or hung too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument(
        "--least",
        type=float,
        default=LEAST_SECONDS,
        help="seconds that a step may take in any case",
    )
    parser.add_argument(
        "--first",
        type=float,
        default=FIRST_STEP_SECONDS,
        help="seconds for the first two steps, each",
    )
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
        for restarts in range(options.max_restarts + 1):
            for host in hosts:
                host.hostname().exception()  # the clocks start when all are there
            failure = run_once(ctx, hosts, options, restarts)
            if failure is None:
                log.info("done after %d restarts", restarts)
                return 0
            log.warning("attempt %d: %s", restarts, failure)
            lost = [host for host in hosts if host.connection_lost()]
            hosts = [host for host in hosts if not host.connection_lost()] + ctx.replace_hosts(lost)
            if options.local:
                ctx.start_local_managers(len(lost))
            time.sleep(DELAY_SECONDS)
    log.error("given up after %d restarts: %s", options.max_restarts, failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
