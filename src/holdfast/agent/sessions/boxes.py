"""Enter a task's container: the namespaces, the root, the folder, the user and the environment of its
first process.

The engine's own `exec` is not used, because what it starts is a child of the engine: a session's
process has to be the guardian's (INSIDE-1), and to end when the session does.
"""

import os
import shutil

from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE

_SPACES = ("mnt", "uts", "ipc", "net", "pid")
_OPTIONS = {"mnt": "--mount", "uts": "--uts", "ipc": "--ipc", "net": "--net", "pid": "--pid"}
_LEFT_OUT = frozenset(("HOLDFAST_BEAT_SOCKET", HOST_VARIABLE, TASK_VARIABLE))


def enter(pid: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs `argv` in the container whose first process is `pid`, and its
    environment. Raises OSError where the process is gone, or `nsenter` is not installed."""
    program = shutil.which("nsenter")
    if program is None:
        raise FileNotFoundError("nsenter (util-linux) is not installed on this host")
    words = [program, f"--target={pid}"]
    words += [_OPTIONS[space] for space in _SPACES if _differs(pid, space)]
    if _differs(pid, "user"):
        words += ["--user", "--preserve-credentials"]
    elif os.geteuid() == 0:
        uid, gid = _read_user(pid)
        words += [f"--setuid={uid}", f"--setgid={gid}"]
    words += ["--root", "--wd", "--", *argv]
    return words, _read_environment(pid)


def _differs(pid: int, space: str) -> bool:
    there, here = os.stat(f"/proc/{pid}/ns/{space}"), os.stat(f"/proc/self/ns/{space}")
    return there.st_ino != here.st_ino


def _read_user(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/status") as file:
        found = {
            line.split(":")[0]: line.split()[1:] for line in file if line[:4] in ("Uid:", "Gid:")
        }
    return int(found["Uid"][1]), int(found["Gid"][1])


def _read_environment(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs if name not in _LEFT_OUT}
