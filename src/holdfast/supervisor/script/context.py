"""The context: the object that a policy script opens first, and its calls to the fleet."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from signal import SIGTERM
from types import TracebackType
from typing import Any

from holdfast.errors import ValidationError
from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.line.session_fleet import HEARTBEAT_SECONDS, MISSES, SLACK_SECONDS, Rules
from holdfast.supervisor.rosters.events import Event
from holdfast.supervisor.rosters.groups import (
    DEFAULT_GRACE_SECONDS,
    GroupSpec,
    Process,
    ProcessGroup,
)
from holdfast.supervisor.rosters.host_roster import EXIT_REPLACED, EXIT_RETURNED
from holdfast.supervisor.rosters.hosts import Demand, Host
from holdfast.supervisor.run_config import ANYWHERE, GivenRun, read_given
from holdfast.supervisor.script.open_run import OpenRun
from holdfast.supervisor.script.status import Status
from holdfast.supervisor.tree.mapreduce import WIDTH, Reduction, map_and_reduce

logger = logging.getLogger("holdfast.supervisor")

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Context:
    """One policy script over any number of hosts. A context manager; `shutdown` ends everything.

    bind, port: the address that managers dial; port 0 takes a free one (the same again with a state
    folder). advertise: this machine's address as managers reach it; None to find it out.
    log_format: the file of a process's output, with `{name}`, `{rank}` and `{hostname}`; None for
    the manager's own output. log_interval: seconds between status lines in the log
    "holdfast.supervisor"; None for none. state_dir: a folder of this run. A script started again
    with it finds its hosts and running groups. orphan_grace: seconds for which managers keep their
    processes when the script is gone; needs a state folder. heartbeat: seconds between two
    heartbeats, each way; three missed in a row are a loss. A large fleet on few cores may want
    longer. encrypt: False for plain TCP, on loopback only unless `allow_plain_network`. key_file:
    the file that the managers' key is written to (0600); None for the state folder, or a temporary
    one. event_file: the file for JSON lines of every event. metrics_port: serve `render_metrics()`
    at http://metrics_bind:metrics_port/metrics; 0 takes a free port, None serves nothing.

    In a script that `holdfast supervise` runs, Holdfast sets port, address and keys over these
    arguments, and decides which machines come back.

    A child that is forked from the script has no part in its context: every call there raises
    ContextClosed.

    Raises:
        ValidationError: settings that do not go together, or a file or folder that cannot be read
        or written.
        Unavailable: the port cannot be bound.
        Conflict: another script uses the state folder.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        bind: str = "0.0.0.0",
        advertise: str | None = None,
        log_format: str | None = None,
        log_interval: float | None = 10.0,
        state_dir: str | os.PathLike[str] | None = None,
        orphan_grace: float = 0.0,
        heartbeat: float = HEARTBEAT_SECONDS,
        encrypt: bool = True,
        allow_plain_network: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        event_file: str | os.PathLike[str] | None = None,
        metrics_port: int | None = None,
        metrics_bind: str = "127.0.0.1",
    ) -> None:
        given = read_given(os.environ)
        if given is not None:
            port, bind, advertise, encrypt = _take_given(given, port, bind, advertise, encrypt)
        homeless = bool(orphan_grace) and state_dir is None
        _check_asked(homeless, encrypt or allow_plain_network, bind, heartbeat)
        self.log_format = os.path.abspath(log_format) if log_format is not None else None
        self._given = given
        self._run = OpenRun(
            given,
            Rules(
                heartbeat_seconds=heartbeat,
                loss_seconds=heartbeat * MISSES + SLACK_SECONDS,
                orphan_grace_seconds=orphan_grace,
            ),
            bind=bind,
            port=port,
            advertise=advertise,
            encrypt=encrypt,
            state_dir=state_dir,
            key_file=key_file,
            event_file=event_file,
            log_interval=log_interval,
        )
        self.key_file = self._run.key_file
        self._run.serve_metrics(metrics_bind, metrics_port)

    # ---- hosts

    def request_hosts(
        self,
        n: int,
        *,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        exclude: Iterable[str] = (),
    ) -> list[Host]:
        """Request `n` hosts. Returns handles at once; they are attached in the order in which
        managers connect.

        gpus: the least number of GPUs of each host. labels: labels that each must have. exclude:
        names of machines that are not wanted.
        """
        if n < 0:
            raise ValidationError(f"{n} hosts cannot be asked for", field="n")
        demand = Demand.make(gpus, labels, exclude)
        hosts = [Host(next(self._run.host_numbers), demand) for _ in range(n)]
        self._run.roster.request(hosts)
        return hosts

    def return_hosts(self, hosts: Iterable[Host], error: str | None = None) -> None:
        """Give hosts back: their processes end, their managers exit with 0, or with 72 if there is
        an `error`. Returning a host that is lost, or was returned, does nothing."""
        code = EXIT_RETURNED if error is None else EXIT_REPLACED
        reason = error or "it was given back by the script"
        self._run.roster.give_back(list(hosts), code, reason, False)

    def replace_hosts(
        self, hosts: Iterable[Host], reason: str = "it was replaced by the script"
    ) -> list[Host]:
        """Give hosts up for others: their managers exit with `EXIT_REPLACED` (72), so that a
        cluster scheduler replaces the machines. Returns as many new handles, with the same demands.

        The machines are not given out again, should a new manager connect from one
        (`forgive_machine` lifts that); a machine that runs several managers of this run, and the
        script's own, are not barred.
        """
        run, old = self._run, list(hosts)
        run.roster.give_back(old, EXIT_REPLACED, reason, True)
        fresh = [Host(next(run.host_numbers), host.demand) for host in old]
        run.roster.request(fresh)
        return fresh

    def forgive_machine(self, hostname: str) -> None:
        """Allow a machine that was replaced to be given out again."""
        self._run.roster.forgive(hostname)

    def hosts(self) -> list[Host]:
        """Return every handle that is not lost, an earlier script's included."""
        every = list(self._run.roster.hosts.values())
        return [host for host in every if not host.connection_lost()]

    # ---- processes

    def create_process_group(
        self,
        hosts: Iterable[Host],
        args: Sequence[str | os.PathLike[str]],
        processes_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        name: str | None = None,
        simulate: bool = False,
    ) -> ProcessGroup:
        """Start processes; rank = index of the host × processes per host + local rank.

        Hosts need not be attached yet: each starts its part when it is. Each process has the
        manager's environment, `env`, and torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
        `{rank}` in `name` is padded with zeros; a group without a name gets a unique one,
        `g1p{rank}` and so on. simulate: True for processes that managers only simulate and that end
        with 0 at once (`host.simulated`).
        """
        chosen = list(hosts)
        for host in chosen:
            if self._run.roster.hosts.get(host.number) is not host:
                raise ValidationError(f"{host} is a host of another context", field="hosts")
        if len(set(chosen)) != len(chosen):
            raise ValidationError(
                "a host is named twice; say processes_per_host instead", field="hosts"
            )
        if processes_per_host < 1:
            raise ValidationError(
                "processes_per_host must be 1 or more", field="processes_per_host"
            )
        if isinstance(args, str) or not args:
            raise ValidationError("args is a list: the program, then its arguments", field="args")
        number = next(self._run.group_numbers)
        spec = GroupSpec(
            args=[os.fspath(word) for word in args],
            processes_per_host=processes_per_host,
            env=dict(env or {}),
            cwd=os.path.abspath(cwd) if cwd is not None else None,
            name=name or self._run.name_group(number),
            log=self.log_format,
            simulate=simulate,
        )
        return self._run.crew.create_group(number, chosen, spec)

    def mapreduce(
        self,
        hosts: Iterable[Host],
        map: Callable[[Any], Any] | str,
        reduce: Callable[[Any, Any], Any] | str,
        inputs: Sequence[Any] | None = None,
        *,
        timeout: float = 60.0,
        width: int = WIDTH,
        python: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Reduction:
        """Run `map(input)` in a process on each host, and merge the results by `reduce(a, b)`.

        Each host merges the reports of its `width` children in a tree, so that neither the script
        nor any host reads more than that. The order of merges is not fixed. Functions must stand at
        a file's top level, which every host finds under the same path, or be given as `FILE:NAME`;
        inputs and results are values that messages may hold. Hosts that are not attached, do not
        answer within `timeout` seconds, or whose function raises, are in `missing`, with the
        reason. python: the interpreter of the processes, by default this one; it needs Holdfast and
        msgspec, and `env` may provide them.
        """
        return map_and_reduce(
            self.create_process_group,
            list(hosts),
            map,
            reduce,
            inputs,
            seconds=timeout,
            width=width,
            python=os.fspath(python or sys.executable),
            env=env,
        )

    def groups(self) -> list[ProcessGroup]:
        """Return every group that was not forgotten, an earlier script's included."""
        return list(self._run.crew.groups.values())

    def signal(
        self, processes: Iterable[Process], signal: int = SIGTERM, group: bool = True
    ) -> Future[int]:
        """Send a signal to processes in one call; the future's value is how many of them were
        running."""
        return self._run.crew.signal(list(processes), int(signal), group)

    def end(
        self, processes: Iterable[Process], grace_seconds: float = DEFAULT_GRACE_SECONDS
    ) -> list[Future[int]]:
        """End whole trees in one call: TERM, then KILL after the grace. Returns every
        `returncode()`."""
        chosen = list(processes)
        self._run.crew.stop(chosen, grace_seconds)
        return [process.returncode() for process in chosen]

    # ---- managers

    @property
    def port(self) -> int:
        """Return the port that managers dial."""
        return self._run.bus.port

    @property
    def given_hosts(self) -> int | None:
        """Return how many hosts `holdfast supervise` gives this run; None without it."""
        return self._given.hosts if self._given is not None else None

    @property
    def address(self) -> str:
        """Return the address that managers on other machines dial."""
        where = self._run.advertise
        return f"tcp://[{where}]:{self.port}" if ":" in where else f"tcp://{where}:{self.port}"

    def manager_command(self, address: str | None = None) -> list[str]:
        """Return the command that starts a host manager for this context: by hand, with `srun`,
        over ssh.

        The key file that it names must be readable there; else pass its content in
        HOLDFAST_SUPERVISOR_KEY.
        """
        url = address or self.address
        program = [sys.executable, "-m", "holdfast", "host-manager"]
        return [*program, url, "--key-file", str(self.key_file)]

    def start_local_managers(
        self, n: int, *, gpus: int = 0, labels: Mapping[str, str] | None = None
    ) -> list[int]:
        """Start `n` managers (local-0 and so on) on this machine, for tests. Returns their pids."""
        more = ["--gpus", str(gpus)]
        for key, value in (labels or {}).items():
            more += ["--label", f"{key}={value}"]
        return self._run.local.start(self.manager_command(self._loopback()) + more, n)

    def _loopback(self) -> str:
        if self._run.advertise in _LOOPBACK or ":" in self._run.advertise:
            return self.address
        return f"tcp://127.0.0.1:{self.port}"

    # ---- seeing

    def status(self) -> Status:
        """Return the present counts of hosts and processes, rates and loop times."""
        return self._run.status_line.read()

    @property
    def metrics_port(self) -> int | None:
        """Return the port that metrics are served on; None where they are not."""
        return self._run.metrics.port if self._run.metrics is not None else None

    def render_metrics(self) -> str:
        """Render the status in Prometheus' text format."""
        return self._run.status_line.render_metrics()

    def on_event(self, listener: Callable[[Event], object]) -> None:
        """Call `listener(event)` for every event from now on, in a thread of its own."""
        self._run.events.listen(listener)

    # ---- the end

    def shutdown(self, timeout: float | None = None) -> bool:
        """End every process (TERM, 5 s, KILL) and every manager, and wait for them. Returns True if
        all said goodbye in time.

        Every handle is lost, every pending future fails, later calls raise ContextClosed. A state
        folder is emptied, because the run is over. Returns at once if the context was closed
        before.
        """
        return self._run.shutdown(timeout)

    def detach(self) -> None:
        """Leave without ending anything: managers keep their processes for `orphan_grace`, and the
        next script with the same state folder goes on. Without a grace they end by themselves when
        they notice. Pending futures fail with ContextClosed."""
        self._run.detach()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._run.leave()
        else:
            self.shutdown()


def _take_given(
    given: GivenRun, port: int, bind: str, advertise: str | None, encrypt: bool
) -> tuple[int, str, str, bool]:
    """Return (port, bind, advertise, encrypt) as Holdfast sets them; warn where the script sets
    others."""
    chosen = given.choose_bind(bind)
    changed = [f"port {given.port}"] if port not in (0, given.port) else []
    changed += [f"address {given.address}"] if advertise not in (None, given.address) else []
    changed += [f"listening on {chosen}"] if chosen != bind and bind not in ANYWHERE else []
    changed += [] if encrypt else ["encrypted"]
    if changed:
        logger.warning(
            "under Holdfast this run's hosts are told where to dial: %s, not as the script says",
            ", ".join(changed),
        )
    return given.port, chosen, given.address, True


def _check_asked(homeless: bool, private: bool, bind: str, heartbeat: float) -> None:
    """Refuse settings of a context that cannot work. homeless: True for orphans that no later
    script could find."""
    if homeless:
        raise ValidationError(
            "orphan_grace needs a state_dir: without one no script can come back", field="state_dir"
        )
    if not private and bind not in _LOOPBACK:
        raise ValidationError(
            f"plain TCP on {bind} would let any machine on the network run programs: keep "
            "encrypt=True, bind to 127.0.0.1, or say allow_plain_network=True",
            field="encrypt",
        )
    if not 0.1 <= heartbeat <= 60:
        raise ValidationError(
            f"a heartbeat every {heartbeat:g} s is outside of 0.1 to 60", field="heartbeat"
        )
