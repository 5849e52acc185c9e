"""The other end of `bench.agents`: starts the process of simulated agents and gives it orders."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from bench.processes import end_process
from bench.system import ROOT, Place, clean_environment


class AgentProcess:
    """One process full of simulated agents. Leaving ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.agents"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=clean_environment(),
            start_new_session=True,
        )

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        end_process(self.process, signal.SIGTERM, 10)

    def order(self, **order: Any) -> dict[str, Any]:
        """Give an order and wait for its answer. Raises RuntimeError with the agents' own words."""
        self.send(**order)
        return self.receive()

    def send(self, **order: Any) -> None:
        """Give an order whose answer is received later."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for the answer to the order before."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the simulated agents ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"simulated agents: {answer['error']}")
        return answer

    def register(self, place: Place, count: int, slots: int, prefix: str) -> None:
        """Register `count` hosts of `slots` CPU slots each."""
        self.order(
            do="register", url=place.url, token=place.token, count=count, slots=slots, prefix=prefix
        )
