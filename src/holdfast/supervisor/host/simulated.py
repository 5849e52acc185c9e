"""Simulated processes, for tests of scale: no fork, no pid, the real messages.

The first word of a process's command chooses its behaviour: `echo` sends every message back, `exit
CODE` ends at once, `sleep SECONDS` ends with 0 after that time, `run` goes on until it is
signalled; any other word ends with 0 at once, so that a policy can be tried with its real command.
TERM, INT, HUP and KILL end it.
"""

import heapq
import signal

from holdfast.wire.bus import messages as bus

_DEADLY = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL}
_INF = float("inf")


class _Group:
    __slots__ = ("echo", "ended", "first_rank", "living")

    def __init__(self, launch: bus.LaunchProcesses) -> None:
        self.first_rank = launch.first_rank
        self.living = set(range(launch.first_rank, launch.first_rank + launch.count))
        self.ended: list[bus.ProcessEnding] = []
        self.echo = launch.args[:1] == ["echo"]


class SimulatedProcesses:
    """All simulated processes of one host."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._due: list[tuple[float, int, int]] = []

    def take(self, message: bus.Down, now: float) -> list[bus.Up] | None:
        """Do what a message of the supervisor asks and return the replies; None where the message
        is not for a simulated group."""
        if isinstance(message, bus.Send):
            group = self._groups.get(message.group)
            return None if group is None else self._take_send(group, message)
        if isinstance(message, bus.LaunchProcesses):
            return self._launch(message, now) if message.simulate else None
        if isinstance(message, bus.SignalProcesses):
            group = self._groups.get(message.group)
            return None if group is None else self._signal(group, message)
        if isinstance(message, bus.StopProcesses):
            group = self._groups.get(message.group)
            if group is not None:
                return self._end(message.group, self._meant(group, message.ranks), -15)
        if isinstance(message, bus.Forget):
            for number in message.groups:
                self._groups.pop(number, None)
        return None

    def _take_send(self, group: _Group, message: bus.Send) -> list[bus.Up]:
        if not group.echo:
            return []
        number, data, part, last = message.group, message.data, message.part, message.last
        ranks = self._meant(group, None if message.rank is None else [message.rank])
        return [bus.Deliver(number, rank, data, part, last) for rank in ranks]

    def _launch(self, launch: bus.LaunchProcesses, now: float) -> list[bus.Up]:
        if launch.group in self._groups:
            return []
        group = self._groups[launch.group] = _Group(launch)
        first = launch.first_rank
        started: list[bus.Up] = [
            bus.Launched(
                launch.group,
                [bus.Running(rank, rank + 1, now) for rank in range(first, first + launch.count)],
            )
        ]
        verb = launch.args[0] if launch.args else ""
        if verb == "sleep":
            for rank in group.living:
                heapq.heappush(self._due, (now + float(launch.args[1]), launch.group, rank))
        elif verb not in ("echo", "run"):
            code = int(launch.args[1]) if verb == "exit" and len(launch.args) > 1 else 0
            started += self._end(launch.group, sorted(group.living), code)
        return started

    def _signal(self, group: _Group, message: bus.SignalProcesses) -> list[bus.Up]:
        ranks = self._meant(group, message.ranks)
        ended = (
            self._end(message.group, ranks, -message.number) if message.number in _DEADLY else []
        )
        return [bus.Signalled(message.request, len(ranks)), *ended]

    def _meant(self, group: _Group, ranks: list[int] | None) -> list[int]:
        return sorted(group.living if ranks is None else group.living & set(ranks))

    def _end(self, number: int, ranks: list[int], code: int) -> list[bus.Up]:
        group = self._groups[number]
        endings = [
            bus.ProcessEnding(rank, code if code >= 0 else None, -code if code < 0 else None)
            for rank in ranks
        ]
        group.living.difference_update(ranks)
        group.ended += endings
        return [bus.Exited(number, endings)] if endings else []

    def end_all(self) -> list[bus.Up]:
        """End the processes that still run."""
        return [
            up
            for number, group in self._groups.items()
            for up in self._end(number, sorted(group.living), -15)
        ]

    def tick(self, now: float) -> list[bus.Up]:
        """End the processes whose time is over."""
        said: list[bus.Up] = []
        while self._due and self._due[0][0] <= now:
            _, number, rank = heapq.heappop(self._due)
            if number in self._groups and rank in self._groups[number].living:
                said += self._end(number, [rank], 0)
        return said

    @property
    def next_at(self) -> float:
        """Return when `tick` has something to do."""
        return self._due[0][0] if self._due else _INF

    def report(self) -> list[bus.GroupReport]:
        """Return the state of every process, for `ManagerHello`."""
        return [
            bus.GroupReport(
                group=number,
                running=[bus.Running(rank, rank + 1, 0.0) for rank in sorted(group.living)],
                ended=group.ended,
            )
            for number, group in self._groups.items()
        ]
