"""Who is there and what runs where: the handles of the script joined with the sessions of the
fleet.

Public functions may be called by any thread; they hand their work to the bus's thread, which alone
changes anything.

ROSTER-1  A handle is given a manager once; when that is lost the handle is lost.
ROSTER-2  Every future pending on a host is failed when the host is lost, with its name and the
          reason.
ROSTER-4  A lost host counts as cleared on evidence, a goodbye, or after the longest time that its
          manager, or the warden of one that is frozen, may take to end everything.
ROSTER-3  A manager that was given back, replaced or lost is never given out again, nor is the
          machine of a replaced one (unless others decide which machines come back: `bars_machines`
          False).
ROSTER-5  An earlier script may have met a manager in its last instant, after what the state tells:
          a handle that waits, and has a group, is for whoever reports its processes, and for others
          once that one had its time to come back.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from holdfast.supervisor.host.warden import FROZEN_SECONDS
from holdfast.supervisor.line.machine import read_machine_name
from holdfast.supervisor.line.session_fleet import Fleet, ManagerPeer
from holdfast.supervisor.script.events import EventLog
from holdfast.supervisor.script.failures import ContextClosed
from holdfast.supervisor.script.futures import Future
from holdfast.supervisor.script.hosts import Demand, Host
from holdfast.supervisor.script.roster_crew import CrewRoster
from holdfast.wire.bus import Bye, End, ManagerHello, StopProcesses, Up, encode_message

EXIT_RETURNED = 0
EXIT_REPLACED = 72  # not zero, so that a scheduler replaces the machine
EXIT_GIVEN_UP = 73
_FOREVER = float("inf")
_MAX_REASON = 10_000
_CLEAR_SLACK_SECONDS = (
    5.0  # a scan for descendants that fled, and turns of a machine that is overloaded
)


class HostRoster:
    """All hosts of one context."""

    def __init__(self, fleet: Fleet, crew: CrewRoster, events: EventLog) -> None:
        self.fleet = fleet
        self.crew = crew
        self.hosts: dict[int, Host] = {}
        self.idle: OrderedDict[bytes, ManagerPeer] = OrderedDict()
        self.excluded: dict[str, str] = {}
        self.closing: dict[bytes, ManagerPeer] = {}  # told to end, goodbye awaited
        self.expected: dict[bytes, Host] = {}  # of an earlier script, not heard of yet
        self.unmet: list[
            Host
        ] = []  # of an earlier script's groups, and of no manager that is known (ROSTER-5)
        self.expect_until = 0.0
        self.bars_machines = True
        self.term_grace_seconds = (
            0.0  # what processes have of a manager that gets TERM, where that is known
        )
        self.changed: Callable[[], None] = lambda: None  # the state file listens
        self.ending = False
        self._given_back: dict[
            bytes, Host
        ] = {}  # by manager, until it says goodbye or falls silent
        self._uncleared: dict[
            Host, float
        ] = {}  # lost, and when they count as cleared; the earliest first
        self._when_closed: list[Future[None]] = []
        self._events = events
        self._waiting: dict[Demand, deque[Host]] = {}

    # ---- hosts, asked by the script

    def request(self, hosts: Sequence[Host]) -> None:
        """Have these handles attached as managers check in."""
        for host in hosts:
            self.hosts[host.number] = host
        self.crew.ask(self._request, hosts)

    def give_back(self, hosts: Sequence[Host], code: int, reason: str, bad_machine: bool) -> None:
        """End the managers of these hosts; the handles are lost with that reason."""
        self.crew.ask(self._give_back, hosts, code, reason, bad_machine)

    def forgive(self, hostname: str) -> None:
        """Let a machine that was replaced be given out again."""
        self.crew.ask(self._forgive, hostname)

    def _forgive(self, hostname: str) -> None:
        if self.excluded.pop(hostname, None) is not None:
            for peer in [peer for peer in self.idle.values() if peer.facts.hostname == hostname]:
                self._offer(peer)

    def _request(self, hosts: Sequence[Host]) -> None:
        demands: dict[Demand, list[Host]] = {}
        for host in hosts:
            if host._reason is None:
                demands.setdefault(host._demand, []).append(host)
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

    def _may_have(self, peer: ManagerPeer, demand: Demand) -> bool:
        return peer.facts.hostname not in self.excluded and demand.fits(peer.facts)

    def _offer(self, peer: ManagerPeer) -> None:
        """Give a manager to the longest waiting handle it fits, or keep it."""
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

    def _attach(self, host: Host, peer: ManagerPeer) -> None:
        host._attach(peer, peer.facts)
        self._say_early(host, peer)
        self._events.say("host attached", host=peer.facts.hostname, number=host.number)

    def _say_early(self, host: Host, peer: ManagerPeer) -> None:
        """What the script asked of it while it waited."""
        early, host._early = host._early, []
        for message in early:
            self.fleet.push_ordered(peer, message)

    def _give_back(self, hosts: Sequence[Host], code: int, reason: str, bad_machine: bool) -> None:
        for host in hosts:
            peer = host._peer
            if bad_machine and host._facts is not None:
                self._exclude(host, reason)
            if host._reason is not None:
                continue
            if peer is not None:
                self._tell_end(peer, code, reason)
                self._given_back[peer.identity] = host
            elif self.expected.pop(host._identity, None) is not None:
                self.fleet.bar(host._identity, code, reason)
            else:
                self._unqueue(host)
            self._lose(host, reason)
            if not host._identity:
                self._clear(host)  # no manager ever came
        self.changed()

    def _exclude(self, host: Host, reason: str) -> None:
        """ROSTER-3. Not where the name says nothing: several managers on one machine, or the
        script's own."""
        assert host._facts is not None
        name = host._facts.hostname
        others = any(
            peer.facts.hostname == name
            and peer is not host._peer
            and peer.identity not in self.closing
            for peer in self.fleet.peers.values()
        )
        if self.bars_machines and not others and name != read_machine_name():
            self.excluded[name] = reason
            self._events.say("machine excluded", host=name, reason=reason)

    def _unqueue(self, host: Host) -> None:
        if host in self.unmet:
            self.unmet.remove(host)
        queue = self._waiting.get(host._demand)
        if queue is not None and host in queue:
            queue.remove(host)
            if not queue:
                del self._waiting[host._demand]

    def _tell_end(self, peer: ManagerPeer, code: int, reason: str) -> None:
        """Say it within the session; the manager says goodbye when nothing of it runs."""
        self.closing[peer.identity] = peer
        self.idle.pop(peer.identity, None)
        order = End(
            self.fleet.run, code, _make_sayable(reason), self.fleet.rules.kill_grace_seconds
        )
        self.fleet.push(peer, encode_message(order))

    def end_all(self, code: int, reason: str) -> None:
        """Tell every manager to end, waiting ones too. In the bus's thread."""
        self.ending = True
        for host in list(self.hosts.values()):
            if host._reason is None:
                if host._peer is not None:
                    self._tell_end(host._peer, code, reason)
                    self._given_back[host._peer.identity] = host
                self._lose(host, reason)
        for identity in self.expected:
            self.fleet.bar(identity, code, reason)
        self.expected.clear()
        self.unmet.clear()
        self._waiting.clear()
        for peer in list(self.idle.values()):
            self._tell_end(peer, code, reason)

    def when_closed(self, future: Future[None]) -> None:
        """Settle `future` once every manager told to end has said goodbye or fallen silent. In the
        bus's thread."""
        self._when_closed.append(future)
        self._check_closed()

    def _check_closed(self) -> None:
        if not self.closing:
            waiting, self._when_closed = self._when_closed, []
            for future in waiting:
                future.set_result(None)

    def adopt(self, host: Host) -> None:
        """Take a handle over from an earlier script, its groups before it. Before the bus
        starts."""
        self.hosts[host.number] = host
        if host._reason is not None:
            self._await_clearing(host)
        elif host._identity:
            self.expected[host._identity] = host
        elif host._groups:
            self.unmet.append(host)
        else:
            self._waiting.setdefault(host._demand, deque()).append(host)

    # ---- what the bus says

    def take_came(self, peer: ManagerPeer, hello: ManagerHello) -> None:
        """A manager checked in: one of an earlier script goes on, another is offered to whoever
        waits."""
        if self.ending:
            self._tell_end(peer, EXIT_RETURNED, "the script is done")
            return
        host = self.expected.pop(peer.identity, None) or self._find_by_processes(hello)
        if host is None:
            strange = [report.group for report in hello.groups]
            for group in strange:  # no script knows them any more
                stop = StopProcesses(group, None, self.fleet.rules.kill_grace_seconds)
                self.fleet.push(peer, encode_message(stop))
            name = peer.facts.hostname
            if name in self.excluded:
                self._events.say("excluded machine waits", host=name, reason=self.excluded[name])
            self._offer(peer)
            return
        host._attach(peer, peer.facts)
        self._events.say("host attached again", host=peer.facts.hostname, number=host.number)
        self.changed()
        self.crew.take_reports(host, hello.groups)
        self._say_early(host, peer)  # after the launches that died with the earlier script

    def _find_by_processes(self, hello: ManagerHello) -> Host | None:
        """The handle of a manager that was attached in the instant before the script died: its
        processes tell."""
        for report in hello.groups:
            ranks = [entry.rank for entry in report.running]
            ranks += [entry.rank for entry in report.ended]
            ranks += [entry.rank for entry in report.unstarted]
            for rank in ranks:
                host = self.crew.find_host(report.group, rank)
                if (
                    host is not None
                    and host._peer is None
                    and host._reason is None
                    and not host._identity
                ):
                    self._unqueue(host)
                    return host
        return None

    def take_silent(self, peer: ManagerPeer) -> None:
        """A manager fell silent: it is lost (FLEET-1)."""
        silence = f"nothing was heard of it for {time.monotonic() - peer.heard_at:.1f} s"
        self.fleet.give_up(peer, EXIT_GIVEN_UP, f"the supervisor gave this host up: {silence}")
        host = self._drop_peer(peer, silence)
        if host is not None:
            self._await_clearing(host)

    def take_messages(self, peer: ManagerPeer, messages: list[Up]) -> None:
        """Messages of a manager."""
        host = peer.host
        actions = self.crew.actions
        for message in messages:
            action = actions.get(type(message))
            if action is not None:
                if host is not None:  # else it was given back: nobody waits for its words
                    action(host, message)
            elif isinstance(message, Bye):
                self.fleet.bar(peer.identity, message.code, "it had said goodbye")
                self.fleet.dismiss(peer)
                host = self._drop_peer(peer, message.reason)
                if host is not None:
                    self._clear(host)
            else:
                self.crew.refused["out of place"] += 1

    def _drop_peer(self, peer: ManagerPeer, reason: str) -> Host | None:
        """A manager is gone. Returns the handle that it served, or had served when that was given
        back."""
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
        """ROSTER-4: from now on it, at the latest, hears nothing of us."""
        rules = self.fleet.rules
        longest = max(rules.loss_seconds + rules.orphan_grace_seconds, FROZEN_SECONDS)
        self._uncleared.pop(host, None)
        grace = max(rules.kill_grace_seconds, self.term_grace_seconds)
        self._uncleared[host] = time.monotonic() + longest + grace + _CLEAR_SLACK_SECONDS

    def _clear(self, host: Host) -> None:
        if self._uncleared.pop(host, None) is not None:
            host._cleared.set_result(time.time())

    def close(self) -> None:
        """No more is learned: whoever still waits for anything is told so. After the bus has
        ended."""
        error = ContextClosed("the context was shut down: what still runs on the host is not known")
        for host in list(self.hosts.values()):
            for future in (host._hostname, host._lost, host._cleared):
                future.set_exception(error)
        self.crew.close(error)

    def turn(self, now: float) -> float:
        """Do what is due: give up whoever was expected and did not come, and call hosts cleared."""
        if self.fleet.left:
            left, self.fleet.left = set(self.fleet.left), []
            for host in [host for host in self._uncleared if host._identity in left]:
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

    def _lose(self, host: Host, reason: str) -> None:
        self._await_clearing(host)
        error = host._lose(reason)
        self._events.say("host lost", host=error.hostname, number=host.number, reason=reason)
        self.crew.take_loss(host, error)


def _make_sayable(reason: str) -> str:
    """A script's reason may be an error's text, with paths of odd bytes or a whole log in it; the
    order must get through."""
    return reason[:_MAX_REASON].encode(errors="backslashreplace").decode()
