"""Run a command on N hosts; when a process fails or a host is lost, replace what is lost and start
all ranks again.

    python restart_on_failure.py --hosts 2 --per-host 8 -- python train.py
    python restart_on_failure.py --hosts 2 --local -- python train.py        # everything on this machine

Copy it and edit it: `run_group` says what failed first, `main` decides what follows. The
command finds torchrun's variables in its environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
…).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from holdfast.supervisor import Context, replace_lost, run_group

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 300.0
GOOD_RUN_SECONDS = 3600.0  # after a run that lasted this long the count of failures begins anew

log = logging.getLogger("policy")


def main() -> int:
    """Run the command until it succeeds, or has failed too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument("--first-delay", type=float, default=FIRST_DELAY_SECONDS)
    parser.add_argument(
        "--fence", action="store_true", help="start no rank while one of a lost host may still run"
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
        restarts, delay = 0, options.first_delay
        while True:
            began = time.monotonic()
            failure = run_group(
                ctx,
                hosts,
                options.command,
                options.per_host,
                restarts=restarts,
                fence=options.fence,
            )
            if failure is None:
                log.info("done after %d restarts", restarts)
                return 0
            if time.monotonic() - began > GOOD_RUN_SECONDS:
                restarts, delay = 0, options.first_delay
            restarts += 1
            if restarts > options.max_restarts:
                log.error("given up after %d restarts: %s", options.max_restarts, failure)
                return 1
            log.warning("restart %d in %g s: %s", restarts, delay, failure)
            hosts = replace_lost(ctx, hosts, bring)
            time.sleep(delay)
            delay = min(delay * 2, LONGEST_DELAY_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
