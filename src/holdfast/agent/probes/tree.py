"""Read CPU time, moved bytes and memory of a task's process tree from /proc.

- The counters never fall and never lose work: a process's work is added while it runs, so that its
  exit takes nothing away. A child's whole time is counted once more in its parent when it is
  reaped, so a tree in which processes come and go looks busier than it is, never idler.
- If a living process may not be read, the value is unknown, not smaller.
"""

import os

import msgspec

from holdfast.agent.probes.sockets import Moved, SocketReader
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs import TreeReading
from holdfast.process import table as process_table
from holdfast.process.table import ProcessEntry

_TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class TreeUsage(msgspec.Struct, frozen=True):
    """The usage of one process. cpu_seconds: its CPU time and that of its reaped children.
    io_bytes: None if unreadable. stopped: True if a signal or a debugger has stopped it."""

    cpu_seconds: float
    rss_bytes: int
    io_bytes: int | None
    stopped: bool = False


def find_trees(roots: dict[TaskKey, int], guardian_pid: int) -> dict[TaskKey, list[ProcessEntry]]:
    """Return the living processes of each task: its session, its descendants, and its orphans.
    Orphans are children of the task's keeper (the keeper itself belongs to no task), and children
    of the guardian that carry the task's mark.

    A container's tree has the processes inside only. Its runner and its engine's clients carry the
    mark, too, but are Holdfast's own; and no process inside becomes an orphan of the guardian.
    """
    table = process_table.read_table()
    by_root = {pid: key for key, pid in roots.items()}
    by_text = {
        str(key): key
        for key, pid in roots.items()
        if (root := table.get(pid)) is not None and root.ppid == guardian_pid
    }
    by_keeper = {
        keeper.pid: key
        for key, pid in roots.items()
        if (root := table.get(pid)) is not None
        and (keeper := table.get(root.ppid)) is not None
        and keeper.ppid == guardian_pid
    }
    by_text |= {str(key): key for key in by_keeper.values()}
    owners: dict[int, TaskKey | None] = dict.fromkeys(by_keeper)
    # The first rule that fits names a process's task; without a rule it is in its parent's task.
    for entry in table.values():
        if entry.pid in by_root:
            owners[entry.pid] = by_root[entry.pid]
        elif entry.session in by_root:
            owners[entry.pid] = by_root[entry.session]
        elif entry.pid in by_keeper:
            continue
        elif entry.ppid in by_keeper:
            owners[entry.pid] = by_keeper[entry.ppid]
        elif entry.ppid == guardian_pid:
            # Only the guardian's orphans have their marks read, because reading an environment may
            # block on a process that is stuck in the kernel.
            owners[entry.pid] = by_text.get(process_table.read_marks(entry.pid)[0] or "")
    trees: dict[TaskKey, list[ProcessEntry]] = {key: [] for key in roots}
    for entry in table.values():
        owner = _find_owner(entry, table, owners)
        if owner is not None and entry.alive:
            trees[owner].append(entry)
    return trees


def _find_owner(
    entry: ProcessEntry, table: dict[int, ProcessEntry], owners: dict[int, TaskKey | None]
) -> TaskKey | None:
    path: list[int] = []
    pid = entry.pid
    while pid in table and pid not in owners and pid not in path:
        path.append(pid)
        pid = table[pid].ppid
    owner = owners.get(pid)
    owners.update((step, owner) for step in path)
    return owner


def read_usage(pid: int) -> TreeUsage | None:
    """Read one process; return None if it is gone."""
    try:
        stat = _read(f"/proc/{pid}/stat")
        fields = stat[stat.rfind(b")") + 2 :].split()
        cpu_seconds = sum(int(field) for field in fields[11:15]) * _TICK_SECONDS
        rss_bytes = int(fields[21]) * _PAGE_BYTES
        stopped = fields[0] in (b"T", b"t")
    except (OSError, IndexError, ValueError):
        return None
    try:
        words = dict(line.split(b": ") for line in _read(f"/proc/{pid}/io").splitlines())
        # rchar counts bytes of read(); read_bytes also counts bytes fetched for mapped files.
        read_bytes = max(int(words[b"rchar"]), int(words[b"read_bytes"]))
        io_bytes: int | None = read_bytes + max(int(words[b"wchar"]), int(words[b"write_bytes"]))
    except FileNotFoundError:
        return None
    except (OSError, KeyError, ValueError):
        io_bytes = None
    return TreeUsage(cpu_seconds, rss_bytes, io_bytes, stopped)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


class TreeMeter:
    """Adds up the work of one task's process tree."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], TreeUsage] = {}
        self._cpu_seconds = 0.0
        self._io_bytes = 0
        self._moved: Moved = {}

    def read(self, members: list[ProcessEntry], sockets: SocketReader) -> TreeReading:
        """Read a task's processes. Return the work that they did since the first reading, and the
        memory that they have now."""
        now: dict[tuple[int, int], TreeUsage] = {}
        rss_bytes, io_known = 0, True
        for entry in members:
            usage = read_usage(entry.pid)
            if usage is None:
                continue
            now[entry.identity] = usage
            before = self._before.get(entry.identity)
            rss_bytes += usage.rss_bytes
            cpu_before = before.cpu_seconds if before else 0.0
            self._cpu_seconds += max(0.0, usage.cpu_seconds - cpu_before)
            if usage.io_bytes is None:
                io_known = False
            else:
                known_before = before.io_bytes if before and before.io_bytes is not None else 0
                self._io_bytes += max(0, usage.io_bytes - known_before)
        self._before = now
        if not now:
            return TreeReading()
        moved = sockets.read(entry.pid for entry in members)
        if moved is None:
            io_known = False
        else:
            before_moved, self._moved = self._moved, moved
            self._io_bytes += sum(max(0, n - before_moved.get(k, 0)) for k, n in moved.items())
        return TreeReading(
            cpu_seconds=round(self._cpu_seconds, 4),
            io_bytes=self._io_bytes if io_known else None,
            rss_bytes=rss_bytes,
            stopped=sum(usage.stopped for usage in now.values()),
        )


def read_own_bytes(pid: int) -> int:
    """Return the bytes of memory that the kernel could not drop while the process lives: anonymous
    and shared memory, by its share of shared pages, and swap. Pages of mapped files are the
    kernel's cache.

    If the kernel does not allow this reading, shared memory counts whole. A process that is gone
    has 0.
    """
    words = _read_sizes(f"/proc/{pid}/smaps_rollup")
    own = [words.get(name) for name in (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")]
    if None in own:
        words = _read_sizes(f"/proc/{pid}/status")
        own = [words.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmSwap")]
    return sum(size or 0 for size in own)


def _read_sizes(path: str) -> dict[bytes, int]:
    """Return the lines of a file in /proc that name a size in kB, as name → bytes."""
    try:
        lines = (line.split() for line in _read(path).splitlines())
        return {w[0][:-1]: int(w[1]) * 1024 for w in lines if len(w) == 3 and w[2] == b"kB"}
    except (OSError, ValueError):
        return {}
