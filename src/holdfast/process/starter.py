"""The native starter: a file of a few kilobytes (`starter.c`) that starts processes without a copy
of their large parent.

A fork of Python copies its page tables, and parent and child then pay for every page that either
touches. The starter makes a process that shares its parent's memory until it execs the starter as a
program, in memory of its own: that enters the working folder, opens the logs and becomes the task's
program, while the parent has long gone on. `posix_spawn` would do as well, but suspends its caller
until the exec, and so for as long as the new process waits for a core.

The package has the file where it was built for this machine (`hatch_build.py`). `HOLDFAST_STARTER=off` does
without it.

STARTER-1  The starter is an optional part: where it is missing, may not be run, or was built for
           other words than this version gives it, a start takes the way of `spawn.py`, and ends the
           same. One that is there and does not work is told, in one line on stderr.
STARTER-2  The memory that a new process shares with its parent is kept until the start is decided. The
           process writes to nothing of it but its stack, and takes no step there but the exec: the
           kernel gives an out-of-memory score to all processes that share a memory.
"""

import ctypes
import functools
import os
from pathlib import Path

from holdfast.process.loop import write_note
from holdfast.process.syscalls import WordArray, block_all_signals, restore_signals

SWITCH = "HOLDFAST_STARTER"
_FILE = Path(__file__).with_name("starter")
_WORDS = b"holdfast-starter words: 7"  # as in starter.c
_STACK_BYTES = 1 << 12  # the exec needs none of it but the last 16, which take its errno


class Launch:
    """A process that was made, and the memory that it reads until its exec (STARTER-2)."""

    __slots__ = ("_env", "_stack", "_top", "_words", "pid")

    def __init__(self, starter: "Starter", words: WordArray, env: WordArray) -> None:
        self._words, self._env = words, env
        self._stack = ctypes.create_string_buffer(_STACK_BYTES)
        self._top = top = (ctypes.addressof(self._stack) + _STACK_BYTES - 16) & ~15
        # Blocked until its handlers are reset (SPAWN-1).
        mask = block_all_signals()
        try:
            self.pid: int = starter.launch(starter.path, words.address, env.address, top)
        finally:
            restore_signals(mask)
        if self.pid < 0:
            raise OSError(-self.pid, os.strerror(-self.pid))

    def read_errno(self) -> int:
        """Return why the exec of the starter failed; 0 where it did not, or not yet."""
        return ctypes.c_int.from_address(self._top).value


class Starter:
    """The starter as this process may use it: its function, and the path of the program."""

    def __init__(self, path: str) -> None:
        self.path = path.encode()
        # PyDLL keeps the interpreter lock: the call never blocks.
        library, pointer = ctypes.PyDLL(str(_FILE)), ctypes.c_void_p
        self.launch = library.launch
        self.launch.argtypes = [ctypes.c_char_p, pointer, pointer, pointer]
        self.launch.restype = ctypes.c_long

    def works(self) -> bool:
        """Try to start a process, and return whether it was made and came to its end. Raises
        OSError."""
        trial = Launch(self, WordArray([b"starter"]), WordArray([]))
        return os.waitpid(trial.pid, 0)[1] == 0


@functools.cache
def find_starter() -> Starter | None:
    """Return the starter; None where no starter works here (STARTER-1)."""
    if os.environ.get(SWITCH) == "off":
        return None
    try:
        fd = os.memfd_create("holdfast-starter", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        data = _FILE.read_bytes()
        if _WORDS not in data:
            raise OSError("it was built from an earlier starter.c")
        os.write(fd, data)
        starter = Starter(f"/proc/self/fd/{fd}")
        if starter.works():
            return starter
        why = "its trial failed"
    except FileNotFoundError:
        why = ""
    except (OSError, AttributeError) as error:
        why = str(error)
    os.close(fd)
    if why:
        sentence = f"the native starter does not work here ({why}), so programs start by fork"
        write_note(2, "starter", sentence, {})
    return None


def name_limit(pair: tuple[int, int] | None) -> tuple[str, str]:
    """Write a soft and a hard limit as the starter reads them: unlimited is the largest number."""
    if pair is None:
        return "", ""
    soft, hard = pair
    return str(soft % (1 << 64)), str(hard % (1 << 64))


def name_path(path: str | None) -> str:
    """Write a path as the starter reads it: it tells none from an empty one."""
    return "" if path is None else f"+{path}"
