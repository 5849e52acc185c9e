"""A context that only remembers what a policy asked of it, with real futures: for what a policy
decides, not how it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from holdfast.supervisor import Future


class FakeHost:
    """A handle whose manager comes and goes when the test says so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lost_reason: str | None = None
        self.facts: SimpleNamespace | None = None
        self._name: Future[str] = Future("hostname", self, shared=True)

    def __str__(self) -> str:
        return f"h{self.number}"

    def hostname(self) -> Future[str]:
        return self._name

    def find_port(self, ports: range) -> Future[int]:
        found: Future[int] = Future("a free port", self)
        found.set_result(ports[self.number])
        return found

    @property
    def attached(self) -> bool:
        return self._name.done() and self.lost_reason is None

    def connection_lost(self) -> bool:
        return self.lost_reason is not None

    def come(self) -> FakeHost:
        self.facts = SimpleNamespace(address=f"10.0.0.{self.number}")
        self._name.set_result(str(self))
        return self

    def lose(self, reason: str = "its cable was cut") -> None:
        self.lost_reason = reason


class FakeProcess:
    """A rank that ends, and answers, when the test says so."""

    def __init__(self, group: FakeGroup, host: FakeHost, rank: int) -> None:
        self.group, self.host, self.rank = group, host, rank
        self.code: Future[int] = Future("returncode", self, shared=True)
        self.answer: Future[Any] = Future("a message", self, shared=True)

    def __str__(self) -> str:
        return f"train{self.rank} on {self.host}"

    def returncode(self) -> Future[int]:
        return self.code

    def recv(self, filter: Callable[[Any], bool] | None = None) -> Future[Any]:
        return self.answer


class FakeGroup(list[FakeProcess]):
    """Its ranks end some time after they are told to, as real ones do."""

    def __init__(self, hosts: Sequence[FakeHost], env: dict[str, str]) -> None:
        super().__init__()
        self.hosts, self.env = hosts, env
        self.extend(FakeProcess(self, host, rank) for rank, host in enumerate(hosts))
        self.told: list[Any] = []
        self.ending: list[Future[int]] = []
        self.running_when_forgotten: int | None = None

    def broadcast(self, message: Any) -> None:
        self.told.append(message)

    def end(self, grace_seconds: float = 5.0) -> list[Future[int]]:
        self.ending = [process.code for process in self]
        for future in self.ending:
            threading.Timer(0.2, future.set_result, [-15]).start()
        return self.ending

    def forget(self) -> None:
        self.running_when_forgotten = sum(not process.code.done() for process in self)


class FakeContext:
    """`plan` is what happens to each group in turn, once it is created."""

    def __init__(self, *plan: Callable[[FakeGroup], object]) -> None:
        self.hosts: list[FakeHost] = []
        self.groups: list[FakeGroup] = []
        self.replaced: list[tuple[FakeHost, str]] = []
        self.asked: list[int] = []  # hosts anew, by request
        self.come_at_once = True
        self._plan = list(plan)

    def __enter__(self) -> FakeContext:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def manager_command(self) -> list[str]:
        return []

    def _make(self, count: int) -> list[FakeHost]:
        fresh = [FakeHost(len(self.hosts) + index) for index in range(count)]
        self.hosts += fresh
        for host in fresh if self.come_at_once else ():
            host.come()
        return fresh

    def request_hosts(self, count: int) -> list[FakeHost]:
        self.asked.append(count)
        return self._make(count)

    def replace_hosts(self, hosts: Sequence[FakeHost], reason: str = "") -> list[FakeHost]:
        for host in hosts:
            self.replaced.append((host, reason))
            host.lose(host.lost_reason or reason)
        return self._make(len(hosts))

    def return_hosts(self, hosts: Sequence[FakeHost], error: str | None = None) -> None:
        for host in hosts:
            host.lose(error or "it was given back by the script")

    def create_process_group(
        self,
        hosts: Sequence[FakeHost],
        args: Sequence[str],
        per_host: int,
        env: dict[str, str],
        name: str,
    ) -> FakeGroup:
        group = FakeGroup(list(hosts), env)
        self.groups.append(group)
        if self._plan:
            self._plan.pop(0)(group)
        return group


def all_succeed(group: FakeGroup) -> None:
    """Every rank ends with 0."""
    for process in group:
        process.code.set_result(0)


def fail(rank: int, code: int = 3) -> Callable[[FakeGroup], object]:
    """That rank ends with an error; the others go on."""
    return lambda group: group[rank].code.set_result(code)


def lose(rank: int) -> Callable[[FakeGroup], object]:
    """That rank's host is lost."""

    def happen(group: FakeGroup) -> None:
        from holdfast.supervisor import HostLost

        group[rank].host.lose()
        group[rank].code.set_exception(HostLost(str(group[rank].host), "its cable was cut"))

    return happen
