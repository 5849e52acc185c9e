"""Run a command on N hosts; when its ranks stop making steps, say which and start all again.

    python progress_watchdog.py --hosts 2 --per-host 8 -- python train.py
    python progress_watchdog.py --hosts 2 --local -- python train.py      # everything on this machine

How long a step may take is measured, not configured. Before a hung run is ended, a report of where
every rank is goes to `debug-report.txt`. In the training loop:

    queue = get_message_queue()
    queue.send({"step": step})                    # after each step
    queue.send({"section": "eval"})               # no steps for a while; "checkpoint" likewise
    queue.send({"section": None})                 # steps again

Copy it and edit it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from holdfast.supervisor import (
    Context,
    ProcessGroup,
    RunFailure,
    gather_debug,
    make_flight_environment,
    replace_lost,
    run_group,
    watch_progress,
)

DELAY_SECONDS = 1.0

log = logging.getLogger("policy")


def main() -> int:
    """Run the command until it succeeds, or has failed or hung too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument(
        "--least", type=float, default=60.0, help="seconds that a step may take in any case"
    )
    parser.add_argument(
        "--first", type=float, default=1800.0, help="seconds for the first two steps, each"
    )
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
        bring = ctx.start_local_managers if options.local else None
        if bring is not None:
            bring(options.hosts)

        def watch(group: ProcessGroup) -> RunFailure | None:
            failure = watch_progress(group, options.least, options.first)
            if failure is not None and failure.hung:
                log.warning("%s", gather_debug(ctx, group, "debug-report.txt").sentence)
            return failure

        env = make_flight_environment(options.flight)
        for restarts in range(options.max_restarts + 1):
            failure = run_group(
                ctx,
                hosts,
                options.command,
                options.per_host,
                watch=watch,
                restarts=restarts,
                env=env,
            )
            if failure is None:
                log.info("done after %d restarts", restarts)
                return 0
            log.warning("attempt %d: %s", restarts, failure)
            hosts = replace_lost(ctx, hosts, bring)
            time.sleep(DELAY_SECONDS)
    log.error("given up after %d restarts: %s", options.max_restarts, failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
