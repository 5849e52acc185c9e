"""Run a command, and after some seconds make one report of where every rank is: equal stacks once,
with their ranks, and what torch's flight records say.

    python debug_gather.py --hosts 2 --local --after 30 -- python train.py

In a policy of your own, before a hung group is ended:

    from holdfast.supervisor import gather_debug
    log.error("%s", gather_debug(ctx, group, "debug-report.txt").sentence)

The stacks come from py-spy, or gdb, on each host. The records come from torch: its NCCL writes them
when it is asked to, and ranks on gloo do when they call `answer_flight_requests()`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from holdfast.supervisor import (
    Context,
    as_completed,
    find_rendezvous,
    gather_debug,
    make_flight_environment,
)

log = logging.getLogger("policy")


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
    parser.add_argument(
        "--flight", help="how the file names of flight records begin, on every host"
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
        env = find_rendezvous(hosts) | make_flight_environment(options.flight)
        group = ctx.create_process_group(
            hosts, options.command, options.per_host, env=env, name="train{rank}"
        )
        for future in as_completed([process.pid() for process in group]):
            future.result()
        time.sleep(options.after)
        print(gather_debug(ctx, group, options.report), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
