"""Sessions: exec against `holdfast version`, echo against a raw terminal, many shells at once, and
forwarded connections."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable
from contextlib import closing

from bench.figures import Figures, Line, percentile, spread
from bench.processes import sum_cpu_seconds
from bench.scale import Scale, alternate, say, wait_until
from bench.system import Place, Scratch, holdfast_command, list_role, start_up
from holdfast.client import Client

name = "sessions"
budget = (
    "exec <= 25 ms over version; echo <= 2 ms over a pty, p99 <= 10 ms under 50 MB/s; 20 shells <= 1 s; "
    "forward >= 400 MB per CPU-second of the controller, >= 80 % of 1 Gbit/s at 50 ms"
)
PORT = 23411
SOURCE = f"""
import socket, threading
server = socket.create_server(("127.0.0.1", {PORT}), backlog=256)
block = bytes(1 << 18)
print("listens", flush=True)
def serve(end):
    with end:
        left = int(end.recv(64))
        try:
            while left > 0:
                left -= end.send(block[:left])
        except OSError:
            pass
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
LOUD = """
import sys, time
line = b"x" * 1023 + b"\\n"
block = line * 500
began, sent = time.monotonic(), 0
while True:
    sys.stdout.buffer.write(block); sent += len(block)
    ahead = sent / 50e6 - (time.monotonic() - began)
    if ahead > 0: time.sleep(ahead)
"""


def run(scale: Scale) -> Figures:
    """Milliseconds, seconds and megabytes a second, each beside its limit."""
    with Scratch() as scratch:
        place = start_up(scratch, slots=4)
        with Client(place.url, place.token) as client:
            job = client.submit([sys.executable, "-c", SOURCE]).id
            wait_until(lambda: b"listens" in b"".join(client.logs(job)), "the job serves", 30)
            lines = [
                measure_exec(place, job, scale),
                *measure_echo(client, job, scale),
                measure_crowd(client, job, scale),
                *measure_forward(scratch, place, client, job, scale),
            ]
    note = (
        "Echo: one key into `cat` in a terminal, until it comes back. Under load another job of the host "
        "writes 50 MB/s. The forward's CPU is the controller's alone; its limit is the same bytes from the "
        "job's port without Holdfast. The slow line is a relay of the bench between client and controller."
    )
    return Figures(name=name, lines=tuple(lines), notes=(note,))


def measure_exec(place: Place, job: str, scale: Scale) -> Line:
    """Milliseconds of `holdfast exec JOB -- true` and of `holdfast version`, in turns."""

    def timed(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run(
            [*holdfast_command(), *words], check=True, env=place.environ(), capture_output=True
        )
        return (time.perf_counter() - began) * 1000

    timed("exec", job, "-n", "--", "true")
    limits, found = alternate(
        scale.pick(15, 1),
        lambda: timed("version"),
        lambda: timed("exec", job, "-n", "--", "true"),
        ("version", "exec"),
        "ms",
    )
    value, limit = spread(found), spread(limits)
    return Line(
        what="exec JOB -- true",
        unit="ms",
        value=value,
        limit_name="holdfast version",
        limit=limit,
        budget="<= 25 ms over",
        met=value.median - limit.median <= 25,
    )


def measure_echo(client: Client, job: str, scale: Scale) -> list[Line]:
    """Milliseconds from a key to its echo: a raw terminal, a session, a session under load."""
    count = scale.pick(300, 5)
    raw = _echo_raw(count)
    calm = _echo_session(client, job, count)
    loud = client.submit([sys.executable, "-c", LOUD]).id
    wait_until(lambda: client.job(loud).state == "running", "the loud job runs", 30)
    time.sleep(scale.pick(2.0, 0.0))
    raw_under_load = percentile(_echo_raw(count), 99)
    under_load = _echo_session(client, job, count)
    client.cancel(loud, hard=True)
    lines = []
    for percent in (50, 99):
        value, limit = percentile(calm, percent), percentile(raw, percent)
        lines.append(
            Line(
                what=f"echo, p{percent}",
                unit="ms",
                value=spread([value]),
                limit_name="raw pty",
                limit=spread([limit]),
                budget="<= 2 ms over" if percent == 50 else "",
                met=value - limit <= 2 if percent == 50 else None,
            )
        )
    worst = percentile(under_load, 99)
    lines.append(
        Line(
            what="echo beside 50 MB/s, p99",
            unit="ms",
            value=spread([worst]),
            limit_name="raw pty",
            limit=spread([raw_under_load]),
            budget="<= 10 ms",
            met=worst <= 10,
        )
    )
    return lines


def _echo_raw(count: int) -> list[float]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    process = subprocess.Popen(["cat"], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        return _time_keys(count, lambda: (os.write(master, b"k"), os.read(master, 16)))
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _echo_session(client: Client, job: str, count: int) -> list[float]:
    words = ["sh", "-c", "stty raw -echo; echo on; exec cat"]
    with client.open_session(job, words, tty=True) as session:
        while (piece := session.read(30)) is not None and b"on" not in piece.data:
            pass
        return _time_keys(count, lambda: (session.write(b"k"), session.read(30)))


def _time_keys(count: int, key: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        key()
        found.append((time.perf_counter() - began) * 1000)
        time.sleep(0.005)
    return found


def measure_crowd(client: Client, job: str, scale: Scale) -> Line:
    """Seconds until 20 shells, opened at once by this process, are at their prompts."""
    count = scale.pick(20, 2)

    def sit(failed: list[Exception]) -> None:
        try:
            with client.open_session(job, ["sh", "-i"], tty=True) as session:
                session.read(30)
        except Exception as error:
            failed.append(error)

    def together() -> float:
        failed: list[Exception] = []
        threads = [threading.Thread(target=sit, args=(failed,)) for _ in range(count)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return time.perf_counter() - began

    value = spread([together() for _ in range(scale.rounds)])
    return Line(
        what=f"{count} shells at their prompts",
        unit="s",
        value=value,
        limit_name="raw ptys, one after the other",
        limit=spread([_sit_raw(count) for _ in range(scale.rounds)]),
        budget="<= 1 s",
        met=value.median <= 1,
    )


def _sit_raw(count: int) -> float:
    """Return the seconds until as many shells on terminals of their own are at their prompts."""
    began = time.perf_counter()
    for _ in range(count):
        master, slave = pty.openpty()
        shell = subprocess.Popen(["sh", "-i"], stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        os.read(master, 64)
        shell.kill()
        shell.wait()
        os.close(master)
    return time.perf_counter() - began


def measure_forward(
    scratch: Scratch, place: Place, client: Client, job: str, scale: Scale
) -> list[Line]:
    """Megabytes a second through a forward, by the controller's CPU, over a slow line, and beside a
    connection that is stuck."""
    size = scale.pick(512 << 20, 4 << 20)
    (controller,) = list_role(place, "controller")

    def direct() -> float:
        return _fetch(PORT, size)

    costs: list[float] = []

    def forwarded() -> float:
        before = sum_cpu_seconds([controller])
        with client.forward_port(job, PORT) as forward:
            speed = _fetch(forward.port, size)
        costs.append(size / 1e6 / max(0.01, sum_cpu_seconds([controller]) - before))
        return speed

    limits, found = alternate(scale.pick(3, 1), direct, forwarded, ("direct", "forward"), "MB/s")
    cost = spread(costs)
    lines = [
        Line(
            what="forward",
            unit="MB/s",
            value=spread(found),
            limit_name="the port itself",
            limit=spread(limits),
        ),
        Line(
            what="forward, by the controller's CPU",
            unit="MB/CPU-s",
            value=cost,
            limit_name="the port itself, a second",
            limit=spread(limits),
            budget=">= 400",
            met=cost.median >= 400,
        ),
    ]
    return [*lines, _measure_slow(scratch, place, job, scale), _measure_stuck(client, job, scale)]


def _fetch(port: int, size: int) -> float:
    began = time.perf_counter()
    with closing(socket.create_connection(("127.0.0.1", port), 60)) as end:
        end.sendall(str(size).encode())
        left = size
        while left > 0:
            data = end.recv(1 << 20)
            if not data:
                raise RuntimeError(f"the connection broke off {left} bytes before its end")
            left -= len(data)
    return size / 1e6 / (time.perf_counter() - began)


def _start_line(target: int) -> tuple[subprocess.Popen[bytes], int]:
    words = [sys.executable, "-m", "bench.limits.slow_line", str(target), "1000", "50"]
    line = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert line.stdout is not None
    return line, int(line.stdout.readline())


def _measure_slow(scratch: Scratch, place: Place, job: str, scale: Scale) -> Line:
    size = scale.pick(256 << 20, 1 << 20)
    port = int(place.url.rsplit(":", 1)[1])
    bare, bare_port = _start_line(PORT)
    line, line_port = _start_line(port)
    try:
        with Client(f"http://127.0.0.1:{line_port}", place.token) as client:

            def forwarded() -> float:
                with client.forward_port(job, PORT) as forward:
                    return _fetch(forward.port, size)

            limits, found = alternate(
                scale.pick(3, 1),
                lambda: _fetch(bare_port, size),
                forwarded,
                ("the line", "forward"),
                "MB/s",
            )
    finally:
        for process in (bare, line):
            process.kill()
            process.wait()
    value, limit = spread(found), spread(limits)
    return Line(
        what="forward over 1 Gbit/s and 50 ms",
        unit="MB/s",
        value=value,
        limit_name="the same line, without",
        limit=limit,
        budget=">= 0.8 x",
        met=value.median >= 0.8 * limit.median,
    )


def _measure_stuck(client: Client, job: str, scale: Scale) -> Line:
    """Speed of 99 connections beside one whose reader is stuck, against 99 alone."""
    count, size = scale.pick(99, 3), scale.pick(1 << 19, 1 << 16)
    with client.forward_port(job, PORT) as forward:

        def together() -> float:
            threads = [
                threading.Thread(target=_fetch, args=(forward.port, size)) for _ in range(count)
            ]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return count * size / 1e6 / (time.perf_counter() - began)

        together()
        alone = [together() for _ in range(scale.rounds)]
        stuck = socket.create_connection(("127.0.0.1", forward.port), 60)
        stuck.sendall(str(1 << 30).encode())
        time.sleep(scale.pick(1.0, 0.1))
        beside = [together() for _ in range(scale.rounds)]
        stuck.close()
    say(f"  alone {alone}, beside a stuck one {beside}")
    value, limit = spread(beside), spread(alone)
    return Line(
        what=f"{count} connections beside a stuck one",
        unit="MB/s",
        value=value,
        limit_name="without it",
        limit=limit,
        budget=">= 0.9 x",
        met=value.median >= 0.9 * limit.median,
    )
