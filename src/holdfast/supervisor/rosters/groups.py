"""Processes and process groups, as the policy script holds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from signal import SIGTERM
from typing import Any, Protocol, overload

import msgspec

from holdfast.errors import HoldfastError
from holdfast.supervisor.futures.future import Future, renew_after_fork
from holdfast.supervisor.futures.inbox import Filter, Gather, Inbox, receive_one
from holdfast.supervisor.line.values import encode_value
from holdfast.supervisor.rosters.failures import ProcessEnded
from holdfast.supervisor.rosters.hosts import Host
from holdfast.supervisor.rosters.names import name_process
from holdfast.wire.bus.messages import Cut, cut_parts

DEFAULT_GRACE_SECONDS = 5.0
_making = threading.Lock()  # of futures and inboxes: for a few instructions


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a group runs; saved with the run, for a script that comes back."""

    args: list[str]
    processes_per_host: int = 1
    env: dict[str, str] = {}
    cwd: str | None = None
    name: str = "p{rank}"
    log: str | None = None
    simulate: bool = False


class Orders(Protocol):
    """Carries out a script's orders to processes: the crew's roster."""

    def post_send(self, process: Process, cuts: list[Cut]) -> None:
        """Send a message that was cut into parts."""

    def post_broadcast(self, group: ProcessGroup, cuts: list[Cut]) -> None:
        """Send a message to all processes of a group."""

    def signal(self, processes: Sequence[Process], number: int, whole_group: bool) -> Future[int]:
        """Signal many at once; the future's value is how many were there."""

    def stop(self, processes: Sequence[Process], grace_seconds: float) -> None:
        """TERM, grace, KILL for many at once."""

    def forget(self, group: ProcessGroup) -> None:
        """Let go of a group."""


class Process:
    """One rank of a group. Its futures fail with `HostLost` when its host goes.

    Futures and the inbox are made when they are asked for: a group of thousands is made in one go,
    most of its processes are asked for one thing, and the garbage collector looks at every object.
    `inbox`, `over`, `exit_code`, `start`, `settle` and `fail` are the library's own.
    """

    __slots__ = (
        "__weakref__",
        "_end",
        "_inbox",
        "_pid",
        "_returncode",
        "_start",
        "group",
        "host",
        "local_rank",
        "rank",
    )

    def __init__(self, group: ProcessGroup, host: Host, rank: int, local_rank: int) -> None:
        self.group = group
        self.host = host
        self.rank = rank
        self.local_rank = local_rank
        # What is known, and what was asked for. The bus's thread writes the first and then looks at
        # the second; a caller does it the other way round, so one of them settles the future.
        self._start: int | HoldfastError | None = None  # the pid, or why there is none
        self._end: int | HoldfastError | None = None  # the exit code, or why it is not known
        self._pid: Future[int] | None = None
        self._returncode: Future[int] | None = None
        self._inbox: Inbox | None = None

    @property
    def world_size(self) -> int:
        """Processes in the group."""
        return self.group.world_size

    @property
    def processes_per_host(self) -> int:
        """Processes of the group on each host."""
        return self.group.spec.processes_per_host

    @property
    def name(self) -> str:
        """The group's name pattern with the rank filled in."""
        return name_process(self.group.spec.name, self.rank, self.group.world_size)

    @property
    def logfile(self) -> str | None:
        """Where its output goes, on its host (`{hostname}` in it is known once a manager has come);
        None is the manager's own output."""
        log = self.group.spec.log
        if log is None:
            return None
        log = name_process(log.replace("{name}", self.name), self.rank, self.group.world_size)
        facts = self.host.facts
        return log if facts is None else log.replace("{hostname}", facts.hostname)

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"

    def __repr__(self) -> str:
        return f"<Process {self.name} rank {self.rank}/{self.world_size} {self._returncode!r}>"

    def pid(self) -> Future[int]:
        """Its pid on its host. Fails with `ProcessFailedToStart` if the program never ran."""
        future = self._pid
        if future is None:
            with _making:
                future = self._pid
                if future is None:
                    future = self._pid = Future("pid", self, shared=True)
            _settle(future, self._start)
        return future

    def returncode(self) -> Future[int]:
        """How it ended, once its whole tree is gone: the exit code, or minus the signal that ended
        it.

        What the first process leaves running when it exits gets TERM at once and KILL 2 s later.
        Fails with `ProcessFailedToStart`, and with `HostLost` when the end can no longer be known.
        """
        future = self._returncode
        if future is None:
            with _making:
                future = self._returncode
                if future is None:
                    future = self._returncode = Future("returncode", self, shared=True)
            _settle(future, self._end)
        return future

    def send(self, message: Any) -> None:
        """Send a value (see `encode_value` for what may be in it); it waits there until the process
        takes it.

        Raises:
            HostLost: at once, when the host is lost already.
            ValidationError: the value holds something that cannot be sent.
        """
        if self.host.connection_lost():
            raise self.host.make_error()
        self.group.orders.post_send(self, cut_parts(encode_value(message)))

    def recv(self, filter: Filter | None = None) -> Future[Any]:
        """Return a future for the next message that `filter` takes (any, when None); others wait
        for another `recv`.

        The filter may be called in the bus's thread: it must be short and must not wait. Fails with
        `ProcessEnded` or `HostLost` when the process is over and no such message came.
        """
        return receive_one(self.inbox, filter, "a message", self)

    def signal(self, signal: int = SIGTERM, group: bool = True) -> Future[int]:
        """Send a signal to its process group (or, `group=False`, to it alone).

        The future's value is 1, or 0 where it had ended already. One that is still to start gets it
        as soon as it is there.
        """
        return self.group.orders.signal([self], int(signal), group)

    def end(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> Future[int]:
        """TERM to its whole tree, KILL after the grace. Returns `returncode()`."""
        self.group.orders.stop([self], grace_seconds)
        return self.returncode()

    # ---- the library's own

    @property
    def over(self) -> bool:
        """True once its end is known, or will never be."""
        return self._end is not None

    @property
    def exit_code(self) -> int | None:
        """How it ended, once that is known."""
        return self._end if isinstance(self._end, int) else None

    @property
    def inbox(self) -> Inbox:
        """Its messages for the script."""
        inbox = self._inbox
        if inbox is None:
            with _making:
                inbox = self._inbox
                if inbox is None:
                    inbox = self._inbox = Inbox(self.rank)
            if self._end is not None:
                inbox.end(self._make_end_error(self._end))
        return inbox

    def _make_end_error(self, end: int | HoldfastError) -> HoldfastError:
        """Make the error for receivers of messages that will not come."""
        if isinstance(end, HoldfastError):
            return end
        return ProcessEnded(f"process {self.name} on host {self.host} ended with {end}")

    # ---- in the bus's thread, or before that starts

    def start(self, pid: int) -> None:
        """Take its pid; the first stands."""
        if self._start is None:
            self._start = pid
            if self._pid is not None:
                self._pid.set_result(pid)

    def settle(self, code: int) -> None:
        """Take its end; the first stands."""
        self._take_end(code)

    def fail(self, error: HoldfastError) -> None:
        """Fail everything that is pending on it."""
        if self._start is None:
            self._start = error
            if self._pid is not None:
                self._pid.set_exception(error)
        self._take_end(error)

    def _take_end(self, end: int | HoldfastError) -> None:
        if self._end is not None:
            return
        self._end = end
        if self._returncode is not None:
            _settle(self._returncode, end)
        if self._inbox is not None:
            self._inbox.end(self._make_end_error(end))


def _settle(future: Future[int], found: int | HoldfastError | None) -> None:
    """Settle it with what is known, if anything is."""
    if isinstance(found, HoldfastError):
        future.set_exception(found)
    elif found is not None:
        future.set_result(found)


class ProcessGroup(Sequence[Process]):
    """Processes started together, rank by rank: rank = index of the host × processes per host +
    local rank.

    `orders` and `processes` are the library's own.
    """

    def __init__(self, orders: Orders, number: int, hosts: Sequence[Host], spec: GroupSpec) -> None:
        self.orders = orders
        self.number = number
        self.hosts = tuple(hosts)
        self.spec = spec
        per_host = spec.processes_per_host
        self.world_size = len(self.hosts) * per_host
        self.processes = [
            Process(self, host, index * per_host + local, local)
            for index, host in enumerate(self.hosts)
            for local in range(per_host)
        ]

    @property
    def name(self) -> str:
        """The name pattern."""
        return self.spec.name

    def find_processes(self, index: int) -> list[Process]:
        """The processes of the host with that index."""
        per_host = self.spec.processes_per_host
        return self.processes[index * per_host : (index + 1) * per_host]

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.spec.name} of {self.world_size} on {len(self.hosts)} hosts>"

    def __len__(self) -> int:
        return len(self.processes)

    @overload
    def __getitem__(self, index: int) -> Process: ...
    @overload
    def __getitem__(self, index: slice) -> list[Process]: ...
    def __getitem__(self, index: int | slice) -> Process | list[Process]:
        return self.processes[index]

    def __iter__(self) -> Iterator[Process]:
        return iter(self.processes)

    def signal(self, signal: int = SIGTERM, group: bool = True) -> Future[int]:
        """Send a signal to all in one call. The future's value is how many were there to get it."""
        return self.orders.signal(self.processes, int(signal), group)

    def end(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> list[Future[int]]:
        """TERM to all trees, KILL after the grace. Returns every `returncode()`."""
        self.orders.stop(self.processes, grace_seconds)
        return [process.returncode() for process in self.processes]

    def broadcast(self, message: Any) -> None:
        """Send a value to every process, by one message per host. Lost hosts are passed over."""
        self.orders.post_broadcast(self, cut_parts(encode_value(message)))

    def gather(self, filter: Filter | None = None) -> Future[list[Any]]:
        """Return a future for one message of every process, by rank. It fails as `Process.recv`
        does as soon as one cannot come.

        When it fails, is cancelled, or is dropped after a timeout, the messages it had taken wait
        for the next `recv`.
        """
        inboxes = [process.inbox for process in self.processes]
        return Gather(inboxes, filter).begin("a message each", self)

    def forget(self) -> None:
        """Let go of a group that is over: managers and the saved run forget how it ended.

        Processes that still run are killed without a grace, and their pending futures fail with
        `ProcessEnded`.
        """
        self.orders.forget(self)


renew_after_fork(globals(), _making=threading.Lock)
