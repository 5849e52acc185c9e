"""Groups and processes of a run, joined with the sessions of their hosts.

Any thread may call public functions; they queue their work for the bus's thread, which alone
changes anything.

CREW-1  A manager speaks only for the processes of its own host.
- The first end of a process stands; repeated reports change nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, TooLarge, ValidationError
from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.futures.inbox import has_doubled
from holdfast.supervisor.line.bus import Bus, FleetLine
from holdfast.supervisor.rosters.events import EventLog
from holdfast.supervisor.rosters.failures import ContextClosed, ProcessEnded, ProcessFailedToStart
from holdfast.supervisor.rosters.groups import GroupSpec, Process, ProcessGroup
from holdfast.supervisor.rosters.hosts import Host
from holdfast.wire.bus import messages as wire

# A script that goes on at once keeps the interpreter's lock for up to 30 ms, and its launches wait
# for that.
_HAND_OVER_SECONDS = 0.02
MAX_LAUNCH_BYTES = 8 << 20  # the most bytes of one frame, with room to spare


class _Request:
    """A signal on its way to one host or several, or a question to a host. value: the sum of the
    answers so far."""

    __slots__ = ("future", "left", "several", "value")

    def __init__(self, future: Future[int], count: int) -> None:
        self.future = future
        self.left = count
        self.several = count > 1
        self.value = 0


class ProcessTable:
    """All processes of one context."""

    def __init__(self, fleet: FleetLine, events: EventLog, first_number: int) -> None:
        self.bus: Bus  # set by the run, before anything can happen
        self.groups: dict[int, ProcessGroup] = {}
        self.running = 0
        self.refused: Counter[str] = Counter()
        self.dropped = 0  # messages that were never received
        self.changed: Callable[[], None] = lambda: None  # the state folder listens
        self.save: Callable[[], None] = lambda: None  # write the saved run now
        self.closed = ""  # why nothing can be asked any more
        self.shared_words: dict[str, str] = {}  # in the environment of every process
        self._fleet = fleet
        self._events = events
        self._requests: dict[int, tuple[_Request, Host]] = {}
        self._request_number = first_number
        self.actions: dict[type, Callable[[Any, Any], None]] = {  # of a manager's messages, by kind
            wire.Launched: self._take_launched,
            wire.LaunchFailed: self._take_launch_failed,
            wire.Exited: self._take_exited,
            wire.Signalled: self._take_signalled,
            wire.PortFound: self._take_port,
            wire.Deliver: self._take_delivery,
            wire.Dropped: self._take_dropped,
            wire.HostUsage: Host.note_usage,
        }

    def ask(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function in the bus's thread, without waiting for it. Raises ContextClosed after
        the shutdown."""
        if self.closed:
            raise ContextClosed(self.closed)
        self.bus.call(function, *arguments)

    def take_reports(self, host: Host, reports: list[wire.GroupReport]) -> None:
        """Note the starts and ends that a host reports from the time when no script ran."""
        known = {report.group for report in reports}
        for report in reports:
            if report.group not in host.parts:  # the script has forgotten it
                self._say(host, wire.encode_message(wire.Forget([report.group])))
                continue
            self._take_launched(host, wire.Launched(report.group, report.running))
            self._take_launch_failed(host, wire.LaunchFailed(report.group, report.unstarted))
            self._take_exited(host, wire.Exited(report.group, report.ended))
        for number, (group, index) in host.parts.items():
            processes = group.find_processes(index)
            if number not in known and not all(process.over for process in processes):
                self._say(host, _make_launch(group, index))  # its order died with that script

    def take_loss(self, host: Host, error: HoldfastError) -> None:
        """Fail every future that was pending on the lost host (ROSTER-2)."""
        for group, index in host.parts.values():
            self._fail_all(group, index, error)
        for number, (request, whose) in list(self._requests.items()):
            if whose is host:
                self._close_request(number, request, error)

    def _fail_all(self, group: ProcessGroup, index: int, error: HoldfastError) -> None:
        for process in group.find_processes(index):
            if not process.over:
                self.running -= 1
            process.fail(error)

    # ---- asked by the script

    def create_group(self, number: int, hosts: Sequence[Host], spec: GroupSpec) -> ProcessGroup:
        """Make a group's handles and queue its launches; each is sent as soon as its host is
        attached."""
        spec = msgspec.structs.replace(spec, env=self.shared_words | spec.env)
        group = ProcessGroup(self, number, hosts, spec)
        if self.closed:
            raise ContextClosed(self.closed)
        _check_launch(group)
        self.groups[number] = group
        try:
            self.save()
        except BaseException:  # else the next script would start a group that failed here
            del self.groups[number]
            raise
        ordered = threading.Event()
        self.ask(self._launch, group, ordered)
        ordered.wait(_HAND_OVER_SECONDS)
        return group

    def find_host(self, number: int, rank: int) -> Host | None:
        """Return the host of a group's rank; None where there is no such rank."""
        group = self.groups.get(number)
        if group is None or rank >= group.world_size:
            return None
        return group.processes[rank].host

    def adopt_group(self, group: ProcessGroup, returncodes: Mapping[int, int]) -> None:
        """Take over an earlier script's group, with the returncodes that it knew. Call this before
        the bus starts."""
        self.groups[group.number] = group
        self.running += group.world_size - len(returncodes)
        for index, host in enumerate(group.hosts):
            host.parts[group.number] = (group, index)
            if not host.identity:  # no manager had come yet: the order is still to be given
                host.hold(_make_launch(group, index))
        for rank, code in returncodes.items():
            group.processes[rank].set_returncode(code)
        for host in group.hosts:
            if host.connection_lost():
                self.take_loss(host, host.make_error())

    def _launch(self, group: ProcessGroup, ordered: threading.Event) -> None:
        self.running += group.world_size
        for index, host in enumerate(group.hosts):
            if host.connection_lost():
                self._fail_all(group, index, host.make_error())
                continue
            host.parts[group.number] = (group, index)
            self._say(host, _make_launch(group, index))
        about: dict[str, str | int] = {"processes": group.world_size, "hosts": len(group.hosts)}
        if group.spec.log is not None:
            about["output"] = group.spec.log
        self._events.report_event("group created", group=group.name, **about)
        self.changed()
        ordered.set()

    def _say(self, host: Host, message: bytes) -> None:
        if host.peer is not None:
            self._fleet.push_ordered(host.peer, message)
        else:
            host.hold(message)

    def post_send(self, process: Process, cuts: list[wire.Cut]) -> None:
        """Send a message to one process. cuts: the parts into which the message was cut."""
        number, rank = process.group.number, process.rank
        # One call: parts of two messages that two threads send must not mix.
        messages = [wire.encode_message(wire.Send(number, rank, *cut)) for cut in cuts]
        self.ask(self._say_all, process.host, messages)

    def post_broadcast(self, group: ProcessGroup, cuts: list[wire.Cut]) -> None:
        """Send a message to all processes of a group. cuts: the parts into which the message was
        cut."""
        messages = [wire.encode_message(wire.Send(group.number, None, *cut)) for cut in cuts]
        self.ask(self._broadcast, group, messages)

    def _broadcast(self, group: ProcessGroup, messages: list[bytes]) -> None:
        there = [host for host in group.hosts if host.peer is not None]
        peers = [host.peer for host in there if host.peer is not None]
        for message in messages:
            self._fleet.push_to_all(peers, message)
        if len(there) < len(group.hosts):
            for host in group.hosts:
                if host.peer is None:
                    self._say_all(host, messages)

    def _say_all(self, host: Host, messages: list[bytes]) -> None:
        for message in messages:
            self._say(host, message)

    def signal(self, processes: Sequence[Process], number: int, whole_group: bool) -> Future[int]:
        """Signal many processes at once. The value of the future is the number of them that were
        running."""
        whom = processes[0] if len(processes) == 1 else f"{len(processes)} processes"
        future: Future[int] = Future(f"signal {number}", whom)
        self.ask(self._signal, future, list(processes), number, whole_group)
        return future

    def _signal(
        self, future: Future[int], processes: list[Process], number: int, whole_group: bool
    ) -> None:
        batches = _batch(processes)
        living = [batch for batch in batches if not batch[0].connection_lost()]
        if not batches:
            future.set_result(0)
        elif not living:
            future.set_exception(batches[0][0].make_error())
        request = _Request(future, len(living))
        for host, group, ranks in living:
            self._request_number += 1
            self._requests[self._request_number] = (request, host)
            order = wire.SignalProcesses(self._request_number, group, ranks, number, whole_group)
            self._say(host, wire.encode_message(order))

    def find_port(self, host: Host, ports: range) -> Future[int]:
        """Ask a host which of these ports is free; the value of the future is 0 where none is."""
        future: Future[int] = Future("a free port", host)
        self.ask(self._find_port, future, host, ports)
        return future

    def _find_port(self, future: Future[int], host: Host, ports: range) -> None:
        if host.connection_lost():
            future.set_exception(host.make_error())
            return
        self._request_number += 1
        self._requests[self._request_number] = (_Request(future, 1), host)
        order = wire.FindPort(self._request_number, ports[0], ports[-1])
        self._say(host, wire.encode_message(order))

    def stop(self, processes: Sequence[Process], grace_seconds: float) -> None:
        """End many processes at once: TERM, grace, KILL."""
        self.ask(self._stop, list(processes), grace_seconds)

    def _stop(self, processes: list[Process], grace_seconds: float) -> None:
        for host, group, ranks in _batch(processes):
            self._say(host, wire.encode_message(wire.StopProcesses(group, ranks, grace_seconds)))

    def forget(self, group: ProcessGroup) -> None:
        """Forget a group and its processes. Processes that still run are killed."""
        if self.closed:
            raise ContextClosed(self.closed)
        if self.groups.pop(group.number, None) is not None:
            # Saved before the managers forget it: a script that came back and found it in the saved
            # run would launch it again.
            try:
                self.save()
            except BaseException:  # the script was told that nothing happened
                self.groups[group.number] = group
                raise
        self.ask(self._forget, group)

    def _forget(self, group: ProcessGroup) -> None:
        error = ProcessEnded(
            f"the script let go of the group {group.name}, which ended its processes"
        )
        for index, host in enumerate(group.hosts):
            if host.parts.pop(group.number, None) is not None:
                self._fail_all(group, index, error)
                self._say(host, wire.encode_message(wire.Forget([group.number])))
        self.changed()

    def close(self, error: ContextClosed) -> None:
        """Fail every future that is still pending. Call this after the bus has ended."""
        for group in list(self.groups.values()):
            for index in range(len(group.hosts)):
                self._fail_all(group, index, error)
        for number, (request, _) in list(self._requests.items()):
            self._close_request(number, request, error)

    # ---- told by managers

    def _find(
        self, host: Host, group_number: int, entries: Iterable[Any]
    ) -> Iterable[tuple[Process, Any]]:
        """Find the process that each entry of a host's report is about (CREW-1)."""
        group: ProcessGroup | None = host.parts.get(group_number, (None, 0))[0]
        if group is None:
            return
        for entry in entries:
            if entry.rank < group.world_size and group.processes[entry.rank].host is host:
                yield group.processes[entry.rank], entry
            else:
                self.refused["foreign rank"] += 1

    def _tell(self, kind: str, process: Process, **facts: str | int) -> None:
        self._events.report_event(kind, process=process.name, host=str(process.host), **facts)

    def _take_launched(self, host: Host, message: wire.Launched) -> None:
        for process, entry in self._find(host, message.group, message.processes):
            process.start(entry.pid)

    def _take_launch_failed(self, host: Host, message: wire.LaunchFailed) -> None:
        for process, entry in self._find(host, message.group, message.processes):
            if process.over:
                continue
            self.running -= 1
            process.fail(ProcessFailedToStart(process.name, str(host), entry.reason))
            self._tell("process failed to start", process, reason=entry.reason)

    def _take_exited(self, host: Host, message: wire.Exited) -> None:
        for process, entry in self._find(host, message.group, message.processes):
            if process.over:
                continue
            code = entry.exit_code if entry.exit_code is not None else -(entry.signal or 9)
            self.running -= 1
            process.set_returncode(code)
            if code:
                self._tell("process ended", process, returncode=code)
        self.changed()

    def _take_signalled(self, host: Host, message: wire.Signalled) -> None:
        self._answer(host, message.request, message.reached)

    def _take_port(self, host: Host, message: wire.PortFound) -> None:
        self._answer(host, message.request, message.port)

    def _answer(self, host: Host, number: int, value: int) -> None:
        request, whose = self._requests.get(number, (None, None))
        if request is not None and whose is host:
            request.value += value
            self._close_request(number, request, None)

    def _close_request(self, number: int, request: _Request, error: HoldfastError | None) -> None:
        del self._requests[number]
        request.left -= 1
        if request.left:
            return
        if error is not None and not request.several:
            request.future.set_exception(error)
        else:
            request.future.set_result(request.value)

    def _take_delivery(self, host: Host, message: wire.Deliver) -> None:
        group: ProcessGroup | None = host.parts.get(message.group, (None, 0))[0]
        process = None
        if group is not None and message.rank < group.world_size:
            process = group.processes[message.rank]
        if process is None or process.host is not host:
            self.refused["foreign rank"] += 1
            return
        inbox = process.inbox
        before = inbox.dropped
        inbox.add_part(message.data, message.part, message.last)
        count = inbox.dropped
        self.dropped += count - before
        if has_doubled(before, count):
            reason = f"they are not received; {count} so far"
            self._tell("messages dropped", process, reason=reason)

    def _take_dropped(self, host: Host, message: wire.Dropped) -> None:
        self.dropped += message.count
        reason = f"{message.count} messages for rank {message.rank} were never taken by the process"
        self._events.report_event("messages dropped", host=str(host), reason=reason)


def _make_launch(group: ProcessGroup, index: int) -> bytes:
    spec = group.spec
    per_host = spec.processes_per_host
    launch = wire.LaunchProcesses(
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
    return wire.encode_message(launch)


def _check_launch(group: ProcessGroup) -> None:
    """Refuse a launch that cannot be sent, while the error can still reach the script."""
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
            f"{MAX_LAUNCH_BYTES} (and the kernel's is about 2 MB); put the input in a file"
        )


def _batch(processes: Sequence[Process]) -> list[tuple[Host, int, list[int] | None]]:
    """Return processes sorted by host and group: (host, group number, ranks), with None for all
    ranks of the host."""
    ranks: dict[tuple[Host, ProcessGroup], list[int]] = {}
    for process in processes:
        ranks.setdefault((process.host, process.group), []).append(process.rank)
    return [
        (host, group.number, None if len(found) == group.spec.processes_per_host else found)
        for (host, group), found in ranks.items()
    ]
