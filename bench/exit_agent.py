"""A stand-in agent under a real guardian that times how soon it hears of an exit: `exit_agent.py
RESULT SAMPLES`.

Run by the guardian, as a file, so that it needs nothing but the package itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TypeVar

from holdfast.core.ids import TaskKey
from holdfast.wire.frames import FrameReader, encode_frame
from holdfast.wire.guardian import (
    Ack,
    AgentAlive,
    AgentHello,
    Answer,
    LaunchTask,
    Request,
    Snapshot,
    TaskEnded,
    TaskStarted,
    decode_answer,
    encode,
)

T = TypeVar("T", bound=Answer)
PATIENCE_SECONDS = 10.0


class Guardian:
    """The line to the guardian."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=int(os.environ["HOLDFAST_GUARDIAN_FD"]))
        self.socket.settimeout(PATIENCE_SECONDS)
        self._reader = FrameReader()
        self._heard: list[Answer] = []

    def say(self, request: Request) -> None:
        """Send one message."""
        self.socket.sendall(encode_frame(encode(request)))

    def expect(self, kind: type[T]) -> T:
        """The next message of a kind; others are dropped."""
        while True:
            while self._heard:
                answer = self._heard.pop(0)
                if isinstance(answer, kind):
                    return answer
            data = self.socket.recv(65_536)
            if not data:
                sys.exit(1)
            self._heard += [decode_answer(frame) for frame in self._reader.feed(data)]


def sample(guardian: Guardian, number: int) -> tuple[float, float]:
    """Start a sleeper, kill it: milliseconds until (its pidfd says so, the guardian's message is
    read)."""
    key = TaskKey(f"bench{number}", 0, 1)
    order = LaunchTask(
        key=key,
        argv=["sleep", "3600"],
        env={"PATH": os.environ.get("PATH", os.defpath)},
        cwd="/",
        stdout=os.devnull,
        stderr=os.devnull,
        deadline=time.clock_gettime(time.CLOCK_BOOTTIME) + 600,
    )
    guardian.say(order)
    pid = guardian.expect(TaskStarted).pid
    time.sleep(0.02)
    guardian.say(AgentAlive())
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    poll.poll(PATIENCE_SECONDS * 1000)
    bare = time.perf_counter() - began
    ended = guardian.expect(TaskEnded)
    seen = time.perf_counter() - began
    os.close(descriptor)
    if ended.key != key or ended.signal != signal.SIGKILL:
        raise RuntimeError(f"not the end of {key}: {ended}")
    guardian.say(Ack(keys=[key]))
    return bare * 1000, seen * 1000


def main() -> None:
    """Measure, write the result, and wait to be told to go."""
    result, samples = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    guardian = Guardian()
    guardian.say(AgentHello(pid=os.getpid()))
    guardian.expect(Snapshot)
    pairs = [sample(guardian, number) for number in range(samples + 3)][
        3:
    ]  # the first ones load code
    partial = result.with_suffix(".new")
    partial.write_text(
        json.dumps({"bare": [pair[0] for pair in pairs], "seen": [pair[1] for pair in pairs]})
    )
    partial.rename(result)
    while True:
        guardian.say(AgentAlive())
        time.sleep(1)


if __name__ == "__main__":
    main()
