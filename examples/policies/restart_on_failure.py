"""Run a command on N hosts; when a process fails or a host is lost, replace what is lost and start
all ranks again.

    python restart_on_failure.py --hosts 2 --per-host 8 -- python train.py
    python restart_on_failure.py --hosts 2 --local -- python train.py        # everything on this machine

Copy it and edit it: `run_once` decides what counts as a failure, `main` what follows it. The
command finds torchrun's variables in its environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
…).
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time

from holdfast.supervisor import Context, Host, HostLost, ProcessFailedToStart, as_completed

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 300.0
GOOD_RUN_SECONDS = 3600.0  # after a run that lasted this long the count of failures begins anew
RENDEZVOUS_PORTS = range(29500, 30500)  # one at random: another run may share the machine

log = logging.getLogger("policy")


def find_rendezvous(hosts: list[Host]) -> dict[str, str]:
    """Choose where torch's ranks meet: on the first host, once it is there. Raises HostLost."""
    hosts[0].hostname().result()
    address = hosts[0].facts.address if hosts[0].facts is not None else "127.0.0.1"
    return {"MASTER_ADDR": address, "MASTER_PORT": str(random.choice(RENDEZVOUS_PORTS))}


def run_once(
    ctx: Context, hosts: list[Host], command: list[str], per_host: int, restarts: int
) -> str | None:
    """Start every rank and wait. Return None when all ended with 0, else what went wrong first. No
    rank runs afterwards."""
    try:
        env = find_rendezvous(hosts) | {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
    except HostLost as error:
        return str(error)
    group = ctx.create_process_group(
        hosts, command, processes_per_host=per_host, env=env, name="train{rank}"
    )
    try:
        for future in as_completed([process.returncode() for process in group]):
            try:
                code = future.result()
            except (HostLost, ProcessFailedToStart) as error:
                return str(error)
            if code != 0:
                return f"{future.whom} ended with {code}"
        return None
    finally:
        for ended in group.end(grace_seconds=10):  # ranks that wait for the failed one
            ended.exception()
        group.forget()


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
        if options.local:
            ctx.start_local_managers(options.hosts)
        restarts, delay = 0, options.first_delay
        while True:
            began = time.monotonic()
            failure = run_once(ctx, hosts, options.command, options.per_host, restarts)
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
            lost = [host for host in hosts if host.connection_lost()]
            hosts = [host for host in hosts if not host.connection_lost()] + ctx.replace_hosts(lost)
            if options.local:
                ctx.start_local_managers(len(lost))
            time.sleep(delay)
            for host in lost if options.fence else ():
                host.time_cleared().result()
            delay = min(delay * 2, LONGEST_DELAY_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
