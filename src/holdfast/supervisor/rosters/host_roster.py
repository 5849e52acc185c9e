"""The hosts of a run: the handles of the script joined with the sessions of the fleet.

Any thread may call public functions; they queue their work for the bus's thread, which alone
changes anything.

- A handle is given a manager once; when the manager is lost the handle is lost.
ROSTER-2  Every future pending on a host is failed when the host is lost, with its name and the
          reason.
ROSTER-3  A manager that was given back, replaced or lost is never given out again, nor is the
          machine of a replaced one (unless Holdfast decides which machines come back:
          `bars_machines` False).
ROSTER-4  A lost host counts as cleared on evidence, a goodbye, or after the longest time that its
          manager, or the warden of a frozen manager, may take to end everything.
ROSTER-5  An earlier script may have met a manager in its last instant, after the state was saved: a
          handle that waits, and has a group, goes to the manager that reports its processes; other
          managers get it only after that manager had its time to come back.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.host.warden import FROZEN_SECONDS
from holdfast.supervisor.line.bus import FleetLine, Peer
from holdfast.supervisor.line.machine import read_machine_name
from holdfast.supervisor.line.session_fleet import EXIT_GIVEN_UP
from holdfast.supervisor.line.session_host import EXCUSE_SECONDS
from holdfast.supervisor.rosters.events import EventLog
from holdfast.supervisor.rosters.failures import ContextClosed
from holdfast.supervisor.rosters.hosts import Demand, Host
from holdfast.supervisor.rosters.process_table import ProcessTable
from holdfast.wire.bus.messages import Bye, End, ManagerHello, StopProcesses, Up, encode_message

EXIT_RETURNED = 0
EXIT_REPLACED = 72  # not zero, so that a scheduler replaces the machine
_FOREVER = float("inf")
_MAX_REASON = 10_000
# For a scan for descendants that left the tree, and for the slow turns of an overloaded machine.
_CLEAR_SLACK_SECONDS = 5.0


class HostRoster:
    """All hosts of one context."""

    def __init__(self, fleet: FleetLine, crew: ProcessTable, events: EventLog) -> None:
        self.fleet = fleet
        self.crew = crew
        self.hosts: dict[int, Host] = {}
        self.idle: OrderedDict[bytes, Peer] = OrderedDict()
        self.excluded: dict[str, str] = {}
        self.closing: dict[bytes, Peer] = {}  # told to end, goodbye awaited
        self.expected: dict[bytes, Host] = {}  # of an earlier script, not heard of yet
        self.unmet: list[Host] = []  # of an earlier script's groups, manager unknown (ROSTER-5)
        self.expect_until = 0.0
        self.bars_machines = True
        self.term_grace_seconds = 0.0  # of processes whose manager gets TERM; 0 if unknown
        self.changed: Callable[[], None] = lambda: None  # the state folder listens
        self.ending = False
        # By manager, until it says goodbye or falls silent.
        self._given_back: dict[bytes, Host] = {}
        # Lost, and when they count as cleared; the earliest first.
        self._uncleared: dict[Host, float] = {}
        self._when_closed: list[Future[None]] = []
        self._events = events
        self._waiting: dict[Demand, deque[Host]] = {}

    # ---- hosts, asked by the script

    def request(self, hosts: Sequence[Host]) -> None:
        """Attach these handles of hosts to host managers, as managers connect."""
        for host in hosts:
            self._take_in(host)
        self.crew.ask(self._request, hosts)

    def _take_in(self, host: Host) -> None:
        self.hosts[host.number] = host
        host.ask_port = self.crew.find_port

    def give_back(self, hosts: Sequence[Host], code: int, reason: str, bad_machine: bool) -> None:
        """End the managers of these hosts; the hosts' handles are lost for the reason given."""
        self.crew.ask(self._give_back, hosts, code, reason, bad_machine)

    def forgive(self, hostname: str) -> None:
        """Allow a machine that was replaced to be given out again."""
        self.crew.ask(self._forgive, hostname)

    def _forgive(self, hostname: str) -> None:
        if self.excluded.pop(hostname, None) is not None:
            for peer in [peer for peer in self.idle.values() if peer.facts.hostname == hostname]:
                self._offer(peer)

    def _request(self, hosts: Sequence[Host]) -> None:
        demands: dict[Demand, list[Host]] = {}
        for host in hosts:
            if not host.connection_lost():
                demands.setdefault(host.demand, []).append(host)
        for demand, wanting in demands.items():
            queue = self._waiting.setdefault(demand, deque())
            queue.extend(wanting)
            for peer in [peer for peer in self.idle.values() if self._may_have(peer, demand)]:
                if not queue:
                    break
                del self.idle[peer.identity]
                self._attach(queue.popleft(), peer)
            if not queue:
                del self._waiting[demand]
        self.changed()

    def _may_have(self, peer: Peer, demand: Demand) -> bool:
        return peer.facts.hostname not in self.excluded and demand.fits(peer.facts)

    def _offer(self, peer: Peer) -> None:
        """Attach a manager to the longest waiting handle that it fits, or keep it idle."""
        fitting = [
            (queue[0].number, demand)
            for demand, queue in self._waiting.items()
            if self._may_have(peer, demand)
        ]
        if not fitting:
            self.idle[peer.identity] = peer
            return
        self.idle.pop(peer.identity, None)
        _, demand = min(fitting, key=lambda pair: pair[0])
        queue = self._waiting[demand]
        host = queue.popleft()
        if not queue:
            del self._waiting[demand]
        self._attach(host, peer)
        self.changed()

    def _attach(self, host: Host, peer: Peer) -> None:
        host.attach(peer)
        self._say_held(host, peer)
        self._events.report_event("host attached", host=peer.facts.hostname, number=host.number)

    def _say_held(self, host: Host, peer: Peer) -> None:
        """Send the orders that the script gave while the host waited for its manager."""
        for message in host.take_held():
            self.fleet.push_ordered(peer, message)

    def _give_back(self, hosts: Sequence[Host], code: int, reason: str, bad_machine: bool) -> None:
        for host in hosts:
            if bad_machine and host.facts is not None:
                self._exclude(host, host.facts.hostname, reason)
            if host.connection_lost():
                continue
            if host.peer is not None:
                self._tell_end(host.peer, code, reason)
                self._given_back[host.identity] = host
            elif self.expected.pop(host.identity, None) is not None:
                self.fleet.bar(host.identity, code, reason)
            else:
                self._unqueue(host)
            self._lose(host, reason, said="host given back")
            if not host.identity:
                self._clear(host)  # no manager ever came
        self.changed()

    def _exclude(self, host: Host, name: str, reason: str) -> None:
        """Bar the host's machine (ROSTER-3), unless other managers or the script share its name."""
        others = any(
            peer.facts.hostname == name
            and peer is not host.peer
            and peer.identity not in self.closing
            for peer in self.fleet.peers.values()
        )
        if self.bars_machines and not others and name != read_machine_name():
            self.excluded[name] = reason
            self._events.report_event("machine excluded", host=name, reason=reason)

    def _unqueue(self, host: Host) -> None:
        if host in self.unmet:
            self.unmet.remove(host)
        queue = self._waiting.get(host.demand)
        if queue is not None and host in queue:
            queue.remove(host)
            if not queue:
                del self._waiting[host.demand]

    def _tell_end(self, peer: Peer, code: int, reason: str) -> None:
        """Queue, for a host manager, the order to end. The manager says goodbye when none of its
        processes runs any more."""
        self.closing[peer.identity] = peer
        self.idle.pop(peer.identity, None)
        grace_seconds = self.fleet.rules.kill_grace_seconds
        order = End(self.fleet.run, code, _make_sayable(reason), grace_seconds)
        self.fleet.push(peer, encode_message(order))

    def end_all(self, code: int, reason: str) -> None:
        """Tell every manager to end, idle ones too. Call this in the bus's thread."""
        self.ending = True
        for host in list(self.hosts.values()):
            if not host.connection_lost():
                if host.peer is not None:
                    self._tell_end(host.peer, code, reason)
                    self._given_back[host.identity] = host
                self._lose(host, reason, said="host given back")
        for identity in self.expected:
            self.fleet.bar(identity, code, reason)
        self.expected.clear()
        self.unmet.clear()
        self._waiting.clear()
        for peer in list(self.idle.values()):
            self._tell_end(peer, code, reason)

    def when_closed(self, future: Future[None]) -> None:
        """Settle `future` once every manager told to end has gone. Call this in the bus's
        thread."""
        self._when_closed.append(future)
        self._check_closed()

    def _check_closed(self) -> None:
        if not self.closing:
            waiting, self._when_closed = self._when_closed, []
            for future in waiting:
                future.set_result(None)

    def adopt(self, host: Host) -> None:
        """Take over the handle of a host from an earlier script, after the groups on that host.
        Call this before the bus starts."""
        self._take_in(host)
        if host.connection_lost():
            self._await_clearing(host)
        elif host.identity:
            self.expected[host.identity] = host
        elif host.parts:
            self.unmet.append(host)
        else:
            self._waiting.setdefault(host.demand, deque()).append(host)

    # ---- told by the bus

    def take_came(self, peer: Peer, hello: ManagerHello) -> None:
        """Attach a manager to the handle that it served for an earlier script, or offer it to
        others."""
        if self.ending:
            self._tell_end(peer, EXIT_RETURNED, "the script is done")
            return
        host = self.expected.pop(peer.identity, None) or self._find_by_processes(hello)
        if host is None:
            for report in hello.groups:  # the script does not know them any more
                stop = StopProcesses(report.group, None, self.fleet.rules.kill_grace_seconds)
                self.fleet.push(peer, encode_message(stop))
            name = peer.facts.hostname
            if name in self.excluded:
                self._events.report_event(
                    "excluded machine waits", host=name, reason=self.excluded[name]
                )
            self._offer(peer)
            return
        host.attach(peer)
        self._events.report_event(
            "host attached again", host=peer.facts.hostname, number=host.number
        )
        self.changed()
        self.crew.take_reports(host, hello.groups)
        self._say_held(host, peer)  # after the launches that died with the earlier script

    def _find_by_processes(self, hello: ManagerHello) -> Host | None:
        """Return the handle of a manager that reports the handle's processes (ROSTER-5); None where
        there is none."""
        for report in hello.groups:
            ranks = [entry.rank for entry in report.running]
            ranks += [entry.rank for entry in report.ended]
            ranks += [entry.rank for entry in report.unstarted]
            for rank in ranks:
                host = self.crew.find_host(report.group, rank)
                if host is None or host.attached or host.connection_lost() or host.identity:
                    continue
                self._unqueue(host)
                return host
        return None

    def take_end_of_bus(self, reason: str) -> None:
        """Mark every host as lost, because the bus process ended and no order can reach a
        manager."""
        self.crew.closed = reason
        for host in list(self.hosts.values()):
            if not host.connection_lost():
                self._lose(host, reason)
        for peer in list(self.closing.values()):
            self._drop_peer(peer, reason)
        self.changed()

    def take_silent(self, peer: Peer, seconds: float) -> None:
        """Mark a manager that fell silent as lost (FLEET-1)."""
        host = self._drop_peer(peer, f"nothing was heard of it for {seconds:.1f} s")
        if host is not None:
            self._await_clearing(host)

    def take_messages(self, peer: Peer, messages: list[Up]) -> None:
        """Act on messages that a host manager sent."""
        host = peer.host
        actions = self.crew.actions
        for message in messages:
            action = actions.get(type(message))
            if action is not None:
                if host is not None:  # else the host was given back, and its processes with it
                    action(host, message)
            elif isinstance(message, Bye):
                self.fleet.bar(peer.identity, message.code, "it had said goodbye")
                self.fleet.dismiss(peer)
                host = self._drop_peer(peer, message.reason)
                if host is not None:
                    self._clear(host)
            else:
                self.crew.refused["out of place"] += 1

    def _drop_peer(self, peer: Peer, reason: str) -> Host | None:
        """Forget a manager that is gone. Returns the handle that it served, or None."""
        self.idle.pop(peer.identity, None)
        if self.closing.pop(peer.identity, None) is not None:
            self._check_closed()
        host = self._given_back.pop(peer.identity, None)
        if isinstance(peer.host, Host):
            host = peer.host
            self._lose(host, reason)
            self.changed()
        return host

    def _await_clearing(self, host: Host) -> None:
        """Start to count the longest time in which the lost host's processes may still run
        (ROSTER-4)."""
        rules = self.fleet.rules
        silence = rules.loss_seconds + EXCUSE_SECONDS  # SILENCE-3
        longest = max(silence + rules.orphan_grace_seconds, FROZEN_SECONDS)
        self._uncleared.pop(host, None)
        grace = max(rules.kill_grace_seconds, self.term_grace_seconds)
        self._uncleared[host] = time.monotonic() + longest + grace + _CLEAR_SLACK_SECONDS

    def _clear(self, host: Host) -> None:
        if self._uncleared.pop(host, None) is not None:
            host.clear()

    def close(self) -> None:
        """Fail every future of a host that is still pending. Call this after the bus has ended."""
        error = ContextClosed(
            "the context was shut down: whether anything runs on the host is not known"
        )
        for host in list(self.hosts.values()):
            host.close(error)
        self.crew.close(error)

    def turn(self, now: float) -> float:
        """Do the work that is due: give up expected hosts that did not come, and mark lost hosts as
        cleared."""
        if self.fleet.left:
            left, self.fleet.left = set(self.fleet.left), []
            for host in [host for host in self._uncleared if host.identity in left]:
                self._clear(host)  # ROSTER-4
        while self._uncleared:
            host, at = next(iter(self._uncleared.items()))
            if at > now:
                return min(at, self._give_up_expected(now))
            self._clear(host)
        return self._give_up_expected(now)

    def _give_up_expected(self, now: float) -> float:
        if not self.expected and not self.unmet:
            return _FOREVER
        if now < self.expect_until:
            return self.expect_until
        unmet, self.unmet = self.unmet, []
        self._request(unmet)
        for identity, host in list(self.expected.items()):
            reason = "it did not come back to the script that was started again"
            self.fleet.bar(identity, EXIT_GIVEN_UP, reason)
            del self.expected[identity]
            self._lose(host, reason)
        self.changed()
        return _FOREVER

    def _lose(self, host: Host, reason: str, *, said: str = "host lost") -> None:
        """End the script's connection to a host. said: the kind of the event, where it is not "host
        lost"."""
        self._await_clearing(host)
        error = host.lose(reason)
        self._events.report_event(said, host=error.hostname, number=host.number, reason=reason)
        self.crew.take_loss(host, error)


def _make_sayable(reason: str) -> str:
    """Shorten a script's reason and replace odd bytes, so that the order can be sent."""
    return reason[:_MAX_REASON].encode(errors="backslashreplace").decode()
