"""A host manager's processes: the supervisor's orders become orders to the warden, and the warden's
answers become reports.

- A rank of a group is started once, however often its launch is repeated.
MANAGE-2  A process's end is kept until the script forgets its group, so that a script that was dead
          learns it.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

from holdfast.supervisor.host.local_line import LocalLine, Mailbox
from holdfast.supervisor.line.keys import KEY_VARIABLE
from holdfast.supervisor.names import name_process
from holdfast.supervisor.run_config import RUN_VARIABLE
from holdfast.wire.bus import local as bus_local
from holdfast.wire.bus import messages as bus


class RankProcess:
    """One rank on this host."""

    __slots__ = ("box", "ended", "group", "key", "name", "pid", "rank", "started_at", "unstarted")

    def __init__(self, key: int, group: int, rank: int, name: str, box: Mailbox) -> None:
        self.key = key
        self.group = group
        self.rank = rank
        self.name = name
        self.box = box
        self.pid = 0
        self.started_at = 0.0
        self.ended: bus.ProcessEnding | None = None
        self.unstarted: bus.Unstarted | None = None

    @property
    def over(self) -> bool:
        """Return True once the process ended, or failed to start."""
        return self.ended is not None or self.unstarted is not None


class RankProcesses:
    """All ranks on this host.

    ask: sends a request to the warden. say: sends a message to the supervisor, in order with user
    messages.
    """

    def __init__(
        self,
        line: LocalLine,
        ask: Callable[[bus_local.WardenRequest], None],
        say: Callable[[bus.Up], None],
        note: Callable[..., None],
    ) -> None:
        self._line = line
        self._ask = ask
        self._say = say
        self._note = note
        self._by_key: dict[int, RankProcess] = {}
        self._by_token: dict[str, RankProcess] = {}
        self._groups: dict[int, dict[int, RankProcess]] = {}
        self._next_key = 1
        self.hostname = ""

    # ---- orders

    def launch(self, launch: bus.LaunchProcesses) -> None:
        """Start the ranks that are not known yet."""
        group = self._groups.setdefault(launch.group, {})
        for local in range(launch.count):
            rank = launch.first_rank + local
            if rank in group:
                continue
            name = name_process(launch.name, rank, launch.world_size)
            token = secrets.token_hex(16)
            process = RankProcess(self._next_key, launch.group, rank, name, self._line.add(token))
            self._next_key += 1
            group[rank] = self._by_key[process.key] = self._by_token[token] = process
            log = launch.log
            if log is not None:
                log = name_process(log.replace("{name}", name), rank, launch.world_size)
                log = log.replace("{hostname}", self.hostname)
            env = _inherited(os.environ) | launch.env | _describe_rank(launch, rank, local, name)
            env |= {bus_local.SOCKET_VARIABLE: self._line.path, bus_local.TOKEN_VARIABLE: token}
            words = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
            self._ask(bus_local.Start(process.key, launch.args, words, launch.cwd, log))

    def signal(self, order: bus.SignalProcesses) -> None:
        """Pass a signal on; the warden reports how many processes it reached."""
        keys = [process.key for process in self._meant(order.group, order.ranks)]
        if keys:
            self._ask(bus_local.SignalTree(order.request, keys, order.number, order.whole_group))
        else:
            self._say(bus.Signalled(order.request, 0))

    def stop(self, order: bus.StopProcesses) -> None:
        """End processes: TERM, grace, KILL."""
        keys = [process.key for process in self._meant(order.group, order.ranks)]
        if keys:
            self._ask(bus_local.StopTree(keys, order.grace_seconds))

    def send(self, message: bus.Send) -> None:
        """Put a message into the mailbox of each process that it is for."""
        for process in self._meant(message.group, None if message.rank is None else [message.rank]):
            if not process.box.post(message.data, message.part, message.last):
                self._say(bus.Dropped(process.group, process.rank, 1))

    def forget(self, groups: Iterable[int]) -> None:
        """Forget these groups; their processes that still run are ended."""
        for number in groups:
            for process in self._groups.pop(number, {}).values():
                if not process.over:
                    self._ask(bus_local.StopTree([process.key], 0.0))

    def stop_all(self, grace_seconds: float) -> None:
        """End every process."""
        keys = [process.key for process in self._by_key.values()]
        if keys:
            self._ask(bus_local.StopTree(keys, grace_seconds))

    def _meant(self, group: int, ranks: list[int] | None) -> list[RankProcess]:
        found = self._groups.get(group, {})
        chosen = found if ranks is None else [rank for rank in ranks if rank in found]
        return [found[rank] for rank in chosen if not found[rank].over]

    @property
    def living(self) -> list[RankProcess]:
        """Return the processes that are not over."""
        return list(self._by_key.values())

    # ---- what the warden says

    def take_answer(self, answer: bus_local.WardenAnswer) -> None:
        """Act on an answer of the warden, and report it to the supervisor."""
        if isinstance(answer, bus_local.SignalDone):
            self._say(bus.Signalled(answer.request, answer.reached))
            return
        if isinstance(answer, bus_local.Turned):
            return
        process = self._by_key.get(answer.key)
        if process is None:
            return
        if isinstance(answer, bus_local.ProcessStarted):
            process.pid, process.started_at = answer.pid, time.time()
            running = bus.Running(process.rank, answer.pid, process.started_at)
            self._say(bus.Launched(process.group, [running]))
            self._note("process started", process=process.name, pid=answer.pid)
        elif isinstance(answer, bus_local.NotStarted):
            process.unstarted = bus.Unstarted(process.rank, answer.reason)
            self._close(process)
            self._say(bus.LaunchFailed(process.group, [process.unstarted]))
            self._note("process failed to start", process=process.name, reason=answer.reason)
        else:
            self._take_end(process, answer)

    def _take_end(self, process: RankProcess, answer: bus_local.TreeEnded) -> None:
        process.ended = bus.ProcessEnding(
            process.rank,
            answer.exit_code,
            answer.signal,
            answer.runtime_seconds,
            answer.max_rss_bytes,
        )
        self._line.drain(process.box)  # LOCAL-3
        self._close(process)
        self._say(bus.Exited(process.group, [process.ended]))
        self._note(
            "process ended",
            process=process.name,
            pid=process.pid,
            exit_code=answer.exit_code,
            signal=answer.signal,
            runtime_seconds=round(answer.runtime_seconds, 3),
            max_rss_bytes=answer.max_rss_bytes,
            survivors=answer.survivors or None,
        )

    def _close(self, process: RankProcess) -> None:
        self._line.boxes.pop(process.box.token, None)
        self._by_token.pop(process.box.token, None)
        self._by_key.pop(process.key, None)

    def write_off(self) -> None:
        """Report every running process as ended, because the warden died."""
        for process in list(self._by_key.values()):
            self._take_end(process, bus_local.TreeEnded(process.key, None, 9, 0.0, 0, []))

    def take_part(self, box: Mailbox, part: bus_local.Part) -> None:
        """Pass a part of a process's message on to the supervisor."""
        process = self._by_token.get(box.token)
        if process is not None:
            self._say(bus.Deliver(process.group, process.rank, part.data, part.part, part.last))

    def report(self) -> list[bus.GroupReport]:
        """Return the state of every process, for `ManagerHello` (MANAGE-2)."""
        return [
            bus.GroupReport(
                group=number,
                running=[bus.Running(p.rank, p.pid, p.started_at) for p in group.values() if p.pid],
                ended=[p.ended for p in group.values() if p.ended is not None],
                unstarted=[p.unstarted for p in group.values() if p.unstarted is not None],
            )
            for number, group in self._groups.items()
        ]


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the manager's environment without the keys of the run, which no process needs."""
    kept_back = (KEY_VARIABLE, RUN_VARIABLE)
    return {name: value for name, value in environ.items() if name not in kept_back}


def _describe_rank(launch: bus.LaunchProcesses, rank: int, local: int, name: str) -> dict[str, str]:
    """Return the variables that describe the rank: torchrun's, and Holdfast's own."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(launch.per_host),
        "GROUP_RANK": str(rank // launch.per_host if launch.per_host else 0),
        "HOLDFAST_PROCESS": name,
    }
