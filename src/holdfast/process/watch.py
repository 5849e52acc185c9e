"""Watch children, and reap those that end. One epoll over pidfds, each of which is readable at once
when its process ends.

- No exit is missed: a pidfd stays readable until it is closed, and the status waits in the
  zombie.
WATCH-2  Orphans re-parented to a sub-reaper are reaped and returned by the same `collect`. They
         have no pidfd here, so nothing wakes for them: a sub-reaper calls `collect` from time to
         time as well.
WATCH-3  One `collect` reaps `MAX_EXITS` at most, because a tree that forks and exits faster than it
         is reaped must not hold up its reaper for ever. The next call reaps more.
- A child without a pidfd, or whose pidfd the kernel cannot poll (no memory), is reaped by
  the next call, like an orphan.
WATCH-5  A keeper that was stopped is continued, because its task could have stopped it, and no end
         would be reported.

`collect` waits for *any* child, so the process that watches must have no other library waiting for
children.
"""

import os
import select
import signal

import msgspec

MAX_EXITS = 256


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a process.

    exit_code or signal is set. max_rss_bytes: the largest memory of the process and of its
    waited-for children.
    """

    pid: int
    exit_code: int | None
    signal: int | None
    max_rss_bytes: int


class Watcher:
    """The pidfds of children that run."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._children: dict[int, int] = {}  # pid → pidfd
        self._keepers: set[int] = set()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `collect` has something to do; it can be nested
        in any poll."""
        return self._epoll.fileno()

    def watch_child(self, pid: int, pidfd: int, *, keeper: bool = False) -> None:
        """Watch a child; the watcher owns `pidfd` from here on. pidfd: -1 for a child without one.
        keeper: True for a keeper (WATCH-5)."""
        if keeper:
            self._keepers.add(pid)
        if pidfd < 0:
            return
        try:
            self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:
            os.close(pidfd)
        else:
            self._children[pid] = pidfd

    def collect(self) -> list[Exit]:
        """Reap children that have ended, without waiting (WATCH-3), and return their exits."""
        exits: list[Exit] = []
        while len(exits) < MAX_EXITS:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                if pid in self._keepers:
                    os.kill(pid, signal.SIGCONT)
                continue
            self._keepers.discard(pid)
            pidfd = self._children.pop(pid, None)
            if pidfd is not None:
                self._epoll.unregister(pidfd)
                os.close(pidfd)
            exits.append(_read_exit(pid, status, usage.ru_maxrss * 1024))
        return exits

    def close(self) -> None:
        """Close every descriptor. Children go on, unwatched."""
        for pidfd in self._children.values():
            os.close(pidfd)
        self._children.clear()
        self._epoll.close()


def _read_exit(pid: int, status: int, max_rss_bytes: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(
        pid=pid,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        max_rss_bytes=max_rss_bytes,
    )
