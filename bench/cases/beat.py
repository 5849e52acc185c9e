"""What a beat costs the job, against a bare send of the same bytes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from bench.figures import Figures, Line, spread
from bench.processes import end_process
from bench.scale import Scale, say
from holdfast.work import beats
from holdfast.work.beats import Reporter

name = "beat"
budget = "beat() <= 5 us"
_TASK = "0123456789abcdefghjk:0:1"
# The agent's side: a process that sleeps in recv, so that every datagram wakes it.
_RECEIVER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.bind("\\0" + sys.argv[1])
print("ready", flush=True)
while sock.recv(4096) != b"end":
    pass
"""
_GAP_SECONDS = 0.0002
_BURST = 8  # under the shortest queue a Unix datagram socket is given (10)


def run(scale: Scale) -> Figures:
    """Microseconds a call, in this process, with the receiver in another."""
    # In the abstract name space, by a name of this process's own: a scratch folder's path may be
    # too long for a socket.
    address = f"\0holdfast-bench-{os.getpid()}"
    receiver = subprocess.Popen(
        [sys.executable, "-c", _RECEIVER, address[1:]], stdout=subprocess.PIPE
    )
    try:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        return _measure(scale, address)
    finally:
        end_process(receiver, signal.SIGKILL, 5)


def _measure(scale: Scale, address: str) -> Figures:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.connect(address)
    reporter = Reporter(_TASK, address)
    coalesced, sent, bare, awake, bare_awake = [], [], [], [], []
    kept = beats.COALESCE_SECONDS
    old = beats._reporter, beats._looked
    beats._reporter, beats._looked = reporter, True
    try:
        for number in range(1, scale.rounds + 1):
            coalesced.append(_time_loop(beats.beat, scale.pick(200_000, 2000)))
            beats.COALESCE_SECONDS = 0.0
            one, two = _time_in_turn(reporter, sock, scale.pick(2000, 50))
            three, four = _time_awake(scale.pick(2000, 10), address + "-own")
            beats.COALESCE_SECONDS = kept
            bare.append(one)
            sent.append(two)
            bare_awake.append(three)
            awake.append(four)
            say(
                f"  round {number}/{scale.rounds}: send {one:.2f} us, beat sent {two:.2f} us, "
                f"kept back {coalesced[-1]:.3f} us"
            )
        beats._reporter, beats._looked = None, True
        outside = [_time_loop(beats.beat, scale.pick(200_000, 2000)) for _ in range(scale.rounds)]
    finally:
        beats.COALESCE_SECONDS = kept
        beats._reporter, beats._looked = old
        sock.close()
    return Figures(
        name=name,
        lines=(
            Line(
                what="beat(step, total), sent, wakes the agent",
                unit="us",
                value=spread(sent),
                limit_name="bare send",
                limit=spread(bare),
                budget="<= 5 us",
                met=spread(sent).median <= 5.0,
            ),
            Line(
                what="beat(step, total), sent, agent awake",
                unit="us",
                value=spread(awake),
                limit_name="bare send",
                limit=spread(bare_awake),
                budget="<= 5 us",
                met=spread(awake).median <= 5.0,
            ),
            Line(
                what="beat(step, total), coalesced",
                unit="us",
                value=spread(coalesced),
                limit_name="bare send",
                limit=spread(bare),
                budget="<= 5 us",
                met=spread(coalesced).median <= 5.0,
            ),
            Line(what="beat(step, total), outside Holdfast", unit="us", value=spread(outside)),
        ),
        notes=(
            "Sent, waking: medians of calls timed one by one, a bare send and a beat in turn, "
            "with pauses, so that each "
            "finds the receiver asleep, as an agent mostly is. Awake: nobody has to be woken, "
            "which is the call's own "
            "cost. A job that beats in a tight loop sends one datagram per 10 ms and pays the "
            "coalesced price for the rest.",
        ),
    )


def _time_loop(beat: object, count: int) -> float:
    assert callable(beat)
    began = time.perf_counter()
    for number in range(count):
        beat(number, count)
    return (time.perf_counter() - began) / count * 1e6


def _time_in_turn(reporter: Reporter, sock: socket.socket, turns: int) -> tuple[float, float]:
    """Median microseconds of (bare send, beat), one of each in turn; each finds the receiver
    asleep."""
    clock = time.perf_counter
    bare, sent = [], []
    for number in range(turns):
        datagram = b'{"task":"%b","step":%d,"total":%d}' % (_TASK.encode(), number, turns)
        time.sleep(_GAP_SECONDS)
        began = clock()
        try:
            sock.send(datagram)
            bare.append(clock() - began)
        except BlockingIOError:
            pass  # the receiver got no core; what was not sent is not counted, here and below
        time.sleep(_GAP_SECONDS)
        began = clock()
        reporter.beat(number, turns)
        took = clock() - began
        if not reporter._pending:
            sent.append(took)
    return spread(bare).median * 1e6, spread(sent).median * 1e6


def _time_awake(turns: int, address: str) -> tuple[float, float]:
    """The same without a wake-up: this process reads what it sent afterwards."""
    clock = time.perf_counter
    bare, sent = [], []
    datagram = b'{"task":"%b","step":%d,"total":%d}' % (_TASK.encode(), turns, turns)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
    ):
        receiver.bind(address)
        sock.connect(address)
        beat = Reporter(_TASK, address).beat
        for _ in range(turns):
            began = clock()
            for _ in range(_BURST):
                sock.send(datagram)
            bare.append((clock() - began) / _BURST)
            for _ in range(_BURST):
                receiver.recv(4096)
            began = clock()
            for _ in range(_BURST):
                beat(turns, turns)
            sent.append((clock() - began) / _BURST)
            for _ in range(
                _BURST
            ):  # blocks for ever were one lost, so a beat that was not sent is not counted as fast
                receiver.recv(4096)
    return spread(bare).median * 1e6, spread(sent).median * 1e6
