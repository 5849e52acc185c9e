"""What runs where: groups and processes, joined with the sessions of their hosts.

Public functions may be called by any thread; they hand their work to the bus's thread, which alone
changes anything.

CREW-1  A manager speaks only for the processes of its own host.
CREW-2  The first end of a process stands; what a manager says again changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import HoldfastError, TooLarge, ValidationError
from holdfast.supervisor.line.bus import Bus
from holdfast.supervisor.line.session_fleet import Fleet
from holdfast.supervisor.script.events import EventLog
from holdfast.supervisor.script.failures import ContextClosed, ProcessEnded, ProcessFailedToStart
from holdfast.supervisor.script.futures import Future
from holdfast.supervisor.script.groups import GroupSpec, Process, ProcessGroup
from holdfast.supervisor.script.hosts import Host
from holdfast.supervisor.script.inbox import has_doubled
from holdfast.wire.bus import (
    Cut,
    Deliver,
    Dropped,
    Exited,
    Forget,
    GroupReport,
    HostUsage,
    Launched,
    LaunchFailed,
    LaunchProcesses,
    Send,
    Signalled,
    SignalProcesses,
    StopProcesses,
    encode_message,
)

CLOSED = "the context was shut down; make another one"
MAX_LAUNCH_BYTES = 8 << 20  # of one frame, with room to spare


class _Request:
    """A signal on its way to one host or several."""

    __slots__ = ("future", "left", "reached", "several")

    def __init__(self, future: Future[int], count: int) -> None:
        self.future = future
        self.left = count
        self.several = count > 1
        self.reached = 0


class CrewRoster:
    """All processes of one context."""

    def __init__(self, fleet: Fleet, events: EventLog, first_number: int) -> None:
        self.bus: Bus  # set by the context, before anything can happen
        self.groups: dict[int, ProcessGroup] = {}
        self.running = 0
        self.refused: Counter[str] = Counter()
        self.dropped = 0  # messages that nobody took
        self.changed: Callable[[], None] = lambda: None  # the state file listens
        self.save: Callable[[], None] = lambda: (
            None
        )  # a group is in the state before it is anywhere else
        self.closed = ""  # why nothing can be asked any more
        self._fleet = fleet
        self._events = events
        self._requests: dict[int, tuple[_Request, Host]] = {}
        self._request_number = first_number
        self.actions: dict[type, Callable[[Any, Any], None]] = {  # of a manager's messages, by kind
            Launched: self._take_launched,
            LaunchFailed: self._take_launch_failed,
            Exited: self._take_exited,
            Signalled: self._take_signalled,
            Deliver: self._take_delivery,
            Dropped: self._take_dropped,
            HostUsage: self._take_usage,
        }

    def ask(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have it done in the bus's thread. Raises ContextClosed after the shutdown."""
        if self.closed:
            raise ContextClosed(self.closed)
        self.bus.call(function, *arguments)

    def take_reports(self, host: Host, reports: list[GroupReport]) -> None:
        """What happened on a host while no script was there."""
        known = {report.group for report in reports}
        for report in reports:
            if report.group not in host._groups:  # no script knows it any more
                self._say(host, encode_message(Forget([report.group])))
                continue
            self._take_launched(host, Launched(report.group, report.running))
            self._take_launch_failed(host, LaunchFailed(report.group, report.unstarted))
            self._take_exited(host, Exited(report.group, report.ended))
        for number, (group, index) in host._groups.items():
            if number not in known and not self._is_over(
                group, index
            ):  # the order died with the script that gave it
                self._say(host, _make_launch(group, index))

    def _is_over(self, group: ProcessGroup, index: int) -> bool:
        return all(process._returncode.done() for process in group.find_processes(index))

    def take_loss(self, host: Host, error: HoldfastError) -> None:
        """ROSTER-2: fail every future that was pending on the host."""
        for group, index in host._groups.values():
            self._fail_all(group, index, error)
        for number, (request, whose) in list(self._requests.items()):
            if whose is host:
                self._close_request(number, request, error)

    def _fail_all(self, group: ProcessGroup, index: int, error: HoldfastError) -> None:
        for process in group.find_processes(index):
            if not process._returncode.done():
                self._settle(process)
            process._pid.set_exception(error)
            process._returncode.set_exception(error)
            process._inbox.end(error)

    # ---- asked by the script

    def create_group(self, number: int, hosts: Sequence[Host], spec: GroupSpec) -> ProcessGroup:
        """Make the handles and have the launches sent, each as soon as its host is attached."""
        group = ProcessGroup(self, number, hosts, spec)
        if self.closed:
            raise ContextClosed(self.closed)
        _check_launch(group)
        self.groups[number] = group
        try:
            self.save()
        except BaseException:  # else the next script would start what this one was told has failed
            del self.groups[number]
            raise
        self.ask(self._launch, group)
        return group

    def find_host(self, number: int, rank: int) -> Host | None:
        """Whose a rank of a group is."""
        group = self.groups.get(number)
        return (
            group._processes[rank].host if group is not None and rank < group.world_size else None
        )

    def adopt_group(self, group: ProcessGroup) -> None:
        """Take a group over from an earlier script, as its state tells of it. Before the bus
        starts."""
        self.groups[group.number] = group
        self.running += group.world_size
        for index, host in enumerate(group.hosts):
            host._groups[group.number] = (group, index)
            if (
                not host._identity and host._reason is None
            ):  # no manager had come yet: the order is still to be given
                host._early.append(_make_launch(group, index))

    def _launch(self, group: ProcessGroup) -> None:
        self.running += group.world_size
        for index, host in enumerate(group.hosts):
            if host._reason is not None:
                self._fail_all(group, index, host._make_error())
                continue
            host._groups[group.number] = (group, index)
            self._say(host, _make_launch(group, index))
        self._events.say(
            "group created", group=group.name, processes=group.world_size, hosts=len(group.hosts)
        )
        self.changed()

    def _say(self, host: Host, message: bytes) -> None:
        if host._peer is not None:
            self._fleet.push_ordered(host._peer, message)
        elif host._reason is None:
            host._early.append(message)

    def post_send(self, group: ProcessGroup, process: Process, cuts: list[Cut]) -> None:
        """Send a message that was cut into parts."""
        number, rank = group.number, process.rank
        # One call: parts of two messages that two threads send must not mix.
        self.ask(
            self._say_all, process.host, [encode_message(Send(number, rank, *cut)) for cut in cuts]
        )

    def post_broadcast(self, group: ProcessGroup, cuts: list[Cut]) -> None:
        """Send a message to all processes of a group."""
        messages = [
            encode_message(Send(group.number, None, data, part, last)) for data, part, last in cuts
        ]
        self.ask(self._broadcast, group, messages)

    def _broadcast(self, group: ProcessGroup, messages: list[bytes]) -> None:
        for host in group.hosts:
            self._say_all(host, messages)

    def _say_all(self, host: Host, messages: list[bytes]) -> None:
        for message in messages:
            self._say(host, message)

    def signal(self, processes: Sequence[Process], number: int, whole_group: bool) -> Future[int]:
        """Signal many at once; the future's value is how many were there."""
        whom = processes[0] if len(processes) == 1 else f"{len(processes)} processes"
        future: Future[int] = Future(f"signal {number}", whom)
        self.ask(self._signal, future, list(processes), number, whole_group)
        return future

    def _signal(
        self, future: Future[int], processes: list[Process], number: int, whole_group: bool
    ) -> None:
        batches = _batch(processes)
        living = [batch for batch in batches if batch[0]._reason is None]
        if not living:
            if batches:
                future.set_exception(batches[0][0]._make_error())
            else:
                future.set_result(0)
            return
        request = _Request(future, len(living))
        for host, group, ranks in living:
            self._request_number += 1
            self._requests[self._request_number] = (request, host)
            self._say(
                host,
                encode_message(
                    SignalProcesses(self._request_number, group, ranks, number, whole_group)
                ),
            )

    def stop(self, processes: Sequence[Process], grace_seconds: float) -> None:
        """TERM, grace, KILL for many at once."""
        self.ask(self._stop, list(processes), grace_seconds)

    def _stop(self, processes: list[Process], grace_seconds: float) -> None:
        for host, group, ranks in _batch(processes):
            self._say(host, encode_message(StopProcesses(group, ranks, grace_seconds)))

    def forget(self, group: ProcessGroup) -> None:
        """Let go of a group."""
        if self.closed:
            raise ContextClosed(self.closed)
        if self.groups.pop(group.number, None) is not None:
            # Before the managers forget it: a script that came back to a state that names it would
            # launch it again.
            try:
                self.save()
            except BaseException:  # the script was told that nothing happened
                self.groups[group.number] = group
                raise
        self.ask(self._forget, group)

    def _forget(self, group: ProcessGroup) -> None:
        error = ProcessEnded(
            f"the script let go of the group {group.name}, which ended what still ran of it"
        )
        for index, host in enumerate(group.hosts):
            if host._groups.pop(group.number, None) is not None:
                self._fail_all(group, index, error)
                if host._reason is None:
                    self._say(host, encode_message(Forget([group.number])))
        self.changed()

    def close(self, error: ContextClosed) -> None:
        """Fail whatever is still pending: nobody will settle it. After the bus has ended."""
        for group in list(self.groups.values()):
            for index in range(len(group.hosts)):
                self._fail_all(group, index, error)
        for number, (request, _) in list(self._requests.items()):
            self._close_request(number, request, error)

    # ---- what managers say of processes

    def _find(
        self, host: Host, group_number: int, ranks: Iterable[Any]
    ) -> Iterable[tuple[Process, Any]]:
        """The processes meant; a manager speaks only for its own host's."""
        group, _ = host._groups.get(group_number, (None, 0))
        if group is None:
            return
        for item in ranks:
            if item.rank < group.world_size and group._processes[item.rank].host is host:
                yield group._processes[item.rank], item
            else:
                self.refused["foreign rank"] += 1

    def _settle(self, process: Process) -> None:
        self.running -= 1
        process.group._open -= 1

    def _take_launched(self, host: Host, message: Launched) -> None:
        for process, item in self._find(host, message.group, message.processes):
            process._pid.set_result(item.pid)

    def _take_launch_failed(self, host: Host, message: LaunchFailed) -> None:
        for process, item in self._find(host, message.group, message.processes):
            if process._returncode.done():
                continue
            error = ProcessFailedToStart(process.name, str(host), item.reason)
            self._settle(process)
            process._pid.set_exception(error)
            process._returncode.set_exception(error)
            process._inbox.end(error)
            self._events.say(
                "process failed to start", process=process.name, host=str(host), reason=item.reason
            )

    def _take_exited(self, host: Host, message: Exited) -> None:
        for process, item in self._find(host, message.group, message.processes):
            if process._returncode.done():
                continue
            code = item.exit_code if item.exit_code is not None else -(item.signal or 9)
            self._settle(process)
            process._returncode.set_result(code)
            process._inbox.end(
                ProcessEnded(f"process {process.name} on host {host} ended with {code}")
            )
            if code:
                self._events.say(
                    "process ended", process=process.name, host=str(host), returncode=code
                )
        self.changed()

    def _take_signalled(self, host: Host, message: Signalled) -> None:
        request, whose = self._requests.get(message.request, (None, None))
        if request is not None and whose is host:
            request.reached += message.reached
            self._close_request(message.request, request, None)

    def _close_request(self, number: int, request: _Request, error: HoldfastError | None) -> None:
        del self._requests[number]
        request.left -= 1
        if request.left:
            return
        if error is not None and not request.several:
            request.future.set_exception(error)
        else:
            request.future.set_result(request.reached)

    def _take_delivery(self, host: Host, message: Deliver) -> None:
        group, _ = host._groups.get(message.group, (None, 0))
        if group is None or message.rank >= group.world_size:
            self.refused["foreign rank"] += 1
            return
        process = group._processes[message.rank]
        if process.host is not host:
            self.refused["foreign rank"] += 1
            return
        before = process._inbox.dropped
        process._inbox.add_part(message.data, message.part, message.last)
        count = process._inbox.dropped
        self.dropped += count - before
        if has_doubled(before, count):
            reason = f"nobody receives them; {count} so far"
            self._events.say(
                "messages dropped", process=process.name, host=str(host), reason=reason
            )

    def _take_dropped(self, host: Host, message: Dropped) -> None:
        self.dropped += message.count
        reason = f"{message.count} messages for rank {message.rank} were never taken by the process"
        self._events.say("messages dropped", host=str(host), reason=reason)

    def _take_usage(self, host: Host, message: HostUsage) -> None:
        host._usage = message


def _make_launch(group: ProcessGroup, index: int) -> bytes:
    spec = group.spec
    per_host = spec.processes_per_host
    return encode_message(
        LaunchProcesses(
            group.number,
            spec.name,
            group.world_size,
            per_host,
            index * per_host,
            per_host,
            spec.args,
            spec.env,
            spec.cwd,
            spec.log,
            spec.simulate,
        )
    )


def _check_launch(group: ProcessGroup) -> None:
    """Refuse what could not be sent, where it is asked for: in the bus's thread nobody would hear
    of it."""
    try:
        size = len(_make_launch(group, 0))
    except UnicodeEncodeError as error:
        raise ValidationError(
            f"{error.object!r} cannot be sent: args, env, cwd and names are text, and this holds "
            "bytes that are none",
            field="args",
        ) from None
    if size > MAX_LAUNCH_BYTES:
        raise TooLarge(
            f"the arguments and the environment have {size} bytes, the limit is "
            f"{MAX_LAUNCH_BYTES} (and the kernel's is about "
            "2 MB); put the input in a file"
        )


def _batch(processes: Sequence[Process]) -> list[tuple[Host, int, list[int] | None]]:
    """By host and group: the ranks meant, None for all that are there."""
    ranks: dict[tuple[Host, ProcessGroup], list[int]] = {}
    for process in processes:
        ranks.setdefault((process.host, process.group), []).append(process.rank)
    return [
        (host, group.number, None if len(found) == group.spec.processes_per_host else found)
        for (host, group), found in ranks.items()
    ]
