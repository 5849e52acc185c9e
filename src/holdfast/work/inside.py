"""Run a program in the surroundings of another process, with that process's rights and no more.

    python -I -m holdfast.work.inside PID NAMES -- COMMAND…

It has the environment of that process, too, without the variables NAMES (with commas between), and
with those that are given here. They are read here, and not given to a program of the host, because
what a job writes into LD_PRELOAD would run there.

ENTER-1  The program has the user, the groups and the namespaces of process PID, and none of the
         capabilities that it lacks, because what enters from a root agent has all of them, and would
         leave a container by them. It makes no devices: it is in none of the container's control
         groups, which say what a device may be used for.

Standard library only. `nsenter` is not used for this: it keeps all capabilities of root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from typing import NoReturn

_SPACES = ("user", "ipc", "uts", "net", "pid", "mnt")
_BOUNDING_DROP, _NO_NEW_PRIVS, _AMBIENT, _CLEAR = 24, 38, 47, 4
_CAPABILITIES_3 = 0x20080522
_MAKES_DEVICES = 1 << 27
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(pid: int) -> set[str]:
    """Enter the namespaces, the root and the folder of a process. Return the namespaces that differ;
    that of pids is for what is forked next. Raises OSError."""
    place, ends = f"/proc/{pid}", dict[str, int]()
    for space in _SPACES:
        there, here = (f"{where}/ns/{space}" for where in (place, "/proc/self"))
        if os.stat(there).st_ino != os.stat(here).st_ino:
            ends[space] = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
    root, cwd = (os.open(f"{place}/{name}", os.O_PATH | os.O_CLOEXEC) for name in ("root", "cwd"))
    for space, fd in ends.items():
        _check(_libc.setns(fd, 0), f"the {space} namespace")
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(cwd)
    return set(ends)


def read_rights(pid: int) -> dict[str, list[str]]:
    """Return the lines of a process's status, by name. Raises OSError."""
    with open(f"/proc/{pid}/status") as file:
        return {line.partition(":")[0]: line.partition(":")[2].split() for line in file}


def read_environment(pid: int, left_out: str) -> dict[str, str]:
    """Return the variables of a process without some. Raises OSError."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs if name and name not in left_out.split(",")}


def take_rights(found: dict[str, list[str]], *, is_mapped: bool) -> None:
    """Give up all that a process with these rights has not (ENTER-1). is_mapped: it has numbers of
    users of its own, in which this process stays the same user. Raises OSError."""
    bounding = int(found["CapBnd"][0], 16) & ~_MAKES_DEVICES
    for number in range(64):
        if not bounding >> number & 1 and _libc.prctl(_BOUNDING_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() == 22:  # EINVAL: the kernel has no more of them
                break
            raise OSError(ctypes.get_errno(), "a capability cannot be given up")
    _libc.prctl(_AMBIENT, _CLEAR, 0, 0, 0)
    gid, uid = int(found["Gid"][1]), int(found["Uid"][1])
    if not is_mapped and os.geteuid() == 0:
        os.setgroups([int(one) for one in found["Groups"]])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    kept = int(found["CapPrm"][0], 16) & bounding if is_mapped or uid == 0 else 0
    low, high = kept & 0xFFFFFFFF, kept >> 32
    head = struct.pack("Ii", _CAPABILITIES_3, 0)
    _check(_libc.capset(head, struct.pack("6I", low, low, 0, high, high, 0)), "the capabilities")
    if found.get("NoNewPrivs") == ["1"]:
        _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def _follow(child: int) -> NoReturn:
    """End as the child does; stop when it stops."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # they go to the whole group of the terminal
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
            continue
        if os.WIFSIGNALED(status):
            with contextlib.suppress(OSError):  # KILL
                signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> int:
    """Run the program that the command line names."""
    pid, words = int(sys.argv[1]), sys.argv[4:]
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Python's own, which a program would inherit
    try:
        rights, env = read_rights(pid), read_environment(pid, sys.argv[2]) | dict(os.environ)
        entered = enter(pid)
        if "pid" in entered and (child := os.fork()):
            _follow(child)
        take_rights(rights, is_mapped="user" in entered)
        os.execvpe(words[0], words, env)
    except OSError as error:
        print(f"{words[0]}: {error.strerror or error}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    sys.exit(main())
