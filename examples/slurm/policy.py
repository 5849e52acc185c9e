"""Keep a command running on N hosts of a Slurm cluster: through failed ranks, lost hosts, bad
hosts, and this script's own death.

    python policy.py --run DIR --hosts 8 --per-host 4 -- python train.py

DIR is on a file system that all nodes share. There this script writes the ranks' output and
`manager-command`, the command that starts a host manager (`supervised.sbatch` and `hosts.sbatch`
run it on the nodes; the file is empty once the run is over). Killed and started again with the same DIR it finds
its hosts and ranks as they are. TERM ends the run in order: the ranks get TERM, and --grace
seconds.

Copy it and edit it: `replace_bad` decides which host has to go.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from holdfast.supervisor import (
    Context,
    Host,
    HostLost,
    RunFailure,
    end_group,
    find_failure,
    find_rendezvous,
)

STRIKES = 2  # a host whose ranks were the first to fail this often is bad
DELAY_SECONDS = 1.0
EXIT_GIVEN_UP = 1
EXIT_TOLD_TO_END = 128 + signal.SIGTERM

log = logging.getLogger("policy")


def replace_bad(ctx: Context, hosts: list[Host], strikes: Counter[Host]) -> list[Host]:
    """Return the hosts to go on with. A lost one may come back, or a new Slurm job takes its place;
    a bad one is not used again."""
    chosen = []
    for host in hosts:
        if host.connection_lost():
            chosen += ctx.request_hosts(1)
        elif strikes[host] >= STRIKES:
            chosen += ctx.replace_hosts(
                [host], f"its ranks were the first to fail {strikes[host]} times"
            )
        else:
            chosen.append(host)
    return chosen


def keep_running(ctx: Context, options: argparse.Namespace) -> int:
    """Run the command until it has succeeded on all ranks, or failed too often. An earlier script's
    ranks go on as they are."""
    strikes: Counter[Host] = Counter()
    group = next(iter(ctx.groups()), None)
    if group is not None:
        hosts, restarts = list(group.hosts), int(group.spec.env["TORCHELASTIC_RESTART_COUNT"])
        log.info("the ranks of the script before this one are waited for")
    else:
        hosts, restarts = ctx.hosts()[: options.hosts], 0
        hosts += ctx.request_hosts(options.hosts - len(hosts))
    while True:
        try:
            group = group or ctx.create_process_group(
                hosts,
                options.command,
                options.per_host,
                env=find_rendezvous(hosts, restarts),
                name="train{rank}",
            )
            failure = find_failure(group)
        except HostLost as error:
            failure = RunFailure(str(error), hosts[0])
        if group is not None:
            end_group(group, options.grace, fence=options.fence)
            group = None
        if failure is None:
            log.info("done after %d restarts", restarts)
            return 0
        restarts += 1
        if restarts > options.max_restarts:
            log.error("given up after %d restarts: %s", options.max_restarts, failure)
            return EXIT_GIVEN_UP
        log.warning("restart %d: %s", restarts, failure)
        strikes[failure.host] += 1
        hosts = replace_bad(ctx, hosts, strikes)
        time.sleep(DELAY_SECONDS)


def tell_to_end(number: int, frame: object) -> None:
    """Take the first TERM: Slurm and the batch script both send one."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Keep the command running; clear up when told to end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument("--grace", type=float, default=30.0, help="seconds between TERM and KILL")
    parser.add_argument(
        "--orphan-grace",
        type=float,
        default=300.0,
        help="seconds for which ranks go on without this script",
    )
    parser.add_argument(
        "--fence", action="store_true", help="start no rank while one of a lost host may still run"
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, tell_to_end)

    words = options.run / "manager-command"
    logs = str(options.run / "logs" / "{name}.txt")
    with Context(state_dir=options.run, orphan_grace=options.orphan_grace, log_format=logs) as ctx:
        words.write_text(shlex.join(ctx.manager_command()) + "\n")
        try:
            code = keep_running(ctx, options)
        except KeyboardInterrupt:
            log.warning("told to end")
            for group in ctx.groups():
                end_group(group, options.grace)
            code = EXIT_TOLD_TO_END
        words.write_text("")  # the run is over
    return code


if __name__ == "__main__":
    sys.exit(main())
