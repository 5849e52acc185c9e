"""Enter a task's container: the namespaces, the root, the folder, the user and the environment of its
first process.

The engine's own `exec` is not used, because what it starts is a child of the engine: a session's
process has to be the guardian's (INSIDE-1), and to end when the session does.
"""

import sys

from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE

_LEFT_OUT = ("HOLDFAST_BEAT_SOCKET", HOST_VARIABLE, TASK_VARIABLE, "COLUMNS", "LINES")


def enter(pid: int, argv: list[str]) -> list[str]:
    """Return the command that runs `argv` in the container whose first process is `pid`, in its
    environment (ENTER-1)."""
    names = ",".join(_LEFT_OUT)
    return [sys.executable, "-I", "-m", "holdfast.work.inside", str(pid), names, "--", *argv]
