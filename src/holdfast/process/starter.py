"""The native starter: a file of a few kilobytes (`starter.c`) that starts processes without a copy
of their large parent.

A fork of Python copies its page tables, and parent and child then pay for every page that either
touches. The starter's `launch` makes a process that shares its parent's memory until its exec, which
is of the starter itself, now as a program: it enters the working folder, opens the logs and becomes
the task's program, while the parent has long gone on. `posix_spawn` would do as well, but suspends
its caller until the exec, and so for as long as the new process waits for a core.

The package has the file where a C compiler was there when it was built. `HOLDFAST_STARTER=off` does
without it.

STARTER-1  The starter is an optional part: where it is missing or may not be run, a start takes
           the way of `spawn.py`, and ends the same.
STARTER-2  The memory that a new process shares with its parent is kept until it has exec'd. The exec
           waits for no disk, because the program lies in memory.
"""

import ctypes
import functools
import os
from pathlib import Path

from holdfast.process.syscalls import WordArray, block_all_signals, restore_signals

SWITCH = "HOLDFAST_STARTER"
_FILE = Path(__file__).with_name("starter")
_STACK_BYTES = 64  # what it needs is in registers; the last but 16 bytes take an errno


class Launch:
    """A process that was made, and the memory that it reads until its exec (STARTER-2)."""

    __slots__ = ("_argv", "_env", "_stack", "pid")

    def __init__(self, starter: "Starter", argv: WordArray, env: WordArray) -> None:
        self._argv, self._env = argv, env
        self._stack = (ctypes.c_long * (_STACK_BYTES // 8 + 1))()
        top = (ctypes.addressof(self._stack) + _STACK_BYTES - 16) & ~15
        # Blocked until the program resets its handlers (SPAWN-1).
        mask = block_all_signals()
        try:
            self.pid: int = starter.launch(starter.path, argv.address, env.address, top)
        finally:
            restore_signals(mask)
        if self.pid < 0:
            raise OSError(-self.pid, os.strerror(-self.pid))

    def read_errno(self) -> int:
        """Return why the exec of the starter failed; 0 where it did not, or not yet."""
        return next(filter(None, self._stack), 0)


class Starter:
    """The starter as this process may use it: the library, and the path of the program."""

    def __init__(self, path: str) -> None:
        self.path = path.encode()
        # PyDLL keeps the interpreter lock: the call never blocks.
        self.launch = ctypes.PyDLL(str(_FILE)).launch
        self.launch.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.launch.restype = ctypes.c_long


@functools.cache
def find_starter() -> Starter | None:
    """Return the starter, None where there is none that works here (STARTER-1)."""
    if os.environ.get(SWITCH) == "off":
        return None
    try:
        fd = os.memfd_create("holdfast-starter", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(fd, _FILE.read_bytes())
        starter = Starter(f"/proc/self/fd/{fd}")
        trial = Launch(starter, WordArray([b"starter"]), WordArray([]))
        if os.waitpid(trial.pid, 0)[1] == 0:
            return starter
    except (OSError, AttributeError):
        pass
    os.close(fd)
    return None


def name_limit(pair: tuple[int, int] | None) -> tuple[str, str]:
    """Write a soft and a hard limit as the starter reads them: unlimited is the largest number."""
    if pair is None:
        return "", ""
    soft, hard = pair
    return str(soft % (1 << 64)), str(hard % (1 << 64))


def name_path(path: str | None, *, ready: bool = False) -> str:
    """Write a path as the starter reads it: it tells none from an empty one, and whether a file may
    lie ready to become it."""
    return "" if path is None else f"{'*' if ready else '+'}{path}"
