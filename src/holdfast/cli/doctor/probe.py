"""Look at this machine, in a process: `python -m holdfast.cli.doctor.probe`, with the order on stdin
(`agent/health/parts.py`). Nothing is judged here."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.health.parts import report_parts
from holdfast.core.doctor.facts import (
    AgentFacts,
    ClockFacts,
    ContainerFacts,
    DatabaseFinding,
    DiskFacts,
    FileFacts,
    GpuFacts,
    GroupFacts,
    ImportFacts,
    LimitFacts,
    LocalFacts,
    SharedMemoryFacts,
    SystemFacts,
    ZoneFacts,
)
from holdfast.version import VERSION

_SYNC_TRIES = 5
_CONNECT_SECONDS = 1.0
_ENGINE_SECONDS = 20.0
_YOUNG_SECONDS = 60.0
_PYTHON_SECONDS = 10.0
_FIND_PACKAGE = """
from importlib.util import find_spec
found = find_spec("holdfast")
print(found.origin or list(found.submodule_search_locations)[0] if found else "")
"""
_TIMEX_BYTES = 512  # more than the kernel's `struct timex`
_TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to the process that looks at this machine.

    folders, files: path → use. host: also look at what tasks need. data: the data folder of an
    `up`, "" without one. state: the folder of an agent. dsn: the DSN of the database; None for that
    of the data folder, if its server runs.
    """

    folders: dict[str, str] = {}
    files: dict[str, str] = {}
    host: bool = False
    data: str = ""
    state: str = ""
    port: int = 0
    dsn: str | None = None

    @property
    def parts(self) -> Mapping[str, Callable[[], Any]]:
        """Return the functions that look, each by the name of its part."""
        found: dict[str, Callable[[], Any]] = {
            "system": look_at_system,
            "imports": look_at_imports,
            "time-zone": look_at_zone,
            "clock": look_at_clock,
            "permissions": functools.partial(look_at_files, self.files),
            "ports": functools.partial(look_at_local, self.data, self.port),
        }
        for path, use in self.folders.items():
            found[f"disk {path}"] = functools.partial(look_at_disk, path, use)
        if self.host:
            found |= {
                "limits": look_at_limits,
                "cgroups": look_at_groups,
                "gpu": look_at_gpus,
                "containers": look_at_containers,
                "shm": look_at_shared_memory,
            }
        if self.state:
            found["agent"] = functools.partial(look_at_agent, self.state)
        if self.dsn or self.data:
            found["database"] = functools.partial(look_at_database, self.dsn, self.data)
        return found


def look_at_system() -> SystemFacts:
    """Return the versions of Holdfast, of Python and of the kernel, and how many CPUs and how much
    memory this machine has."""
    return SystemFacts(
        holdfast=VERSION,
        python=platform.python_version(),
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def look_at_imports() -> list[ImportFacts]:
    """Return the package `holdfast` of this Python and of the one that a job's `python` is."""
    own = sys.modules["holdfast"].__file__ or ""
    found = {
        _name_place(sys.executable): ImportFacts(python=sys.executable, file=own, own=_is_own(own))
    }
    for python in filter(None, map(shutil.which, ("python", "python3"))):
        if (place := _name_place(python)) not in found:
            words = [python, "-c", _FIND_PACKAGE]
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_PYTHON_SECONDS, check=False
            )
            file = done.stdout.strip()
            near = os.path.dirname(file).removesuffix("/holdfast") == os.getcwd()
            found[place] = ImportFacts(python=python, file=file, own=_is_own(file), near=near)
    return list(found.values())


def _name_place(python: str) -> tuple[str, str]:
    """Return what two names of one environment's Python have in common."""
    return os.path.dirname(python), os.path.realpath(python)


def _is_own(file: str) -> bool:
    try:
        return "from holdfast.version import VERSION" in Path(file).read_text(errors="replace")
    except OSError:  # a folder without a first file, or none at all
        return False


def look_at_zone() -> ZoneFacts:
    """Return whether time zones are known by name."""
    from zoneinfo import ZoneInfo

    def is_known(name: str) -> bool:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            return False
        return True

    zone = os.environ.get("TZ", "")
    plain = not zone or zone.startswith(":") or any(letter in zone for letter in "0123456789,")
    return ZoneFacts(zone=zone, known=plain or is_known(zone), database=is_known("Europe/Berlin"))


def look_at_clock() -> ClockFacts:
    """Ask the kernel whether a service keeps its clock right."""
    if sys.platform != "linux":
        return ClockFacts()
    answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return ClockFacts(synchronized=None if answer < 0 else answer != _TIME_ERROR)


def look_at_disk(path: str, use: str) -> DiskFacts:
    """Return the room of a folder's disk, and the median of a few small writes through to it."""
    facts = DiskFacts(path=path, use=use)
    try:
        disk = os.statvfs(path)
        facts = msgspec.structs.replace(
            facts,
            free_bytes=disk.f_bavail * disk.f_frsize,
            total_bytes=disk.f_blocks * disk.f_frsize,
            free_inodes=disk.f_favail,
            total_inodes=disk.f_files,
        )
        return msgspec.structs.replace(facts, sync_seconds=_time_sync(path))
    except OSError as error:
        return msgspec.structs.replace(facts, error=error.strerror or str(error))


def _time_sync(path: str) -> float:
    times = []
    with tempfile.TemporaryFile(dir=path, prefix=".holdfast-doctor-") as file:
        for _ in range(_SYNC_TRIES):
            began = time.perf_counter()
            os.write(file.fileno(), b"\0" * 4096)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def look_at_files(files: Mapping[str, str]) -> list[FileFacts]:
    """Return owner and mode of the private files and folders that are there."""
    found = []
    for path, use in files.items():
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append(FileFacts(path=path, use=use, error=error.strerror or str(error)))
            continue
        found.append(
            FileFacts(
                path=path,
                use=use,
                mode=status.st_mode & 0o777,
                uid=status.st_uid,
                own_uid=os.geteuid(),
            )
        )
    return found


def look_at_limits() -> LimitFacts:
    """Return how many files a process may open here."""

    def plain(value: int) -> int:
        return -1 if value == resource.RLIM_INFINITY else value

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LimitFacts(open_files_soft=plain(soft), open_files_hard=plain(hard))


def look_at_groups() -> GroupFacts:
    """Make a control group as a guardian does, and remove it."""
    from holdfast.agent.containers.runtimes import is_hybrid
    from holdfast.process.groups import open_group_home

    root = Path("/sys/fs/cgroup")
    layout = "none"
    if (root / "cgroup.controllers").exists():
        layout = "v2"
    elif is_hybrid(str(root)):
        layout = "hybrid"
    elif root.is_dir() and any(root.iterdir()):
        layout = "v1"
    home = open_group_home(f"doctor-{os.getpid()}")
    if home is None:
        return GroupFacts(layout=layout, usable=False, memory=False)
    home.close()
    return GroupFacts(layout=layout, usable=True, memory=home.memory)


def look_at_gpus() -> GpuFacts:
    """Ask the drivers for the GPUs of this machine, as an agent does."""
    from holdfast.agent.probes.worker import open_readers, read_devices

    nodes = [f"/dev/{name}" for name in os.listdir("/dev")
             if name == "kfd" or (name.startswith("nvidia") and name[6:].isdigit())]  # fmt: skip
    readers, errors = open_readers("pynvml", "/")
    answer = read_devices(readers, 0)
    versions = [version for reader in readers if (version := reader.read_version())]
    return GpuFacts(
        devices=len(answer.devices), drivers=versions, errors=dict(errors), nodes=sorted(nodes)
    )


def look_at_containers() -> ContainerFacts:
    """Ask the container engine that an agent would use, as the agent's user."""
    from holdfast.agent.containers.runtimes import find_runtime
    from holdfast.errors import ValidationError

    try:
        runtime = find_runtime(None, {}, os.environ)
    except ValidationError:
        return ContainerFacts()
    shown = "{{.Version.Version}}" if runtime.kind == "podman" else "{{.ServerVersion}}"
    facts = ContainerFacts(program=runtime.program)
    try:
        done = subprocess.run(
            runtime.call("info", "--format", shown),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ENGINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return msgspec.structs.replace(facts, error=str(error))
    said = done.stderr.decode(errors="replace").strip()
    version = done.stdout.decode(errors="replace").strip()
    if done.returncode or not version:
        return msgspec.structs.replace(facts, error=said or f"exit code {done.returncode}")
    return msgspec.structs.replace(facts, version=version)


def look_at_shared_memory() -> SharedMemoryFacts:
    """Return the room of /dev/shm, and the memory that no process uses, and that was not made just
    now for one that is about to start."""
    from holdfast.agent.watch.left_memory import find_left_memory

    try:
        disk = os.statvfs("/dev/shm")
        with tempfile.TemporaryFile(dir="/dev/shm", prefix=".holdfast-doctor-") as file:
            file.write(b"\0")
    except OSError as error:
        return SharedMemoryFacts(error=error.strerror or str(error))
    left, why = [], ""
    try:
        left = find_left_memory(until=time.time() - _YOUNG_SECONDS)
    except (OSError, TimeoutError) as error:
        why = str(error)
    return SharedMemoryFacts(
        total_bytes=disk.f_blocks * disk.f_frsize,
        free_bytes=disk.f_bavail * disk.f_frsize,
        left=tuple(left),
        left_error=why,
    )


def look_at_local(data: str, port: int) -> LocalFacts:
    """Return whether the `up` of a data folder listens; without such an `up`, whether another
    program has taken the port that one would use."""
    url = ""
    if data:
        try:
            url = (Path(data) / "url").read_text().strip()
        except OSError:
            url = ""
    if url:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        listening = _is_listening(parts.hostname or "127.0.0.1", parts.port or 80)
        return LocalFacts(folder=data, url=url, listening=listening)
    return LocalFacts(folder=data, port=port, port_taken=_is_listening("127.0.0.1", port))


def _is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def look_at_agent(state: str) -> AgentFacts:
    """Return whether the agent of a folder runs, and whether its controller answers."""
    from holdfast.agent.config import CONFIG_FILE, HOST_FILE, read_config
    from holdfast.agent.guardian.guardian_folder import LOCK_FILE
    from holdfast.errors import HoldfastError, Unavailable

    folder = Path(state)
    url, why = "", ""
    try:
        config = read_config(str(folder / CONFIG_FILE))
        url = config.url
        from holdfast.client.synchronous import Client

        with Client(
            url, "none", retry_seconds=0.0, timeout_seconds=5.0, ca_file=config.ca_file
        ) as client:
            client.whoami()
    except Unavailable as error:
        why = error.message.partition("cannot be reached: ")[2] or error.message
    except HoldfastError:
        pass  # it answered that this is no token; or there is no config yet
    return AgentFacts(
        folder=state,
        running=_is_locked(folder / LOCK_FILE),
        registered=(folder / HOST_FILE).exists(),
        url=url,
        url_error=why,
    )


def _is_locked(path: Path) -> bool:
    """Return whether another process has locked a file. A guardian that starts at this moment waits
    for longer than this look takes."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it cannot be read
        return False
    return False


def look_at_database(dsn: str | None, data: str) -> list[DatabaseFinding]:
    """Return the answer of `holdfast db status` about the database of the DSN, or that of the
    `up`."""
    from holdfast.cli.extras import need_server
    from holdfast.errors import HoldfastError

    try:
        need_server()
        from holdfast.store.embedded.postgres import find_dsn
        from holdfast.store.postgres.connection.migrate import read_findings, read_status

        runs = (Path(data) / "url").exists()
        found = dsn or (find_dsn(Path(data) / "postgres") if runs else None)
        if found is None:
            return []
        status, findings = read_status(found), read_findings(found)
    except HoldfastError as error:
        mend = "Look whether the server runs, and whether the DSN names it"
        return [DatabaseFinding(level="problem", sentence=error.message, mend=mend)]
    told = [
        DatabaseFinding(
            level="warning", sentence=f"{one.name} is {one.value}: {one.effect}", mend=one.mend
        )
        for one in findings
    ]
    if status.pending:
        told.append(
            DatabaseFinding(
                level="problem",
                sentence=f"the tables lack {', '.join(status.pending)}",
                mend="Run `holdfast db migrate`, or start the controller, which does it",
            )
        )
    said = f"the database answers, its schema is version {status.version}"
    return [DatabaseFinding(level="ok", sentence=said), *told]


def main() -> int:
    """Look at every part of the order, and print what was found."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ProbeOrder)
    return report_parts(order.parts)


if __name__ == "__main__":
    raise SystemExit(main())
