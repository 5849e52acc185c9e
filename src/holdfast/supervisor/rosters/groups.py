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
from holdfast.supervisor.names import name_process
from holdfast.supervisor.rosters.failures import ProcessEnded
from holdfast.supervisor.rosters.hosts import Host
from holdfast.wire.bus.messages import Cut, cut_parts

DEFAULT_GRACE_SECONDS = 5.0
_making = threading.Lock()  # of futures and inboxes: for a few instructions


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The program and settings of a group; saved with the run, for a script that comes back."""

    args: list[str]
    processes_per_host: int = 1
    env: dict[str, str] = {}
    cwd: str | None = None
    name: str = "p{rank}"
    log: str | None = None
    simulate: bool = False


class Orders(Protocol):
    """The orders of a script to its processes, carried out by the crew's roster."""

    def post_send(self, process: Process, cuts: list[Cut]) -> None:
        """Send a message to one process. cuts: the parts into which the message was cut."""

    def post_broadcast(self, group: ProcessGroup, cuts: list[Cut]) -> None:
        """Send a message to all processes of a group. cuts: the parts into which the message was
        cut."""

    def signal(self, processes: Sequence[Process], number: int, whole_group: bool) -> Future[int]:
        """Signal many processes at once. The value of the future is the number of them that were
        running."""

    def stop(self, processes: Sequence[Process], grace_seconds: float) -> None:
        """End many processes at once: TERM, grace, KILL."""

    def forget(self, group: ProcessGroup) -> None:
        """Forget a group and its processes. Processes that still run are killed."""


class Process:
    """One rank of a group. Its futures fail with `HostLost` when its host is lost.

    Futures and the inbox are made on first use: a group of thousands is made in one call, most of
    its processes are asked for one thing, and the garbage collector looks at every object. `inbox`,
    `over`, `exit_code`, `start`, `settle` and `fail` are the library's own.
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
        # Values and futures. The bus's thread writes the value and then looks at
        # the future; a caller does it the other way round, so one of them settles the future.
        self._start: int | HoldfastError | None = None  # the pid, or why there is none
        self._end: int | HoldfastError | None = None  # the exit code, or why it is not known
        self._pid: Future[int] | None = None
        self._returncode: Future[int] | None = None
        self._inbox: Inbox | None = None

    @property
    def world_size(self) -> int:
        """Return the number of processes in the group."""
        return self.group.world_size

    @property
    def processes_per_host(self) -> int:
        """Return the number of the group's processes on each host."""
        return self.group.spec.processes_per_host

    @property
    def name(self) -> str:
        """Return the process's name: the name pattern of its group, with the rank filled in."""
        return name_process(self.group.spec.name, self.rank, self.group.world_size)

    @property
    def logfile(self) -> str | None:
        """Return the path, on the process's host, of the file with its output (`{hostname}` in the
        path is filled in once a manager is attached); None where the output goes to the manager's
        own."""
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
        """Return a future for the process's pid on its host. It fails with `ProcessFailedToStart`
        if the program never ran, and with `HostLost` where its host is lost before the pid is known."""
        future = self._pid
        if future is None:
            with _making:
                future = self._pid
                if future is None:
                    future = self._pid = Future("pid", self, shared=True)
            _settle(future, self._start)
        return future

    def returncode(self) -> Future[int]:
        """Return a future for the process's end, once its whole tree is gone: the exit code, or
        minus the signal that ended it.

        Processes that the first process leaves running when it exits get TERM at once and KILL 2 s
        later. The future fails with `ProcessFailedToStart`, and with `HostLost` when the end can no
        longer be known.
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
        """Send a value (see `encode_value` for the values allowed). The value waits on the host
        until the process reads it.

        Raises:
            HostLost: at once, when the host is lost already.
            ValidationError: the value holds a part that cannot be sent.
        """
        if self.host.connection_lost():
            raise self.host.make_error()
        self.group.orders.post_send(self, cut_parts(encode_value(message)))

    def recv(self, filter: Filter | None = None) -> Future[Any]:
        """Return a future for the next message that `filter` accepts (any, when None); other
        messages wait for another `recv`.

        The filter may be called in the bus's thread: it must be short and must not wait. The future
        fails with `ProcessEnded` or `HostLost` when the process is over and no such message came.
        """
        return receive_one(self.inbox, filter, "a message", self)

    def signal(self, signal: int = SIGTERM, group: bool = True) -> Future[int]:
        """Send a signal to the process's whole process group (or, with `group=False`, to the
        process alone).

        The future's value is 1, or 0 where the process had ended already. A process that is still
        to start gets the signal as soon as it runs.
        """
        return self.group.orders.signal([self], int(signal), group)

    def end(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> Future[int]:
        """End the process's whole tree: TERM, then KILL after the grace. Returns `returncode()`."""
        self.group.orders.stop([self], grace_seconds)
        return self.returncode()

    # ---- the library's own

    @property
    def over(self) -> bool:
        """Return True once the process's end is known, or can never be known."""
        return self._end is not None

    @property
    def exit_code(self) -> int | None:
        """Return the process's exit code, or minus the signal that ended it; None until it is
        known."""
        return self._end if isinstance(self._end, int) else None

    @property
    def inbox(self) -> Inbox:
        """Return the process's messages for the script."""
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
        """Return the error that a wait for a message gets when no message will come."""
        if isinstance(end, HoldfastError):
            return end
        return ProcessEnded(f"process {self.name} on host {self.host} ended with {end}")

    # ---- in the bus's thread, or before that starts

    def start(self, pid: int) -> None:
        """Set the process's pid; a later call changes nothing."""
        if self._start is None:
            self._start = pid
            if self._pid is not None:
                self._pid.set_result(pid)

    def set_returncode(self, code: int) -> None:
        """Set the process's returncode; a later call changes nothing."""
        self._take_end(code)

    def fail(self, error: HoldfastError) -> None:
        """Fail every future that is pending on the process."""
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
    """Settle a future with the value or error that is known, if any."""
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
        """Return the name pattern of the group's processes."""
        return self.spec.name

    def find_processes(self, index: int) -> list[Process]:
        """Return the processes of the host with that index."""
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
        """Send a signal to all processes in one call. The future's value is how many of them were
        running."""
        return self.orders.signal(self.processes, int(signal), group)

    def end(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> list[Future[int]]:
        """End the trees of all processes: TERM, then KILL after the grace. Returns every
        `returncode()`."""
        self.orders.stop(self.processes, grace_seconds)
        return [process.returncode() for process in self.processes]

    def broadcast(self, message: Any) -> None:
        """Send a value to every process, by one message per host. Lost hosts are left out."""
        self.orders.post_broadcast(self, cut_parts(encode_value(message)))

    def gather(self, filter: Filter | None = None) -> Future[list[Any]]:
        """Return a future for one message of every process, by rank. The future fails as
        `Process.recv` does as soon as one message cannot come.

        When the future fails, is cancelled, or is dropped after a timeout, the messages that it had
        taken wait for the next `recv`.
        """
        inboxes = [process.inbox for process in self.processes]
        return Gather(inboxes, filter).begin("a message each", self)

    def forget(self) -> None:
        """Forget a group that is over: managers and the saved run forget how it ended.

        Processes that still run are killed without a grace, and their pending futures fail with
        `ProcessEnded`.
        """
        self.orders.forget(self)


renew_after_fork(globals(), _making=threading.Lock)
