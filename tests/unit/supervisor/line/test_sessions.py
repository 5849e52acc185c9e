"""One supervisor's fleet and its managers over a wire that loses, doubles and swaps, on simulated
time. No sockets."""

from __future__ import annotations

from itertools import count, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.supervisor.line.session_fleet import SLACK_SECONDS, Fleet, ManagerPeer, Rules
from holdfast.supervisor.line.session_host import (
    EXCUSE_SECONDS,
    EXIT_NO_SUPERVISOR,
    EXIT_ORPHANED,
    HELLO_SECONDS,
    HostSession,
)
from holdfast.wire.bus.messages import (
    Bye,
    Deliver,
    End,
    GroupReport,
    MachineFacts,
    Send,
    decode_down,
    decode_up,
    encode_message,
)

RULES = Rules()
PATIENCE = 100.0
FACTS = MachineFacts(hostname="h")


class Wire:
    """A fleet, its hosts, and what is between them. `epochs` counts scripts of one run."""

    def __init__(self, hosts: int, rules: Rules = RULES) -> None:
        self.now = 1000.0
        self.rules = rules
        self.sessions = count(1)
        self.epoch = 0
        self.up: list[tuple[bytes, bytes]] = []
        self.down: list[tuple[bytes, bytes]] = []
        self.hosts: dict[bytes, HostSession] = {}
        self.obeyed: dict[bytes, list[int]] = {}
        self.heard: dict[bytes, list[int]] = {}
        self.lost: dict[bytes, float] = {}
        self.frozen: set[bytes] = set()
        self.waited = 0.0  # of each host, for a core
        self.start_script()
        for number in range(hosts):
            self.add_host(bytes([number + 1]) * 16)

    def start_script(self) -> None:
        self.epoch += 1
        self.fleet = Fleet(
            "run",
            self.epoch,
            self.rules,
            lambda: next(self.sessions),
            self.now,
            read_waited=lambda: self.waited,
        )

    def add_host(self, identity: bytes) -> None:
        self.hosts[identity] = HostSession(
            FACTS,
            1,
            now=self.now,
            patience_seconds=PATIENCE,
            report=list,
            read_waited=lambda: self.waited,
        )
        self.obeyed[identity], self.heard[identity] = [], []

    def peer(self, identity: bytes) -> ManagerPeer | None:
        return self.fleet.peers.get(identity)

    def flush(self) -> None:
        for identity, host in self.hosts.items():
            if identity not in self.frozen:
                self.up += [(identity, frame) for frame in host.take_frames(self.now)]
        self.down += self.fleet.take_outgoing(self.now)

    def deliver_up(self, index: int) -> None:
        identity, frame = self.up.pop(index)
        peer = self.fleet.receive(identity, frame, self.now)
        self.fleet.came.clear()
        if peer is not None:
            self.heard[identity] += [
                message.rank for message in decode_up(frame) if isinstance(message, Deliver)
            ]

    def deliver_down(self, index: int) -> None:
        identity, frame = self.down[index]
        if identity in self.frozen:
            return
        del self.down[index]
        host = self.hosts[identity]
        for message in host.receive(frame, self.now):
            if isinstance(message, Send):
                self.obeyed[identity].append(message.rank or 0)
            elif isinstance(message, End):
                host.end(message)

    def settle(self) -> None:
        """Everything on the way arrives, in order."""
        self.flush()
        for _ in range(200):
            readable = [
                n for n, (identity, _) in enumerate(self.down) if identity not in self.frozen
            ]
            if not self.up and not readable:
                return
            if self.up:
                self.deliver_up(0)
            elif readable:
                self.deliver_down(readable[0])
            self.flush()
        raise AssertionError("they talk for ever")

    def tick(self) -> None:
        for identity, host in self.hosts.items():
            if identity not in self.frozen:
                host.tick(self.now)
        for peer in self.fleet.tick(self.now):
            self.lost[peer.identity] = self.now
            self.fleet.give_up(peer, 73, "silent")

    def run(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.settle()
            self.tick()
            self.settle()


class Protocol(RuleBasedStateMachine):
    """LINK-1, MEET-1, FLEET-1, OUTBOX-1 under everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(3)
        self.ids = sorted(self.wire.hosts)
        self.sent: dict[bytes, list[int]] = {identity: [] for identity in self.ids}
        self.said: dict[bytes, list[int]] = {identity: [] for identity in self.ids}
        self.old: list[tuple[bytes, bytes]] = []

    @rule(which=st.integers(0, 2))
    def script_speaks(self, which: int) -> None:
        identity = self.ids[which]
        peer = self.wire.peer(identity)
        if peer is not None:
            self.sent[identity].append(len(self.sent[identity]))
            self.wire.fleet.push_ordered(
                peer, encode_message(Send(1, self.sent[identity][-1], b""))
            )

    @rule(which=st.integers(0, 2))
    def host_speaks(self, which: int) -> None:
        identity = self.ids[which]
        self.said[identity].append(len(self.said[identity]))
        self.wire.hosts[identity].push_ordered(
            encode_message(Deliver(1, self.said[identity][-1], b""))
        )

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.wire.now += seconds
        self.wire.tick()
        self.wire.flush()

    @rule(
        up=st.booleans(),
        at=st.integers(0, 30),
        what=st.sampled_from(["deliver", "deliver", "lose", "double"]),
    )
    def wire_acts(self, up: bool, at: int, what: str) -> None:
        self.wire.flush()
        frames = self.wire.up if up else self.wire.down
        if not frames:
            return
        at %= len(frames)
        self.old.append(frames[at])
        if what == "lose":
            del frames[at]
        elif what == "double":
            frames.append(frames[at])
        elif up:
            self.wire.deliver_up(at)
        else:
            self.wire.deliver_down(at)

    @rule()
    def all_is_delivered(self) -> None:
        self.wire.settle()

    @precondition(lambda self: self.old)
    @rule(at=st.integers(0, 1000))
    def something_old_comes_again(self, at: int) -> None:
        identity, frame = self.old[at % len(self.old)]
        self.wire.up.append((identity, frame))
        self.wire.down.append((identity, frame))

    @rule()
    def script_dies_and_comes_back(self) -> None:
        # What it was about to say dies with it, what is on the wire may still arrive: numbers are
        # not used again.
        self.wire.start_script()
        self.wire.lost.clear()

    @invariant()
    def nothing_is_done_twice_or_out_of_order(self) -> None:
        for identity in self.ids:
            obeyed = self.wire.obeyed[identity]
            assert obeyed == sorted(set(obeyed)), "an order was carried out twice, or too early"
            # A script that came back may hear again what the dead one had heard but not
            # acknowledged, in order.
            heard = self.wire.heard[identity]
            rises = [b - a for a, b in pairwise(heard)]
            assert self.wire.epoch > 1 or all(step == 1 for step in rises)
            assert set(heard) <= set(self.said[identity])

    @invariant()
    def whom_nobody_ended_goes_on(self) -> None:
        for identity, host in self.wire.hosts.items():
            if host.ending is not None and host.ending.code == 73:
                assert identity in self.wire.lost or self.wire.epoch > 1

    def teardown(self) -> None:
        """On a good wire every host that is not ending is heard of again, and everything it said
        arrives."""
        self.wire.run(12)
        for identity, host in self.wire.hosts.items():
            if host.ending is None:
                assert self.wire.peer(identity) is not None
                assert host.settled
                if self.wire.epoch == 1:
                    assert self.wire.heard[identity] == self.said[identity]
                    assert self.wire.obeyed[identity] == self.sent[identity]
                elif self.said[identity]:
                    assert self.wire.heard[identity][-1] == self.said[identity][-1]


Protocol.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestProtocol = Protocol.TestCase


def test_a_silent_host_is_lost_in_time_and_only_that() -> None:
    """FLEET-1, FLEET-2: within half a second of the third miss, and no other host is touched."""
    wire = Wire(3)
    wire.run(2)
    frozen = sorted(wire.hosts)[1]
    wire.frozen.add(frozen)
    began = wire.now
    wire.run(6, step=0.05)
    assert list(wire.lost) == [frozen]
    assert 2.0 <= wire.lost[frozen] - began <= RULES.loss_seconds + 0.1
    assert RULES.loss_seconds + 0.1 < 3.5
    wire.frozen.clear()
    wire.run(3)
    ending = wire.hosts[frozen].ending
    assert ending is not None
    assert ending.code == 73
    assert all(host.ending is None for identity, host in wire.hosts.items() if identity != frozen)


def test_a_stalled_supervisor_judges_nobody_before_they_could_speak() -> None:
    """FLEET-3."""
    wire = Wire(3)
    wire.run(2)
    wire.now += 20.0  # it did not turn; the hosts did, but nothing of theirs was read
    assert wire.fleet.tick(wire.now) == []
    wire.now += SLACK_SECONDS
    assert wire.fleet.tick(wire.now) == []
    wire.now += RULES.heartbeat_seconds
    assert len(wire.fleet.tick(wire.now)) == 3


@pytest.mark.parametrize(
    ("hosts", "frozen", "waits_twice"),
    [(8, 4, True), (8, 3, False), (3, 3, True), (2, 2, False), (1, 1, False)],
)
def test_many_that_fall_silent_at_once_are_evidence_against_the_listener(
    hosts: int, frozen: int, waits_twice: bool
) -> None:
    """FLEET-6."""
    wire = Wire(hosts)
    wire.run(2)
    wire.frozen = set(list(wire.hosts)[:frozen])
    began = wire.now
    wire.run(3 * RULES.loss_seconds)
    assert wire.lost.keys() == wire.frozen
    limit = RULES.loss_seconds * (2 if waits_twice else 1)
    for at in wire.lost.values():
        assert limit - RULES.heartbeat_seconds <= at - began <= limit + 0.5


def test_hosts_that_speak_again_within_the_second_limit_are_not_lost() -> None:
    """FLEET-6."""
    wire = Wire(4)
    wire.run(2)
    wire.frozen = set(wire.hosts)
    wire.run(RULES.loss_seconds + 1.0)
    wire.frozen = set()
    wire.run(3 * RULES.loss_seconds)
    assert wire.lost == {}


@pytest.mark.parametrize(("frozen", "limit"), [(1, 1), (4, 2)])
def test_lateness_of_the_supervisors_own_is_no_silence_of_a_host(frozen: int, limit: int) -> None:
    """FLEET-7: only the silence beyond it counts, within bounds; one that comes back is not lost."""
    wire = Wire(4)
    wire.run(2)
    wire.frozen = set(list(wire.hosts)[:frozen])
    began, bound = wire.now, limit * RULES.loss_seconds
    while wire.now - began < bound + EXCUSE_SECONDS - 2.0:
        wire.waited += 0.25
        wire.run(0.25)
    assert wire.lost == {}
    again = wire.frozen
    wire.frozen = set()
    wire.run(2 * RULES.loss_seconds)
    assert wire.lost == {}
    wire.frozen, began = again, wire.now
    while len(wire.lost) < frozen:
        wire.waited += 0.25
        wire.run(0.25)
    late = wire.now - began - bound
    assert EXCUSE_SECONDS - RULES.heartbeat_seconds <= late <= EXCUSE_SECONDS + 0.5, "a bound"


def test_a_host_is_lost_in_time_though_the_supervisor_waited_long_before() -> None:
    """FLEET-7"""
    wire = Wire(4)
    for _ in range(40):
        wire.waited += 0.25
        wire.run(0.25)
    wire.run(1.0)
    wire.frozen = {next(iter(wire.hosts))}
    began = wire.now
    wire.run(RULES.loss_seconds + 0.5)
    assert wire.lost.keys() == wire.frozen
    assert all(at - began <= RULES.loss_seconds + 0.5 for at in wire.lost.values())


def test_what_was_not_read_yet_is_no_silence() -> None:
    """FLEET-5: the limit counts from the instant up to which everything was read."""
    wire = Wire(2)
    wire.run(2)
    (heard_at,) = {peer.heard_at for peer in wire.fleet.peers.values()}
    for _ in range(40):
        wire.now += 0.25
        assert wire.fleet.tick(wire.now, heard_at + RULES.loss_seconds - 0.01) == []
    assert wire.fleet.silent_at < wire.now
    assert len(wire.fleet.tick(wire.now, heard_at + RULES.loss_seconds)) == 2
    assert len(wire.fleet.tick(wire.now, wire.now + 60.0)) == 2, "nothing was read of the future"


def test_a_silent_supervisor_ends_the_hosts() -> None:
    """SILENCE-1, with and without a grace."""
    for grace in (0.0, 30.0):
        wire = Wire(1, Rules(orphan_grace_seconds=grace))
        wire.run(2)
        (host,) = wire.hosts.values()
        heard_at = wire.now
        while wire.now < heard_at + RULES.loss_seconds + grace - RULES.heartbeat_seconds - 0.3:
            wire.now += 0.25
            host.tick(wire.now)
            host.take_frames(wire.now)
        assert host.ending is None
        assert host.orphaned == (grace > 0)
        for _ in range(8):
            wire.now += 0.25
            host.tick(wire.now)
        assert host.ending is not None
        assert (host.ending.code, host.ending.grace_seconds) == (
            EXIT_ORPHANED,
            RULES.kill_grace_seconds,
        )


def test_a_manager_that_was_frozen_does_not_take_its_sleep_for_silence() -> None:
    """SILENCE-2: it learns from the supervisor what became of it."""
    wire = Wire(1)
    wire.run(2)
    (host,) = wire.hosts.values()
    wire.now += 20.0
    host.tick(wire.now)
    assert host.ending is None
    assert host.next_at > wire.now - 20.0
    wire.now += RULES.heartbeat_seconds
    host.tick(wire.now)
    assert host.ending is None
    wire.now += SLACK_SECONDS
    host.tick(wire.now)
    assert host.ending is not None


def test_a_script_that_comes_back_ends_the_silence() -> None:
    wire = Wire(2, Rules(orphan_grace_seconds=60.0))
    wire.run(2)
    for host in wire.hosts.values():
        host.push_ordered(encode_message(Deliver(1, 5, b"")))
    for _ in range(30):
        wire.now += 1.0
        for host in wire.hosts.values():
            host.tick(wire.now)
            host.take_frames(wire.now)
    assert all(host.orphaned for host in wire.hosts.values())
    wire.start_script()
    wire.run(3)
    assert all(not host.orphaned and host.ending is None for host in wire.hosts.values())
    assert list(wire.heard.values()) == [[5], [5]]
    assert len(wire.fleet.peers) == 2


def test_waiting_for_a_core_is_no_silence_of_the_supervisor() -> None:
    """SILENCE-3: only the silence beyond it counts, within bounds."""
    wire = Wire(1)
    wire.run(2)
    (host,) = wire.hosts.values()
    heard_at = wire.now
    while wire.now - heard_at < RULES.loss_seconds + EXCUSE_SECONDS - 1.0:
        wire.now += 0.25
        wire.waited += 0.25
        host.tick(wire.now)
        host.take_frames(wire.now)
        assert host.next_at > wire.now, "it must not spin meanwhile"
    assert host.ending is None
    while host.ending is None:
        wire.now += 0.25
        host.tick(wire.now)
        wire.waited += 0.25
    silent = wire.now - heard_at - RULES.loss_seconds
    slack = RULES.heartbeat_seconds  # since when it heard nothing
    assert EXCUSE_SECONDS - slack <= silent <= EXCUSE_SECONDS + 0.5, "a script counts on the end"


def test_a_manager_belongs_to_one_run() -> None:
    """MEET-1."""
    wire = Wire(1)
    wire.run(1)
    (identity,) = wire.hosts
    host = wire.hosts[identity]
    other = Fleet("other", 1, RULES, lambda: 99, wire.now)
    wire.hosts[identity].tick(wire.now + 1)
    for frame in host.take_frames(wire.now + 1):
        other.receive(identity, frame, wire.now)
    for _, frame in other.take_outgoing(wire.now):
        assert host.receive(frame, wire.now) == []
    assert host.refused["run"] == 1
    assert host.run == "run"
    assert other.peers == {}


def test_hellos_are_said_until_somebody_answers_and_then_no_more() -> None:
    host = HostSession(
        FACTS, 1, now=0.0, patience_seconds=PATIENCE, report=lambda: [GroupReport(group=1)]
    )
    now, said = 0.0, 0
    while host.ending is None:
        host.tick(now)
        said += len(host.take_frames(now))
        now = max(host.next_at, now + 0.001)
    assert PATIENCE - 5 <= said * HELLO_SECONDS <= PATIENCE + 10
    assert host.ending.code == EXIT_NO_SUPERVISOR


def test_goodbye_is_acknowledged() -> None:
    wire = Wire(1)
    wire.run(1)
    ((identity, host),) = wire.hosts.items()
    host.say_bye("done", 0)
    wire.flush()
    ((_, frame),) = wire.up
    peer = wire.fleet.receive(identity, frame, wire.now)
    assert peer is not None
    assert decode_up(frame) == [Bye("done", 0)]
    wire.fleet.dismiss(peer)
    for _, frame in wire.fleet.take_outgoing(wire.now):
        assert decode_down(frame) == []
        host.receive(frame, wire.now)
    assert host.settled
