"""One start of a training: wait for its end, end the processes that are left, and replace lost
hosts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.supervisor.futures.waits import as_completed
from holdfast.supervisor.policy.rendezvous import find_rendezvous
from holdfast.supervisor.rosters.failures import HostLost, ProcessFailedToStart
from holdfast.supervisor.rosters.groups import Process, ProcessGroup
from holdfast.supervisor.rosters.hosts import Host
from holdfast.supervisor.script.context import Context

GRACE_SECONDS = 10.0

logger = logging.getLogger("holdfast.supervisor")


class RunFailure(NamedTuple):
    """The first failure of a start. host: the host on which it happened. hung: True where its ranks
    live, and make no progress."""

    sentence: str
    host: Host
    hung: bool = False

    def __str__(self) -> str:
        return self.sentence


def find_failure(group: ProcessGroup) -> RunFailure | None:
    """Wait for a group. Return None when all its processes ended with 0, else the first failure."""
    for future in as_completed([process.returncode() for process in group]):
        failure = judge_end(future.whom)
        if failure is not None:
            return failure
    return None


def judge_end(process: Process) -> RunFailure | None:
    """Return None where a process that is over ended with 0, else its failure."""
    try:
        code = process.returncode().result()
    except (HostLost, ProcessFailedToStart) as error:
        return RunFailure(str(error), process.host)
    return RunFailure(f"{process} ended with {code}", process.host) if code else None


def end_group(
    group: ProcessGroup, grace_seconds: float = GRACE_SECONDS, *, fence: bool = False
) -> None:
    """End the processes of a group that still run, wait until they have ended, and forget the
    group.

    fence: True to wait as well until no process of the group can run on its lost hosts. The group
    is forgotten only then, so that a script that comes back waits again.
    """
    for ended in group.end(grace_seconds):
        ended.exception()
    for host in group.hosts if fence else ():
        if host.connection_lost() and not host.time_cleared().done():
            logger.warning("its processes may still run on %s: waiting until they cannot", host)
            host.time_cleared().result()
    group.forget()


@contextmanager
def running(
    ctx: Context,
    hosts: Sequence[Host],
    command: Sequence[str],
    per_host: int = 1,
    *,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
    name: str = "train{rank}",
    grace_seconds: float = GRACE_SECONDS,
    fence: bool = False,
) -> Iterator[ProcessGroup]:
    """Start a rank everywhere, with a rendezvous of its own, for the time of a `with` block; no
    rank runs afterwards. Raises HostLost where the first host is lost."""
    meeting = find_rendezvous(hosts, restarts)
    group = ctx.create_process_group(
        hosts, command, per_host, env=meeting | dict(env or {}), name=name
    )
    try:
        yield group
    finally:
        end_group(group, grace_seconds, fence=fence)


def run_group(
    ctx: Context,
    hosts: Sequence[Host],
    command: Sequence[str],
    per_host: int = 1,
    *,
    watch: Callable[[ProcessGroup], RunFailure | None] = find_failure,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
    fence: bool = False,
) -> RunFailure | None:
    """Run a command on hosts until all ranks ended with 0, or a first failure. No rank runs
    afterwards. watch: waits for the group and returns its failure or None. A hang that it reports
    is dropped where all ranks have ended with 0 by the time it returns."""
    try:
        with running(
            ctx, hosts, command, per_host, restarts=restarts, env=env, fence=fence
        ) as group:
            return settle_hang(group, watch(group))
    except HostLost as error:
        return RunFailure(str(error), hosts[0])


def settle_hang(group: ProcessGroup, failure: RunFailure | None) -> RunFailure | None:
    """Return None where a run that was judged to hang has ended well meanwhile, as it may while a
    report is made; else the failure."""
    if failure is None or not failure.hung:
        return failure
    ended = [process.returncode() for process in group]
    well = all(code.done() and code.exception() is None and code.result() == 0 for code in ended)
    if well:
        logger.info("all ranks have ended with 0 after all: %s", failure)
    return None if well else failure


def replace_lost(
    ctx: Context, hosts: Iterable[Host], bring: Callable[[int], object] | None = None
) -> list[Host]:
    """Return the hosts, each lost one replaced in its place, so that the other ranks stay where
    their data and caches are.

    bring: called with the number of replaced hosts, for a script that starts managers itself.
    """
    old = list(hosts)
    lost = [host for host in old if host.connection_lost()]
    fresh = iter(ctx.replace_hosts(lost) if lost else [])
    if lost and bring is not None:
        bring(len(lost))
    return [next(fresh) if host in lost else host for host in old]
