"""Train until it is done: on checked hosts, through failed ranks, hangs, and lost or bad hosts.

    python train_forever.py --hosts 64 --spares 4 --gpus 8 --per-host 8 -- python train.py
    python train_forever.py --hosts 2 --local -- python train.py      # everything on this machine
    holdfast supervise -f train_forever.py --hosts 3 -- --hosts 2 -- python train.py

More hosts are asked for than are needed, and the best of the first to pass a check are taken. When
a rank fails or a host is lost, all ranks start again after a pause; lost hosts, and those whose
ranks were the first to fail `--strikes` times, are replaced by others that passed the check. When
ranks that report steps (`get_message_queue().send({"step": step})`) make none for far longer than
they did, a report of where every rank is goes to `--report`, one sentence of it to the log, and all
start again.

Copy it and edit it: each call below is one decision.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from holdfast.supervisor import (
    Context,
    Host,
    ProcessGroup,
    RunFailure,
    UnfitHosts,
    choose_hosts,
    gather_debug,
    make_flight_environment,
    run_group,
    watch_progress,
)

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1.0, 300.0
GOOD_RUN_SECONDS = 3600.0  # after a run that lasted this long the count of failures begins anew

log = logging.getLogger("policy")


def train(ctx: Context, options: argparse.Namespace) -> int:
    """Run the command until it succeeds, or has failed too often without a good run between."""
    bring = ctx.start_local_managers if options.local else None
    env = make_flight_environment(options.flight)
    command, per_host = options.command, options.per_host
    hosts: list[Host] = []
    strikes: Counter[Host] = Counter()
    starts = failures = 0
    delay = FIRST_DELAY_SECONDS

    def watch(group: ProcessGroup) -> RunFailure | None:
        failure = watch_progress(group, options.least, options.first)
        if failure is not None and failure.hung:
            log.warning("%s; %s", failure, gather_debug(ctx, group, options.report).sentence)
        return failure

    while True:
        hosts = choose_hosts(
            ctx, options.hosts, spares=options.spares, gpus=options.gpus, keep=hosts, bring=bring
        )
        log.info("start %d on %s", starts, ", ".join(map(str, hosts)))
        began = time.monotonic()
        failure = run_group(
            ctx,
            hosts,
            command,
            per_host,
            watch=watch,
            restarts=starts,
            env=env,
            fence=options.fence,
        )
        if failure is None:
            log.info("done after %d restarts", starts)
            return 0
        if time.monotonic() - began > GOOD_RUN_SECONDS:
            failures, delay = 0, FIRST_DELAY_SECONDS
        starts, failures = starts + 1, failures + 1
        if failures > options.max_restarts:
            log.error("given up after %d restarts: %s", options.max_restarts, failure)
            return 1
        strikes[failure.host] += 1
        if strikes[failure.host] >= options.strikes and not failure.host.connection_lost():
            place = hosts.index(failure.host)
            reason = f"its ranks were the first to fail {strikes[failure.host]} times"
            hosts[place : place + 1] = ctx.replace_hosts([failure.host], reason)
        log.warning("restart %d in %g s: %s", starts, delay, failure)
        time.sleep(delay)
        delay = min(delay * 2, LONGEST_DELAY_SECONDS)


def main() -> int:
    """Read the words of the command line, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--spares", type=int, default=1, help="asked for to choose from")
    parser.add_argument("--gpus", type=int, default=0, help="a host with fewer is unfit")
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument("--strikes", type=int, default=2, help="failures that replace a host")
    parser.add_argument("--least", type=float, default=60.0, help="seconds a step may always take")
    parser.add_argument("--first", type=float, default=float("inf"), help="the same before step 2")
    parser.add_argument("--fence", action="store_true", help="no start while an old rank may run")
    parser.add_argument("--report", default="debug-report.txt")
    parser.add_argument("--flight", help="prefix of flight records")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        try:
            return train(ctx, options)
        except UnfitHosts as error:
            log.error("given up: %s", error)
            return 1


if __name__ == "__main__":
    sys.exit(main())
