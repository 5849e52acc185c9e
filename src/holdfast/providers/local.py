"""Machines that are agents of this machine: each a process with a folder and an identity of its own.

    FOLDER/INSTALLATION/INTENT/
        machine.json   what was ordered
        process        the line of /proc/PID/stat, written by the process before it becomes the agent
        lock           held by the call that starts it, and by the process until it is on record
        ending, ended  empty files: their times say when its end was ordered, and when it was seen
        state/         the agent's own folder; agent.log its output

A machine outlives the controller. It is found again by its record, and by the intent in its
environment, because a pid alone may be used again.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.process import table
from holdfast.providers.calls import within
from holdfast.providers.config import (
    FOLDER_VARIABLE,
    INTENT,
    GpuWord,
    ProviderConfig,
    agent_env,
    agent_words,
    check_order,
    overlay,
)
from holdfast.providers.interface import ProviderDown, Refused
from holdfast.providers.last_words import tell_end

# $0 is the record. `read` is the shell's own, so the line is of this very process. Its input is the
# lock, which the agent does not keep.
_LAUNCH = (
    'read -r line </proc/$$/stat && echo "$line" >"$0.new" && mv "$0.new" "$0" '
    '&& exec "$@" </dev/null'
)
# The outer shell ends at once, so that the agent is no child of the controller's. A shell takes the
# input from what it starts in the background, unless that is given another.
_DETACH = 'exec 3<&0; sh -c "$0" "$@" <&3 3<&- &'
_KEPT_SECONDS = 3600.0
_POLL_SECONDS = 0.02


class LocalConfig(ProviderConfig, frozen=True, kw_only=True):
    """The config of machines on this machine. folder: where the machines' folders are made.
    grace_seconds: the time between TERM, at which an agent drains its tasks, and KILL. python: the
    interpreter that has Holdfast. gpus: the number of GPUs that the agent declares; "auto" asks the
    drivers, and "" declares as many as the offer has."""

    folder: str = ""
    grace_seconds: Annotated[float, Meta(ge=0, le=600)] = 10.0
    python: str = sys.executable
    gpus: GpuWord = ""


class LocalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of machine.json."""

    intent: str
    pool: str
    name: str
    offer: Offer
    boot_id: str
    created_at: datetime


def end_machines(folder: Path) -> int:
    """End every machine under the folder, of every installation; return how many."""

    async def end(installation: str) -> int:
        provider = LocalProvider(LocalConfig(folder=str(folder)), installation)
        alive = [m.ref for m in await provider.list_machines() if m.state is not MachineState.GONE]
        return len(await asyncio.gather(*map(provider.terminate, alive)))

    return sum(asyncio.run(end(home.name)) for home in sorted(folder.iterdir()))


class LocalProvider:
    """Machines that are agents on this machine; see the module."""

    kind = "local"
    tells_prices = False

    def __init__(self, config: LocalConfig, installation: str) -> None:
        self._config = config
        self._installation = installation
        self._home = _find_folder(config) / installation

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return the offers as available (see `Provider`). This machine always takes one more."""
        return tuple(
            Quote(offer=offer.name, usd_per_hour=offer.usd_per_hour, available=True)
            for offer in offers
        )

    async def create(self, order: CreateOrder) -> Machine:
        """Start an agent (see `Provider`)."""
        check_order(order, self._installation)
        async with within(self._config.deadline_seconds, f"the start of {order.name}"):
            # A thread cannot be cancelled, so it checks the deadline before it starts the agent.
            give_up_at = time.monotonic() + self._config.deadline_seconds
            return await asyncio.to_thread(self._create, order, give_up_at)

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return the machines (see `Provider`)."""
        async with within(self._config.deadline_seconds, "the listing"):
            return await asyncio.to_thread(self._list)

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one machine (see `Provider`)."""
        async with within(self._config.deadline_seconds, f"the look at {ref}"):
            return await asyncio.to_thread(self._show, self._folder_of(ref))

    async def terminate(self, ref: str) -> None:
        """End an agent (see `Provider`): TERM, the grace, KILL. The tasks of a killed guardian die
        with it."""
        folder = self._folder_of(ref)
        seconds = self._config.deadline_seconds + self._config.grace_seconds
        async with within(seconds, f"the end of {ref}"):
            begun = await asyncio.to_thread(self._begin_end, folder)
            while begun is not None and await asyncio.to_thread(_lives, folder):
                if time.time() >= begun + self._config.grace_seconds:
                    await asyncio.to_thread(_signal, folder, signal.SIGKILL)
                await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    # ---- folders

    def _folder_of(self, ref: str) -> Path:
        if not ref or ref in (".", "..") or "/" in ref or "\0" in ref:
            raise Refused(f"{ref!r} is no machine of provider local")
        return self._home / ref

    def _create(self, order: CreateOrder, give_up_at: float) -> Machine:
        folder = self._home / order.intent
        config = overlay(self.kind, self._config, order.offer)
        python, gpus = config.python, config.gpus or str(order.offer.gpus)
        if shutil.which(python) is None:
            raise Refused(f"there is no program {python!r}; set `python`")
        try:
            self._forget_old()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _hold(folder / "lock", give_up_at) as lock:
                if self._show(folder) is None:
                    self._launch(order, folder, lock, python, gpus)
            with _hold(
                folder / "lock", give_up_at
            ):  # the process releases the lock once it is on record
                made = self._show(folder)
        except OSError as error:
            raise Refused(f"no machine can be made in {folder}: {error}") from error
        if made is None:
            raise ProviderDown(f"the agent of {order.name} left no record in {folder}")
        return made

    def _launch(self, order: CreateOrder, folder: Path, lock: int, python: str, gpus: str) -> None:
        record = LocalRecord(
            intent=order.intent,
            pool=order.pool,
            name=order.name,
            offer=order.offer,
            boot_id=_read_boot_id(),
            created_at=datetime.now(UTC),
        )
        _write(folder / "machine.json", msgspec.json.encode(record))
        words = agent_words(order, state=str(folder / "state"), gpus=gpus)
        ours = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        with (folder / "agent.log").open("ab") as log:
            subprocess.run(
                [
                    "sh", "-c", _DETACH, _LAUNCH, str(folder / "process"),
                    python, "-P", "-m", "holdfast", *words,
                ],
                stdin=lock, stdout=log, stderr=log, cwd=folder,
                env=ours | agent_env(order), start_new_session=True, check=True,
            )  # fmt: skip

    def _list(self) -> tuple[Machine, ...]:
        try:
            folders = sorted(self._home.iterdir()) if self._home.exists() else []
            shown = [self._show(folder) for folder in folders]
        except OSError as error:
            raise ProviderDown(f"{self._home} cannot be read: {error}") from error
        return tuple(machine for machine in shown if machine is not None)

    def _show(self, folder: Path) -> Machine | None:
        """Return the machine of a folder; None where nothing was started in it."""
        record = _read_record(folder)
        if record is None or not (folder / "process").exists():
            return None
        entry, ending = _find_process(folder), _read_time(folder / "ending")
        state, reason, lost = MachineState.RUNNING, "", ""
        if entry is None:
            state = MachineState.GONE
            reason = "ended as ordered" if ending else tell_end(_read_last_line(folder))
            lost = "" if ending else "node_failure"
        elif ending is not None:
            state = MachineState.ENDING
        return Machine(
            ref=folder.name,
            intent=record.intent,
            pool=record.pool,
            name=record.name,
            state=state,
            reason=reason,
            lost=lost,
            usd_per_hour=record.offer.usd_per_hour,
            created_at=record.created_at,
        )

    def _begin_end(self, folder: Path) -> float | None:
        """Send TERM once, and return when that was; None where no process is left to end."""
        if not folder.exists():
            return None
        if _mark(folder / "ending"):
            _signal(folder, signal.SIGTERM)
        return _read_time(folder / "ending")

    def _forget_old(self) -> None:
        """Remove the folders of machines that ended an hour ago."""
        for folder in self._home.iterdir() if self._home.exists() else ():
            if _read_record(folder) is None or _find_process(folder) is not None:
                continue
            ended = _read_time(folder / "ended")
            if ended is None:
                _mark(folder / "ended")
            elif time.time() > ended + _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _find_folder(config: LocalConfig) -> Path:
    given = config.folder or os.environ.get(FOLDER_VARIABLE, "")
    if given:
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "holdfast" / "machines"


@contextlib.contextmanager
def _hold(path: Path, give_up_at: float) -> Iterator[int]:
    """Lock a file. Waits for another call, and for a process that was started and is not yet on
    record."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(fd):
            time.sleep(_POLL_SECONDS)
            if time.monotonic() > give_up_at:
                raise ProviderDown(f"{path} is held by a start that does not end")
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.rename(path)


def _read_record(folder: Path) -> LocalRecord | None:
    try:
        return msgspec.json.decode((folder / "machine.json").read_bytes(), type=LocalRecord)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def _mark(path: Path) -> bool:
    """Create an empty file, whose time records the moment. Returns False where another call was
    first."""
    try:
        path.touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):  # a concurrent call made or removed the file
        return False
    return True


def _read_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _find_process(folder: Path) -> table.ProcessEntry | None:
    """Return the living process that the record names, None where the pid is another process's by
    now."""
    record = _read_record(folder)
    try:
        line = (folder / "process").read_text()
    except FileNotFoundError:
        return None
    if record is None or record.boot_id != _read_boot_id():
        return None
    pid, start = int(line.split()[0]), int(line.rpartition(")")[2].split()[19])
    entry = table.read_entry(pid)
    if entry is None or not entry.alive or entry.start_ticks != start:
        return None
    environ = table.read_environ(pid)
    mark = f"{INTENT}={record.intent}".encode()
    # Empty for the moment of an exec; the start time alone then has to do.
    return entry if not environ or mark in environ.split(b"\0") else None


def _lives(folder: Path) -> bool:
    return _find_process(folder) is not None


def _signal(folder: Path, number: int) -> None:
    entry = _find_process(folder)
    if entry is not None:
        table.send_signal(entry, number)


def _read_last_line(folder: Path) -> str:
    """Return the last line of the agent's log, empty where there is none."""
    try:
        with (folder / "agent.log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2048))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
