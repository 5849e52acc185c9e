"""The policy of a bad night: what the shipped ones offer, in one script that may itself be killed
at any moment.

Hosts are taken after a check, a run is watched for its progress, and begun again with a back-off,
up to a cap, once nothing of a lost host can run any more. Started again with the same state folder it goes on
with the group that runs.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import time
from pathlib import Path

from holdfast.supervisor import Context, Host, ProcessGroup, choose_hosts, end_group, watch_progress

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.2, 2.0
GROUP = "train{rank}"

log = logging.getLogger("policy")


def find_free_port() -> int:
    """For the rendezvous of one attempt: ranks of another must not find it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def next_attempt(folder: Path) -> int:
    """Return a number that grows at every call, also over a kill: it is written before it is
    used."""
    file = folder / "attempt"
    attempt = int(file.read_text()) + 1 if file.exists() else 0
    beside = folder / "attempt.tmp"
    beside.write_text(str(attempt))
    beside.replace(file)
    return attempt


def start(ctx: Context, hosts: list[Host], options: argparse.Namespace) -> ProcessGroup:
    """All ranks of the next attempt."""
    attempt = str(next_attempt(options.state))
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()),
        "TORCHELASTIC_RESTART_COUNT": attempt,
        "HOLDFAST_JOB_ID": "night",
        "HOLDFAST_EPOCH": attempt,
        "HOLDFAST_ATTEMPT": attempt,
    }
    log.info("attempt %s begins on %s", attempt, ", ".join(map(str, hosts)))
    return ctx.create_process_group(hosts, options.command, env=env, name=GROUP)


def find_running(ctx: Context) -> ProcessGroup | None:
    """The run of an earlier script; checks that it had begun are ended."""
    running = None
    for group in ctx.groups():
        if group.name == GROUP:
            running = group
        else:
            for ended in group.end(grace_seconds=1):
                ended.exception()
            group.forget()
    if running is not None:
        log.warning("attached again to %d ranks", len(running))
    return running


def keep_going(ctx: Context, options: argparse.Namespace) -> int:
    """Until it is done, or has failed too often."""
    group = find_running(ctx)
    hosts = list(group.hosts) if group is not None else ctx.hosts()
    delay = FIRST_DELAY_SECONDS
    for failures in range(options.max_restarts + 1):
        if group is None:
            hosts = choose_hosts(
                ctx,
                options.hosts,
                spares=0,
                keep=hosts,
                check=options.check,
                check_seconds=options.check_seconds,
                settle_seconds=0.1,
            )
            group = start(ctx, hosts, options)
        failure = watch_progress(group, options.least, options.first)
        end_group(group, grace_seconds=5, fence=options.fence)
        group = None
        if failure is None:
            log.info("done after %d restarts", failures)
            return 0
        log.warning("restart in %g s: %s", delay, failure)
        time.sleep(delay)
        delay = min(delay * 2, LONGEST_DELAY_SECONDS)
    log.error("given up after %d restarts", options.max_restarts)
    return 1


def main() -> int:
    """Read the words of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--check", nargs="+", required=True)
    parser.add_argument("--check-seconds", type=float, required=True)
    parser.add_argument("--least", type=float, required=True)
    parser.add_argument("--first", type=float, required=True)
    parser.add_argument("--max-restarts", type=int, default=20)
    parser.add_argument("--no-fence", dest="fence", action="store_false")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(
        bind="127.0.0.1",
        state_dir=options.state,
        orphan_grace=options.grace,
        log_format=str(options.state / "{name}.txt"),
    ) as ctx:
        code = keep_going(ctx, options)
        ctx.shutdown()
        return code


if __name__ == "__main__":
    sys.exit(main())
