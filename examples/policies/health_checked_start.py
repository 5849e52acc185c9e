"""Start a command on the best N of N + spare hosts, after a check of each; sick hosts are replaced,
slow ones not waited for.

    python health_checked_start.py --hosts 64 --spares 4 --gpus 8 --per-host 8 -- python train.py
    python health_checked_start.py --hosts 2 --spares 1 --local -- python train.py      # everything on this machine

Each host is measured as it comes: the GPUs (a product and a copy on each, memory errors, clocks;
the slowest counts), or the CPU where there are none, memory, disk, and the way to this script and
back. Copy it and edit it: `--check` names a command that measures in another way, and `judge=` of
`choose_hosts` scores in another way.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys

from holdfast.supervisor import Context, UnfitHosts, choose_hosts, run_group

log = logging.getLogger("policy")


def main() -> int:
    """Pick the hosts, run the command once. For restarts see restart_on_failure.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument(
        "--spares", type=int, default=1, help="asked for beyond --hosts, to choose from"
    )
    parser.add_argument("--gpus", type=int, default=0, help="a host with fewer is sick")
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--check-seconds", type=float, default=120.0)
    parser.add_argument("--settle", type=float, default=5.0)
    parser.add_argument("--max-replaced", type=int, default=20)
    parser.add_argument(
        "--check", type=shlex.split, help="a command that measures, instead of Holdfast's own"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        try:
            hosts = choose_hosts(
                ctx,
                options.hosts,
                spares=options.spares,
                gpus=options.gpus,
                check=options.check,
                check_seconds=options.check_seconds,
                settle_seconds=options.settle,
                max_replaced=options.max_replaced,
                bring=ctx.start_local_managers if options.local else None,
            )
        except UnfitHosts as error:
            log.error("given up: %s", error)
            return 1
        failure = run_group(ctx, hosts, options.command, options.per_host)
        if failure is not None:
            log.error("%s", failure)
    return 1 if failure is not None else 0


if __name__ == "__main__":
    sys.exit(main())
