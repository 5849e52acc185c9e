"""Run a command on N hosts with M more attached and idle; one of those takes a lost or failing
host's place at once.

    python spare_hosts.py --hosts 64 --spares 2 --per-host 8 -- python train.py
    python spare_hosts.py --hosts 2 --spares 1 --local -- python train.py      # everything on this machine

A restart then waits for no scheduler. The spare takes the place of the host it stands in for, so
the other ranks stay where their data and caches are; another machine is asked for, and becomes the
new spare. A host whose ranks are the first to fail `STRIKES` times is exchanged too.

Copy it and edit it: `main` decides which host has to go.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from holdfast.supervisor import Context, Host, as_completed, replace_lost, run_group

STRIKES = 2
DELAY_SECONDS = 1.0

log = logging.getLogger("policy")


class Bench:
    """The spares."""

    def __init__(self, ctx: Context, spares: int, local: bool) -> None:
        self.ctx, self.local = ctx, local
        self.spares = ctx.request_hosts(spares)

    def exchange(self, old: Host, reason: str) -> Host:
        """Return a host for another, which is replaced by a future spare. Without an attached spare
        it is the first machine that comes.
        """
        self.spares += self.ctx.replace_hosts([old], reason)
        if self.local:
            self.ctx.start_local_managers(1)
        self.spares = replace_lost(self.ctx, self.spares)
        new = next((host for host in self.spares if host.attached), None)
        if new is None:
            log.warning("no spare is there; waiting for a machine")
            new = next(
                iter(
                    future.whom
                    for future in as_completed([host.hostname() for host in self.spares])
                )
            )
        self.spares.remove(new)
        log.warning(
            "%s takes the place of %s: %s; %d spares left",
            new,
            old,
            reason,
            sum(s.attached for s in self.spares),
        )
        return new


def main() -> int:
    """Run the command until it succeeds, or has failed too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=10)
    parser.add_argument(
        "--strikes", type=int, default=STRIKES, help="failures after which a host is exchanged"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        hosts = ctx.request_hosts(options.hosts)
        bench = Bench(ctx, options.spares, options.local)
        if options.local:
            ctx.start_local_managers(options.hosts + options.spares)
        strikes: dict[Host, int] = {}
        for restarts in range(options.max_restarts + 1):
            failure = run_group(ctx, hosts, options.command, options.per_host, restarts=restarts)
            if failure is None:
                log.info("done after %d restarts", restarts)
                return 0
            log.warning("attempt %d: %s", restarts, failure)
            strikes[failure.host] = strikes.get(failure.host, 0) + 1
            for index, host in enumerate(hosts):
                if host.connection_lost():
                    hosts[index] = bench.exchange(host, host.lost_reason or "it is lost")
                elif strikes.get(host, 0) >= options.strikes:
                    hosts[index] = bench.exchange(
                        host, f"its ranks were the first to fail {strikes[host]} times"
                    )
            time.sleep(DELAY_SECONDS)
    log.error("given up after %d restarts: %s", options.max_restarts, failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
