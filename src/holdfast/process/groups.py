"""One control group per task, where one can be made: its members, its memory limit, its OOM count.

`open_group_home` chooses the layout, best first: the unified hierarchy (v2) with the memory
controller, the v1 memory hierarchy, and v2 without controllers (members and `cgroup.kill` only).
Where none can be written, trees are found by parentage, session and environment alone, and memory
by rusage.

GROUP-1  A process can leave its environment and its parent, but not its group: membership is the
         strongest evidence.
- A group is removed when its task is over; what a dead guardian left is found under the same
  folder name.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from holdfast.process.syscalls import write_file
from holdfast.process.table import raise_if_ours

_LEAF = "holdfast-guardian"


class TaskGroup:
    """One task's group. `path` is its folder."""

    __slots__ = ("path", "unified")

    def __init__(self, path: str, unified: bool) -> None:
        self.path = path
        self.unified = unified

    @property
    def name(self) -> str:
        """Return the path of the group below the folder of all groups of the host."""
        return self.path.rsplit("/", 1)[1]

    @property
    def procs_path(self) -> str:
        """Return the file into which a process writes "0" to join."""
        return f"{self.path}/cgroup.procs"

    def read_pids(self) -> list[int]:
        """Return the pids of the members. Members of groups below, and members that exit but are no
        zombies yet, are included. Raises OSError (TABLE-1), because an unread group is not an empty
        one."""
        return _read_pids(self.path)

    def set_limit(self, memory_bytes: int) -> None:
        """Limit the memory of the members, swap included. Raises OSError where that is refused."""
        if self.unified:
            write_file(f"{self.path}/memory.max", str(memory_bytes))
            _try_write(f"{self.path}/memory.swap.max", "0")
        else:
            write_file(f"{self.path}/memory.limit_in_bytes", str(memory_bytes))
            _try_write(f"{self.path}/memory.memsw.limit_in_bytes", str(memory_bytes))

    def count_oom_kills(self) -> int:
        """Count the members that the kernel killed for want of memory, the host's included."""
        name = "memory.events" if self.unified else "memory.oom_control"
        return _read_field(f"{self.path}/{name}", "oom_kill")

    def read_peak_bytes(self) -> int:
        """Return the most memory that the members held at once, file cache included; 0 if not
        counted."""
        name = "memory.peak" if self.unified else "memory.max_usage_in_bytes"
        return _read_number(f"{self.path}/{name}") or 0

    def read_cpu_seconds(self) -> float | None:
        """Return the processor time of all that were ever in the group and in groups below; None
        under v1, where another hierarchy counts it."""
        spent = _read_fields(f"{self.path}/cpu.stat").get("usage_usec") if self.unified else None
        return None if spent is None else spent / 1e6

    def read_own_bytes(self) -> int | None:
        """Return the memory that the kernel could not drop while the members live: anonymous and
        shared memory and swap, without the file cache. None if not counted."""
        words = _read_fields(f"{self.path}/memory.stat")
        if self.unified:
            swap = _read_number(f"{self.path}/memory.swap.current") or 0
            return words["anon"] + words.get("shmem", 0) + swap if "anon" in words else None
        names = ("total_rss", "total_shmem", "total_swap")
        return sum(words.get(name, 0) for name in names) if "total_rss" in words else None

    def kill(self) -> bool:
        """Kill all members at once, which no fork can outrun. Returns False where the kernel
        cannot."""
        if not os.path.exists(f"{self.path}/cgroup.kill"):
            return False
        return _try_write(f"{self.path}/cgroup.kill", "1")

    def remove(self) -> bool:
        """Remove the group and the groups below it. Return False while a process still lives in one
        of them."""
        return _remove_group(self.path)


class GroupHome:
    """The folder under which task groups are made."""

    def __init__(self, path: str, *, unified: bool, memory: bool, prefix: str = "t") -> None:
        self.path = path
        self.unified = unified
        self.memory = memory  # limits, OOM counts and peaks work
        self._prefix = prefix
        self._number = 0

    def make_group(self) -> TaskGroup:
        """Make an empty group. Raises OSError (no space, no permission)."""
        while True:
            self._number += 1
            path = f"{self.path}/{self._prefix}{self._number}"
            try:
                os.mkdir(path)
            except FileExistsError:
                continue  # an earlier guardian's unkillable process is still in it
            return TaskGroup(path, self.unified)

    def close(self) -> None:
        """Remove the groups that are empty."""
        _remove_group(self.path)


def name_group_folder(host: str) -> str:
    """Return the folder name of a host's groups: readable, and unique also where two hosts' names
    read alike."""
    readable = re.sub(r"[^A-Za-z0-9-]", "-", host)[:40]
    return f"holdfast-{readable}-{zlib.crc32(host.encode()):08x}"


def open_group_home(host: str) -> GroupHome | None:
    """Return the best hierarchy in which this process can make, join and remove groups; None where
    there is none."""
    name = name_group_folder(host)
    mounts = _find_mounts()
    for unified, memory in ((True, True), (False, True), (True, False)):
        own = mounts.get("memory" if not unified else "")
        if own is None:
            continue
        home = _try_home(f"{own}/{name}", own, unified=unified, memory=memory)
        if home is not None:
            return home
    return None


def step_aside() -> None:
    """Make room for limits in the v2 group that a service manager gave this process, if no other
    process is in it.

    Call this before a guardian is started beside other processes, because a group with members may
    not pass controllers on. Does nothing where that is impossible.
    """
    own = _find_mounts().get("")
    if own is not None:
        with contextlib.suppress(OSError):
            _delegate_memory(own)


def _try_home(path: str, own: str, *, unified: bool, memory: bool) -> GroupHome | None:
    try:
        if unified and memory and not _delegate_memory(own):
            return None
        os.makedirs(path, mode=0o755, exist_ok=True)
        if unified and memory:
            write_file(f"{path}/cgroup.subtree_control", "+memory")
        home = GroupHome(path, unified=unified, memory=memory)
        probe = home.make_group()
        try:
            if memory:
                probe.set_limit(1 << 30)
                probe.count_oom_kills()
            usable = _can_join(probe)
        finally:
            probe.remove()
    except (OSError, ValueError):
        _remove_group(path)
        return None
    return home if usable else None


def _can_join(group: TaskGroup) -> bool:
    """Return whether a process can join the group, tried with a child that does nothing else."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            write_file(group.procs_path, "0")
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _delegate_memory(own: str) -> bool:
    """Pass the memory controller of this process's own v2 group on to groups below. Returns False
    where that is impossible.

    A v2 group with members of its own may not pass controllers on. Where this process is its only
    member (a service with `Delegate=yes`), the process moves into a leaf group.
    """
    if "memory" not in _read_words(f"{own}/cgroup.controllers"):
        return False
    if "memory" in _read_words(f"{own}/cgroup.subtree_control"):
        return True
    if _try_write(f"{own}/cgroup.subtree_control", "+memory"):
        return True
    if _read_words(f"{own}/cgroup.procs") != [str(os.getpid())]:
        return False
    leaf = f"{own}/{_LEAF}"
    os.makedirs(leaf, exist_ok=True)
    write_file(f"{leaf}/cgroup.procs", str(os.getpid()))
    if _try_write(f"{own}/cgroup.subtree_control", "+memory"):
        return True
    _try_write(f"{own}/cgroup.procs", str(os.getpid()))
    return False


def _find_mounts() -> dict[str, str]:
    """Return this process's own group folder by hierarchy: "" for v2, "memory" for v1's."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return {}
    return find_own_groups(groups, mounts)


def read_memory_limit(pid: int) -> int | None:
    """Return the lowest memory limit of the process's group and of those above it; None without a
    limit, or where it cannot be read."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for hierarchy, folder in find_own_groups(groups, mounts).items():
        name = "memory.limit_in_bytes" if hierarchy else "memory.max"
        for path in (Path(folder), *Path(folder).parents):
            try:
                limits.append(int((path / name).read_text()))
            except (OSError, ValueError):  # above the mount, or "max"
                continue
    return min(limits, default=None)


def find_apart_groups(pids: Iterable[int]) -> dict[int, list[TaskGroup]]:
    """Return the groups of each process in which this process is not. A process without any has an
    empty list: without delegation, all processes of a user share one group.

    In a v1 hierarchy a process that has ended is shown in the root group, whose counters are the
    machine's; the root is never returned.
    """
    try:
        ours = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return {pid: [] for pid in pids}
    apart: dict[int, list[TaskGroup]] = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        own = [line for line in lines if line not in ours and not line.endswith(":/")]
        found = find_own_groups(own, mounts)
        apart[pid] = [TaskGroup(path, not hierarchy) for hierarchy, path in found.items()]
    return apart


def find_own_groups(groups: list[str], mounts: list[str]) -> dict[str, str]:
    """Return hierarchy → this process's own folder in that hierarchy, from /proc/self/cgroup and
    mountinfo. The hierarchy "" is v2."""
    own: dict[str, str] = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            # After `step_aside` the group that was given is the one above the leaf.
            own[""] = path.removesuffix(f"/{_LEAF}") or "/"
        elif "memory" in controllers.split(","):
            own["memory"] = path
    found: dict[str, str] = {}
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        hierarchy = {"cgroup2": "", "cgroup": "memory"}.get(kind[0])
        if hierarchy is None or hierarchy not in own or hierarchy in found:
            continue
        if hierarchy == "memory" and "memory" not in kind[-1].split(","):
            continue
        # A container may see only the part of the hierarchy that begins at `root`.
        root, point, path = fields[3], fields[4], own[hierarchy]
        if root != "/":
            path = path[len(root) :] if path == root or path.startswith(root + "/") else "/"
        if "/.." not in path:
            found[hierarchy] = (point + path).rstrip("/")
    return found


def list_groups(home: str) -> list[TaskGroup]:
    """Return all groups in the folder `home`. Raises OSError (TABLE-1)."""
    try:
        names = [entry.name for entry in os.scandir(home) if entry.is_dir()]
    except OSError as error:
        raise_if_ours(error)
        return []
    return [
        TaskGroup(f"{home}/{name}", os.path.exists(f"{home}/{name}/cgroup.events"))
        for name in sorted(names)
    ]


def _read_pids(path: str) -> list[int]:
    try:
        pids = [int(word) for word in _read_words(f"{path}/cgroup.procs")]
        if os.stat(path).st_nlink > 2:
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    pids += _read_pids(entry.path)
    except OSError as error:
        raise_if_ours(error)
        return []
    return pids


def _remove_group(path: str) -> bool:
    try:
        if os.stat(path).st_nlink > 2:
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    _remove_group(entry.path)
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read_words(path: str) -> list[str]:
    with open(path, "rb", buffering=0) as file:
        return file.readall().decode().split()


def _read_field(path: str, name: str) -> int:
    return _read_fields(path).get(name, 0)


def _read_fields(path: str) -> dict[str, int]:
    """Return the lines of a file of names and numbers; nothing if it cannot be read."""
    try:
        words = _read_words(path)
        return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
    except (OSError, ValueError):
        return {}


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _try_write(path: str, text: str) -> bool:
    try:
        write_file(path, text)
    except OSError:
        return False
    return True
