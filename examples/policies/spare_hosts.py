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
import random
import sys
import time

from holdfast.supervisor import Context, Host, HostLost, Process, ProcessFailedToStart, as_completed

STRIKES = 2
DELAY_SECONDS = 1.0
RENDEZVOUS_PORTS = range(29500, 30500)  # one at random: another run may share the machine

log = logging.getLogger("policy")


def find_rendezvous(hosts: list[Host]) -> dict[str, str]:
    """Choose where torch's ranks meet: on the first host, once it is there. Raises HostLost."""
    hosts[0].hostname().result()
    address = hosts[0].facts.address if hosts[0].facts is not None else "127.0.0.1"
    return {"MASTER_ADDR": address, "MASTER_PORT": str(random.choice(RENDEZVOUS_PORTS))}


def run_once(
    ctx: Context, hosts: list[Host], options: argparse.Namespace, restarts: int
) -> tuple[str, Host] | None:
    """Start every rank and wait. Return None when all ended with 0, else what went wrong first, and
    where."""
    try:
        env = find_rendezvous(hosts) | {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
    except HostLost as error:
        return str(error), hosts[0]
    group = ctx.create_process_group(
        hosts, options.command, options.per_host, env=env, name="train{rank}"
    )
    try:
        for future in as_completed([process.returncode() for process in group]):
            process: Process = future.whom
            try:
                code = future.result()
            except (HostLost, ProcessFailedToStart) as error:
                return str(error), process.host
            if code != 0:
                return f"{process} ended with {code}", process.host
        return None
    finally:
        for ended in group.end(grace_seconds=10):
            ended.exception()
        group.forget()


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
        lost = [host for host in self.spares if host.connection_lost()]
        self.spares = [host for host in self.spares if host not in lost] + self.ctx.replace_hosts(
            lost
        )
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
            failed = run_once(ctx, hosts, options, restarts)
            if failed is None:
                log.info("done after %d restarts", restarts)
                return 0
            failure, guilty = failed
            log.warning("attempt %d: %s", restarts, failure)
            strikes[guilty] = strikes.get(guilty, 0) + 1
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
