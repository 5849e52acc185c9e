"""Run a command on as many hosts as there are, between a least and a most: smaller when one is
lost, larger when it returns.

    python elastic.py --least 6 --most 8 --per-host 8 -- python train.py
    python elastic.py --least 1 --most 2 --local -- python train.py      # everything on this machine

Every change of size is a restart from the last checkpoint. Before one that could wait (growth) the
ranks are asked to save: they get the message "checkpoint", answer "saved", and are ended. A rank
that does not listen is ended all the same after `SAVE_SECONDS`. The training must divide its batch
and its data by WORLD_SIZE.

Copy it and edit it: `wait_for_hosts` decides when to begin, `run_once` when a run ends.
"""

from __future__ import annotations

import argparse
import logging
import queue
import sys
import time
from typing import Any

from holdfast.supervisor import (
    Context,
    Future,
    Host,
    HostLost,
    ProcessGroup,
    as_completed,
    judge_end,
    running,
    wait,
)

SETTLE_SECONDS = 30.0  # to wait for more hosts once the least number is there
GROW_AFTER_SECONDS = 600.0  # the least time between growths of a run
SAVE_SECONDS = 300.0
DELAY_SECONDS = 1.0
DONE, GROW = "done", "grow"

log = logging.getLogger("policy")


def wait_for_hosts(hosts: list[Host], least: int, settle_seconds: float) -> list[Host]:
    """Wait for the least number of hosts, and for others that come soon after."""
    names = as_completed([host.hostname() for host in hosts])
    for _ in names:
        if sum(host.attached for host in hosts) >= least:
            break
    wait([host.hostname() for host in hosts], timeout=settle_seconds)
    return [host for host in hosts if host.attached]


def ask_to_save(group: ProcessGroup, seconds: float) -> None:
    """Ask the ranks to save, and wait for their answers."""
    answers = [process.recv(lambda message: message == "saved") for process in group]
    group.broadcast("checkpoint")
    silent = wait(answers, timeout=seconds).not_done
    log.info("%d of %d ranks saved", len(answers) - len(silent), len(answers))


def run_once(
    ctx: Context, present: list[Host], absent: list[Host], options: argparse.Namespace, attempt: int
) -> str:
    """Run on the hosts that are there. Return DONE, GROW when a missing host has come, or what went
    wrong.

    A host of `absent` that came and was lost again before the run could grow is replaced there by a
    new request.
    """
    try:
        with running(ctx, present, options.command, options.per_host, restarts=attempt) as group:
            return watch(ctx, group, absent, options)
    except HostLost as error:
        return str(error)


def watch(
    ctx: Context, group: ProcessGroup, absent: list[Host], options: argparse.Namespace
) -> str:
    """Wait for the end of a run, for a failure, or for a missing host and the time to grow."""
    happened: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    for process in group:
        process.returncode().add_done_callback(happened.put)

    def listen(hosts: list[Host]) -> list[Host]:
        for host in hosts:
            host.hostname().add_done_callback(happened.put)
        return hosts

    listen(absent)
    may_grow_at = time.monotonic() + options.grow_after
    came, left = False, len(group)
    while left:
        try:
            future = happened.get(
                timeout=max(0.0, may_grow_at - time.monotonic()) if came else None
            )
        except queue.Empty:
            if any(host.attached for host in absent):
                ask_to_save(group, options.save)
                return GROW
            came = False
            lost = [host for host in absent if host.connection_lost()]
            absent[:] = [host for host in absent if host not in lost] + listen(
                ctx.request_hosts(len(lost))
            )
            continue
        if future.about == "hostname":
            came = True
            continue
        failure = judge_end(future.whom)
        if failure is not None:
            return str(failure)
        left -= 1
    return DONE


def main() -> int:
    """Run the command on the hosts that are there until it succeeds, or has failed too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--least", type=int, required=True)
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument(
        "--max-restarts", type=int, default=10, help="after failures; changes of size do not count"
    )
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS)
    parser.add_argument("--grow-after", type=float, default=GROW_AFTER_SECONDS)
    parser.add_argument(
        "--save", type=float, default=SAVE_SECONDS, help="seconds for a checkpoint before growth"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        hosts = ctx.request_hosts(options.most)
        if options.local:
            ctx.start_local_managers(options.most)
        attempt, failures = 0, 0
        while True:
            present = wait_for_hosts(hosts, options.least, options.settle)
            absent = [host for host in hosts if host not in present]
            log.info("attempt %d on %d of %d hosts", attempt, len(present), options.most)
            if len(present) >= options.least:
                outcome = run_once(ctx, present, absent, options, attempt)
                hosts = present + absent
            else:
                outcome = "a host was lost before the start"
            if outcome == DONE:
                log.info("done after %d attempts", attempt + 1)
                return 0
            attempt += 1
            log.warning("%s", "a host came: growing" if outcome == GROW else outcome)
            # Lost machines may come back, after a reboot say: new handles, and no name barred as
            # replace_hosts would.
            lost = [host for host in hosts if host.connection_lost()]
            hosts = [host for host in hosts if not host.connection_lost()] + ctx.request_hosts(
                len(lost)
            )
            if outcome != GROW and not lost:
                failures += 1
                if failures > options.max_restarts:
                    log.error("given up after %d restarts: %s", options.max_restarts, outcome)
                    return 1
                time.sleep(DELAY_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
