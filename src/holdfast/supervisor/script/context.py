"""The context: what a policy script opens first, and everything it asks of its fleet."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable, ValidationError
from holdfast.supervisor.line.bus import Bus
from holdfast.supervisor.line.keys import RunKeys, make_keys, write_manager_key
from holdfast.supervisor.line.machine import find_address
from holdfast.supervisor.line.session_fleet import (
    HEARTBEAT_SECONDS,
    MISSES,
    SLACK_SECONDS,
    Fleet,
    Rules,
)
from holdfast.supervisor.script.events import Event, EventLog
from holdfast.supervisor.script.forked import close_ports, watch_forks
from holdfast.supervisor.script.futures import Future
from holdfast.supervisor.script.groups import (
    DEFAULT_GRACE_SECONDS,
    GroupSpec,
    Process,
    ProcessGroup,
)
from holdfast.supervisor.script.hosts import Demand, Host
from holdfast.supervisor.script.local import LocalManagers
from holdfast.supervisor.script.roster import EXIT_REPLACED, EXIT_RETURNED, HostRoster
from holdfast.supervisor.script.roster_crew import CLOSED, CrewRoster
from holdfast.supervisor.script.run_config import (
    ANYWHERE,
    RUN_VARIABLE,
    GivenRun,
    parse_listen,
    read_given,
)
from holdfast.supervisor.script.state import REATTACH_SECONDS, SavedRun, StateFolder
from holdfast.supervisor.script.status import Status, StatusLine, read_status, render_metrics

if TYPE_CHECKING:
    from holdfast.supervisor.script.metrics_server import MetricsServer

logger = logging.getLogger("holdfast.supervisor")

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HEARD_SECONDS = 0.25  # managers have so long to read that their goodbyes were heard: of a closed connection nothing is read
_GOODBYE_SECONDS = 3.0
_NUMBERS_PER_EPOCH = 1 << 24


class Context:
    """One policy script over any number of hosts. A context manager; `shutdown` ends everything.

    bind, port: where managers dial; port 0 takes a free one (the same again with a state folder).
    advertise: this machine's address as managers reach it; found out when None.
    log_format: where a process's output goes, with `{name}`, `{rank}` and `{hostname}`; None is the
    manager's own output.
    log_interval: seconds between status lines in the log "holdfast.supervisor"; None is none.
    state_dir: a folder of this run. A script started again with it finds its hosts and running
    groups.
    orphan_grace: seconds for which managers keep their processes when the script is gone; needs a
    state folder.
    heartbeat: seconds between two, each way; three missed in a row are a loss. A large fleet on few
    cores may want longer.
    encrypt: False speaks plain TCP, on loopback only unless `allow_plain_network`.
    key_file: where managers' key is written (0600); in the state folder, or a temporary one, when
    None.
    event_file: JSON lines of everything that happens.
    metrics_port: serve `render_metrics()` at http://metrics_bind:metrics_port/metrics; 0 takes a
    free port, None serves nothing.

    In a script that `holdfast supervise` runs, port, address and keys are Holdfast's, whatever is
    said here, and Holdfast decides which machines come back.

    A child that is forked from the script has no part in its context: whatever it asks of it raises
    ContextClosed.

    Raises:
        ValidationError: settings that do not go together, or a file or folder that cannot be read
        or written.
        Unavailable: the port cannot be had.
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
        self._given = read_given(os.environ)
        if self._given is not None:
            port, bind, advertise, encrypt = _take_given(
                self._given, port, bind, advertise, encrypt
            )
        _check_asked(
            bool(orphan_grace) and state_dir is None,
            encrypt or allow_plain_network,
            bind,
            heartbeat,
        )
        self.log_format = os.path.abspath(log_format) if log_format is not None else None
        self._local = LocalManagers()
        self._closed = False
        self._metrics: MetricsServer | None = None
        self._events = EventLog(Path(event_file) if event_file is not None else None)
        self._folder: StateFolder | None = None
        self._scratch: Path | None = None
        try:
            self._folder = StateFolder(Path(state_dir)) if state_dir is not None else None
            self._scratch = None if key_file or self._folder or self._given else _make_scratch()
            self._state = self._load_state(encrypt) or SavedRun.begin(
                self._make_keys(encrypt), port
            )
            self._state.epoch += 1
            rules = Rules(
                heartbeat_seconds=heartbeat,
                loss_seconds=heartbeat * MISSES + SLACK_SECONDS,
                orphan_grace_seconds=orphan_grace,
            )
            self._make_rosters(rules)
            self._bus = Bus(
                "0.0.0.0" if bind == "*" else bind,
                port or self._state.port,
                self._state.keys,
                self._roster.fleet,
                self._roster,
            )
            self._begin(bind, advertise, key_file, log_interval)
        except BaseException:
            self._clean_up()
            raise
        self._serve_metrics(metrics_bind, metrics_port)

    def _make_rosters(self, rules: Rules) -> None:
        fleet = Fleet(self._state.run, self._state.epoch, rules, _make_session, time.monotonic())
        first = self._state.epoch * _NUMBERS_PER_EPOCH
        self._crew = CrewRoster(fleet, self._events, first)
        self._roster = HostRoster(fleet, self._crew, self._events)
        if self._given is not None:
            self._roster.bars_machines = False
            self._roster.term_grace_seconds = self._given.term_grace_seconds
        # Any thread may ask, and a forked child must not find a lock: `next` on these is one step.
        self._host_numbers = itertools.count(self._state.next_host)
        self._group_numbers = itertools.count(first + 1)

    def _load_state(self, encrypt: bool) -> SavedRun | None:
        """What an earlier script left, where its hosts can still be there."""
        earlier = self._folder.load() if self._folder is not None else None
        if earlier is not None and self._given is not None and earlier.run != self._given.keys.run:
            logger.warning(
                "the run in the state folder ended with an earlier attempt of this job; another "
                "begins"
            )
            return None
        if earlier is not None and encrypt and not earlier.keys.server_secret:
            raise ValidationError(
                "the run in the state folder speaks plain TCP, which encrypt=True forbids: go on "
                "with it by encrypt=False, "
                "or begin another one in another folder",
                field="encrypt",
            )
        return earlier

    def _make_keys(self, encrypt: bool) -> RunKeys:
        return (
            self._given.keys
            if self._given is not None
            else make_keys(secrets.token_hex(16), encrypt)
        )

    def _serve_metrics(self, address: str, port: int | None) -> None:
        """Where the script asked for it; else where `holdfast supervise` did, whose job must not
        fail of a taken port."""
        asked = port is not None
        if not asked and self._given is not None and self._given.metrics:
            address, port = parse_listen(self._given.metrics)
        if port is None:
            return
        from holdfast.supervisor.script.metrics_server import MetricsServer

        try:
            self._metrics = MetricsServer(address, port, self.render_metrics)
        except Unavailable as error:
            if asked:
                self._at_exit()  # a run that another script began goes on
                raise
            logger.warning("%s", error)
            return
        logger.info("metrics are at http://%s:%d/metrics", address, self._metrics.port)

    def _begin(
        self,
        bind: str,
        advertise: str | None,
        key_file: str | os.PathLike[str] | None,
        log_interval: float | None,
    ) -> None:
        state, folder = self._state, self._folder
        self._crew.bus = self._bus
        state.port = self._bus.port
        self._advertise = advertise or (find_address("") if bind in ANYWHERE else bind)
        home = (
            folder.path
            if folder is not None
            else self._scratch or Path(os.environ.get(RUN_VARIABLE, "")).parent
        )
        self.key_file = Path(key_file or home / "manager-key").absolute()
        write_manager_key(self.key_file, state.keys)
        if folder is not None:
            state.revive(self._roster, self._crew)
            self._roster.expect_until = time.monotonic() + REATTACH_SECONDS
            folder.keep(state, self._roster, self._crew)
            self._roster.changed = self._crew.changed = folder.mark
            self._crew.save = folder.save
            folder.save()
        self._status_line = StatusLine(self, log_interval)
        self._bus.start()
        self._status_line.start()
        atexit.register(self._at_exit)
        watch_forks(self)

    def disown(self) -> None:
        """In a forked child (FORK-1)."""
        if self._closed:
            return
        self._closed = True
        self._crew.closed = "the context is the parent's; a forked child has no part in it"
        atexit.unregister(self._at_exit)
        if self._folder is not None:
            self._folder.disown()
        close_ports([self.port] if self._metrics is None else [self.port, self._metrics.port])

    # ---- hosts

    def request_hosts(
        self,
        n: int,
        *,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        exclude: Iterable[str] = (),
    ) -> list[Host]:
        """Ask for `n` hosts: handles at once, attached first come, first served as managers check
        in.

        gpus: at least that many each. labels: all of them. exclude: machine names not wanted.
        """
        if n < 0:
            raise ValidationError(f"{n} hosts cannot be asked for", field="n")
        demand = Demand.make(gpus, labels, exclude)
        hosts = [Host(next(self._host_numbers), demand) for _ in range(n)]
        self._roster.request(hosts)
        return hosts

    def return_hosts(self, hosts: Iterable[Host], error: str | None = None) -> None:
        """Give hosts back: their processes end, their managers exit with 0, or, with an `error`,
        not with 0.

        Returning a host that is lost, or was returned, does nothing.
        """
        code = EXIT_RETURNED if error is None else EXIT_REPLACED
        self._roster.give_back(list(hosts), code, error or "it was given back by the script", False)

    def replace_hosts(
        self, hosts: Iterable[Host], reason: str = "it was replaced by the script"
    ) -> list[Host]:
        """Give hosts up for others: their managers exit with `EXIT_REPLACED` (72), whatever the
        reason, so that a cluster scheduler replaces the machine. Returns as many new handles, with
        the same demands.

        The machines are not handed out again, should a new manager check in from one
        (`forgive_machine` lifts that); a machine that runs several managers of this run, and the
        script's own, are not barred.
        """
        old = list(hosts)
        self._roster.give_back(old, EXIT_REPLACED, reason, True)
        fresh = [Host(next(self._host_numbers), host._demand) for host in old]
        self._roster.request(fresh)
        return fresh

    def forgive_machine(self, hostname: str) -> None:
        """Let a machine that was replaced be handed out again."""
        self._roster.forgive(hostname)

    def hosts(self) -> list[Host]:
        """Every handle that is not lost, those of an earlier script with the same state folder
        included."""
        return [host for host in list(self._roster.hosts.values()) if not host.connection_lost()]

    # ---- processes

    def create_process_group(
        self,
        hosts: Iterable[Host],
        args: Sequence[str | os.PathLike[str]],
        processes_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        name: str = "p{rank}",
        simulate: bool = False,
    ) -> ProcessGroup:
        """Start `len(hosts) × processes_per_host` processes; rank = index of the host × processes
        per host + local rank.

        Hosts need not be attached yet: each starts its part when it is. Each process has the
        manager's environment, `env`, and torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
        `{rank}` in `name` is padded with zeros.
        simulate: managers only pretend (see `holdfast.supervisor.host.simulated`).
        """
        chosen = list(hosts)
        for host in chosen:
            if self._roster.hosts.get(host.number) is not host:
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
        spec = GroupSpec(
            args=[os.fspath(word) for word in args],
            processes_per_host=processes_per_host,
            env=dict(env or {}),
            cwd=os.path.abspath(cwd) if cwd is not None else None,
            name=name,
            log=self.log_format,
            simulate=simulate,
        )
        return self._crew.create_group(next(self._group_numbers), chosen, spec)

    def groups(self) -> list[ProcessGroup]:
        """Every group not forgotten, those of an earlier script with the same state folder
        included."""
        return list(self._crew.groups.values())

    def signal(self, processes: Iterable[Process], sig: int, group: bool = True) -> Future[int]:
        """Send a signal to any processes in one call; the value is how many were there to get
        it."""
        return self._crew.signal(list(processes), int(sig), group)

    def end(
        self, processes: Iterable[Process], grace_seconds: float = DEFAULT_GRACE_SECONDS
    ) -> list[Future[int]]:
        """TERM to whole trees, KILL after the grace, in one call. Returns every `returncode()`."""
        chosen = list(processes)
        self._crew.stop(chosen, grace_seconds)
        return [process.returncode() for process in chosen]

    # ---- managers

    @property
    def port(self) -> int:
        """Where managers dial."""
        return self._bus.port

    @property
    def given_hosts(self) -> int | None:
        """How many hosts `holdfast supervise` gives this run; None where it runs elsewhere."""
        return self._given.hosts if self._given is not None else None

    @property
    def address(self) -> str:
        """What managers on other machines dial."""
        where = f"[{self._advertise}]" if ":" in self._advertise else self._advertise
        return f"tcp://{where}:{self.port}"

    def manager_command(self, address: str | None = None) -> list[str]:
        """The command that starts a host manager for this context, by hand, `srun`, ssh or
        anything.

        The key file it names must be readable there; else hand its content over in
        HOLDFAST_SUPERVISOR_KEY.
        """
        url = address or self.address
        return [
            sys.executable,
            "-m",
            "holdfast",
            "host-manager",
            url,
            "--key-file",
            str(self.key_file),
        ]

    def start_local_managers(
        self, n: int, *, gpus: int = 0, labels: Mapping[str, str] | None = None
    ) -> list[int]:
        """Start `n` managers on this machine, named local-0 and so on, for laptops and tests.
        Returns their pids."""
        more = ["--gpus", str(gpus)]
        for key, value in (labels or {}).items():
            more += ["--label", f"{key}={value}"]
        return self._local.start(self.manager_command(self._loopback()) + more, n)

    def start_simulated_hosts(self, n: int, processes: int = 1) -> list[int]:
        """Start `n` simulated hosts in so many processes on this machine, for tests of scale."""
        return self._local.start_simulated(self.manager_command(self._loopback()), n, processes)

    def _loopback(self) -> str:
        if self._advertise in _LOOPBACK or ":" in self._advertise:
            return self.address
        return f"tcp://127.0.0.1:{self.port}"

    # ---- seeing

    def status(self) -> Status:
        """Counts of hosts and processes, rates and loop times, now."""
        return read_status(self._roster, self._crew, self._bus, self._status_line.window)

    @property
    def metrics_port(self) -> int | None:
        """Where metrics are served; None where they are not."""
        return self._metrics.port if self._metrics is not None else None

    def render_metrics(self) -> str:
        """The same in Prometheus' text format."""
        return render_metrics(self.status(), self._roster, self._bus)

    def on_event(self, listener: Callable[[Event], object]) -> None:
        """Call `listener(event)` for everything that happens from now on, in a thread of its
        own."""
        self._events.listen(listener)

    # ---- the end

    def shutdown(self, timeout: float | None = None) -> bool:
        """End every process (TERM, 5 s, KILL) and every manager, and wait for them. True if all
        said goodbye in time.

        Every handle is lost, every pending future fails; what is asked afterwards raises
        ContextClosed. A state folder
        is emptied: the run is over. Returns at once where the context was shut down, or detached,
        before.
        """
        if self._closed:
            return True
        limit = (
            self._roster.fleet.rules.kill_grace_seconds + _GOODBYE_SECONDS
            if timeout is None
            else timeout
        )
        self._close_doors()
        leave_when = self._bus.gate.disconnects + len(self._roster.fleet.peers)
        self._bus.call(self._roster.end_all, EXIT_RETURNED, "the script is done")
        deadline = time.monotonic() + limit
        done: Future[None] = Future("the goodbyes")
        self._bus.call(self._roster.when_closed, done)
        with contextlib.suppress(TimeoutError):
            done.result(limit)
        complete = done.done()
        leave_at = time.monotonic() + _HEARD_SECONDS
        while complete and self._bus.gate.disconnects < leave_when and time.monotonic() < leave_at:
            time.sleep(0.002)
        self._local.end(max(0.0, deadline - time.monotonic()) + 1.0)
        self._bus.stop(5.0)
        self._roster.close()
        if self._folder is not None:
            self._folder.remove()
        self._clean_up()
        return complete

    def detach(self) -> None:
        """Leave without ending anything: managers keep their processes for `orphan_grace`, and the
        next script with the same state folder goes on. Without a grace they end by themselves when
        they notice. Pending futures fail with ContextClosed.
        """
        if self._closed:
            return
        self._close_doors()
        self._bus.stop(5.0)
        self._roster.close()
        try:
            if self._folder is not None:
                self._folder.save()
        finally:
            self._clean_up()

    def _close_doors(self) -> None:
        self._closed = True
        atexit.unregister(self._at_exit)
        self._crew.closed = CLOSED
        self._status_line.stop()
        if self._metrics is not None:
            self._metrics.close()

    def _clean_up(self) -> None:
        bus = getattr(self, "_bus", None)
        if bus is not None:
            bus.close()
        self._events.close()
        if self._folder is not None:
            self._folder.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _may_come_back(self) -> bool:
        return self._roster.fleet.rules.orphan_grace_seconds > 0

    def _at_exit(self) -> None:
        if self._may_come_back:
            self.detach()
        else:
            self.shutdown()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._may_come_back:
            self.detach()
        else:
            self.shutdown()


def _take_given(
    given: GivenRun, port: int, bind: str, advertise: str | None, encrypt: bool
) -> tuple[int, str, str, bool]:
    """(port, bind, advertise, encrypt): what Holdfast gives over what the script says, and a word
    where that differs."""
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
    """Refuse what cannot be, before anything is made. homeless: orphans are to be kept, and nothing
    says for whom."""
    if homeless:
        raise ValidationError(
            "orphan_grace needs a state_dir: without one no script can come back", field="state_dir"
        )
    if not private and bind not in _LOOPBACK:
        raise ValidationError(
            f"plain TCP on {bind} would let anybody on the network run programs: keep "
            "encrypt=True, "
            "bind to 127.0.0.1, or say allow_plain_network=True",
            field="encrypt",
        )
    if not 0.1 <= heartbeat <= 60:
        raise ValidationError(
            f"a heartbeat every {heartbeat:g} s is outside of 0.1 to 60", field="heartbeat"
        )


def _make_scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="holdfast-run-"))


def _make_session() -> int:
    return secrets.randbits(62) | 1
