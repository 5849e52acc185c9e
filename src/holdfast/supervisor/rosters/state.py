"""The state folder, from which a script that is started again knows the run.

STATE-1  The file is replaced whole (written, synced, renamed), so a script that dies in the middle
         leaves the earlier file.
- One script per folder: an flock, which the kernel releases however its holder dies.
STATE-3  A state that could not be written is written as soon as that is possible, also if nothing
         changes meanwhile.

Managers report pids and returncodes again when they come back; the file holds the keys, the port,
the handles and the specs of groups. A group in the file whose launch never reached a manager is
launched again from the file; a process whose group is not in the file is ended.
"""

import contextlib
import fcntl
import logging
import os
import threading
from pathlib import Path

import msgspec

from holdfast.errors import Conflict, Unavailable, ValidationError
from holdfast.supervisor.line.keys import RunKeys, write_private
from holdfast.supervisor.rosters.groups import GroupSpec, ProcessGroup
from holdfast.supervisor.rosters.host_roster import HostRoster
from holdfast.supervisor.rosters.hosts import Demand, Host
from holdfast.supervisor.rosters.process_table import ProcessTable
from holdfast.wire.bus.messages import MachineFacts

logger = logging.getLogger("holdfast.supervisor")

# Managers look for the script every second; one that was only slow must not be given up.
REATTACH_SECONDS = 10.0
STATE_FILE = "run.json"
LOCK_FILE = "run.lock"
_SAVE_SECONDS = 0.1
_RETRY_SECONDS = 1.0


class SavedHost(msgspec.Struct, frozen=True, kw_only=True):
    """The saved handle of one host. identity: the manager's identity; empty for a handle that waits
    for a manager. reason: why the handle is lost, or None."""

    number: int
    demand: Demand
    identity: str = ""
    facts: MachineFacts | None = None
    reason: str | None = None


class SavedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One saved group of processes. hosts: the numbers of its hosts. returncodes: rank →
    returncode, for the ranks that have ended."""

    number: int
    spec: GroupSpec
    hosts: list[int]
    returncodes: dict[int, int] = {}


class SavedRun(msgspec.Struct, kw_only=True):
    """A run, over the lives of several scripts."""

    run: str
    keys: RunKeys
    port: int
    epoch: int = 0
    next_host: int = 0
    hosts: list[SavedHost] = []
    groups: list[SavedGroup] = []
    excluded: dict[str, str] = {}

    def check(self) -> None:
        """Raise LookupError or ValueError where the saved run contradicts itself, as an edited file
        may."""
        numbers = set()
        for host in self.hosts:
            bytes.fromhex(host.identity)
            numbers.add(host.number)
        for group in self.groups:
            size = len(group.hosts) * group.spec.processes_per_host
            if not numbers.issuperset(group.hosts) or any(
                not 0 <= rank < size for rank in group.returncodes
            ):
                raise LookupError(f"group {group.number} names hosts or ranks that are not there")

    def revive(self, roster: HostRoster, crew: ProcessTable) -> None:
        """Make the handles of the earlier script again. Call this before the bus starts."""
        hosts: dict[int, Host] = {}
        for state in self.hosts:
            host = hosts[state.number] = Host(state.number, state.demand)
            host.revive(bytes.fromhex(state.identity), state.facts, state.reason)
        roster.excluded.update(self.excluded)
        for saved in self.groups:
            members = [hosts[number] for number in saved.hosts]
            group = ProcessGroup(crew, saved.number, members, saved.spec)
            crew.adopt_group(group, saved.returncodes)
        for host in hosts.values():
            roster.adopt(host)

    def update(self, roster: HostRoster, crew: ProcessTable) -> None:
        """Copy the present state from the handles. They change meanwhile: each is read once, and
        collections are copied first.

        Ends are read before hosts: a process that has ended had a manager, so the file never shows
        an end on a host that still waits for one.
        """
        groups = list(crew.groups.values())
        self.groups = [_describe_group(group) for group in groups]
        used = {host.number for group in groups for host in group.hosts}
        hosts = list(roster.hosts.values())
        self.hosts = [
            _describe_host(host)
            for host in hosts
            if not host.connection_lost() or host.number in used
        ]
        self.next_host = max((host.number + 1 for host in hosts), default=self.next_host)
        self.excluded = dict(roster.excluded)


def _describe_host(host: Host) -> SavedHost:
    return SavedHost(
        number=host.number,
        demand=host.demand,
        identity=host.identity.hex(),
        facts=host.facts,
        reason=host.lost_reason,
    )


def _describe_group(group: ProcessGroup) -> SavedGroup:
    codes = {process.rank: process.exit_code for process in group if process.exit_code is not None}
    return SavedGroup(
        number=group.number,
        spec=group.spec,
        hosts=[host.number for host in group.hosts],
        returncodes=codes,
    )


class StateFolder:
    """The locked folder, and the thread that writes the file soon after a change."""

    def __init__(self, path: Path) -> None:
        """Make the folder (0700) and lock it. Raises Conflict when another script has it."""
        self.path = path.absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(
                self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ValidationError(
                f"the state folder {self.path} cannot be used: {error.strerror}", field="state_dir"
            ) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_fd)
            raise Conflict(
                f"another script uses the state folder {self.path}; stop it, or name another folder"
            ) from None
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._saving = threading.Lock()
        self._closed = False
        self._held: tuple[SavedRun, HostRoster, ProcessTable] | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-state", daemon=True)

    def load(self) -> SavedRun | None:
        """Read the saved run, if any. Raises ValidationError if it is unreadable."""
        try:
            data = (self.path / STATE_FILE).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValidationError(
                f"{self.path / STATE_FILE} cannot be read: {error.strerror}", field="state_dir"
            ) from error
        try:
            state = msgspec.json.decode(data, type=SavedRun)
            state.check()
            return state
        except (msgspec.MsgspecError, ValueError, LookupError) as error:
            raise ValidationError(
                f"{self.path / STATE_FILE} cannot be read ({error}); remove it to begin a new run",
                field="state_dir",
            ) from error

    def keep(self, state: SavedRun, roster: HostRoster, crew: ProcessTable) -> None:
        """Begin to write the file after each change."""
        self._held = (state, roster, crew)
        self._thread.start()

    def mark(self) -> None:
        """Note that the state has changed since it was written."""
        self._wake.set()

    def save(self) -> None:
        """Write the run's file now. Raises Unavailable where the disk does not accept it."""
        if self._held is None:
            return
        with self._saving:
            if self._closed:
                return
            state, roster, crew = self._held
            state.update(roster, crew)
            try:
                write_private(self.path / STATE_FILE, msgspec.json.encode(state))
            except OSError as error:
                raise Unavailable(
                    f"the state folder {self.path} cannot be written: {error.strerror}"
                ) from error

    def _run(self) -> None:
        failed = False
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            if self._closed:
                return
            try:
                self.save()
                failed = False
            except Exception as error:
                if not failed:
                    logger.error(
                        "%s; until it can, a script that is started again may not find its hosts",
                        error,
                    )
                failed = True
                self._wake.set()  # STATE-3
            self._ended.wait(_RETRY_SECONDS if failed else _SAVE_SECONDS)

    def remove(self) -> None:
        """Remove the saved run, because the run is over."""
        with self._saving:
            self._closed = True
            for name in (STATE_FILE, "manager-key"):
                (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder's lock."""
        with self._saving:
            self._closed = True
        self._wake.set()
        self._ended.set()
        with contextlib.suppress(OSError):
            os.close(self._lock_fd)

    def disown(self) -> None:
        """Close a forked child's copy of the lock, which would outlive the parent (FORK-1)."""
        os.close(self._lock_fd)
