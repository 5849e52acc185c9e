"""The stacks of a process and its children: by py-spy, or by gdb where there is none."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOOL_SECONDS = 20.0
TOOLS = ("py-spy", "gdb")
STATES = {
    "T": "is stopped by a signal (SIGSTOP, or a terminal)",
    "D": "is in the kernel and cannot be interrupted: a disk, a network file system or a driver",
    "Z": "has ended",
}
_BELOW_NAMES = re.compile(r"^(__|_?PyEval|_?PyObject|_PyFunction|\?\?|clone|start_thread)")


def run_tool(*words: str) -> str | None:
    """Return a tool's output, or None if it is missing, fails, or takes too long."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None


def find_py_spy() -> str:
    """Find py-spy beside this interpreter or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def read_state(pid: int) -> str:
    """Read the kernel's letter for the process's state; "" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def find_stacks(pid: int, state: str, tools: Sequence[str] = TOOLS) -> str | None:
    """Return the stacks of a process and its children, without the parts that differ between
    ranks."""
    if "py-spy" in tools:
        freely = ["--nonblocking"] if state == "T" else []  # py-spy cannot stop a stopped process
        stacks = run_tool(find_py_spy(), "dump", "--pid", str(pid), "--subprocesses", *freely)
        if stacks is not None:
            return strip_py_spy(stacks)
    if "gdb" not in tools or state == "T":  # gdb would wait for a stopped process to go on
        return None
    stacks = run_tool("gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12")
    return strip_gdb(stacks) if stacks is not None else None


def strip_py_spy(stacks: str) -> str:
    """Remove pids and thread numbers from py-spy's output."""
    stacks = re.sub(r"^Process \d+: .*?^Python v[^\n]*\n", "Process", stacks, flags=re.M | re.S)
    return re.sub(r"^(\s*Thread) (0x[0-9A-Fa-f]+|\d+)", r"\1", stacks, flags=re.M).strip()


def strip_gdb(stacks: str) -> str:
    """Remove addresses, numbers, and gdb's own messages before the stacks."""
    threads = re.search(r"^Thread .*?(?=^\[Inferior|\Z)", stacks, flags=re.M | re.S)
    words = threads.group() if threads else stacks
    return re.sub(r"0x[0-9a-f]+|LWP \d+|\b\d{3,}\b", "…", words).strip()


def find_place(stacks: str) -> str | None:
    """Find where the main thread is, in one line: its innermost function."""
    main = re.search(r'^\s*Thread [^\n]*"MainThread"[^\n]*\n\s+([^\n]+)', stacks, flags=re.M)
    first = main or re.search(r"^\s*Thread \([^\n]*\)[^\n]*\n\s+([^\n#]+)", stacks, flags=re.M)
    if first:
        return first.group(1).strip()
    last_thread = stacks.rpartition("Thread 1 ")[2]  # gdb prints the main thread last
    names = re.findall(r"^#\d+\s+(?:… in )?(\S+) \(", last_thread, flags=re.M)
    inner = [name for name in names if not _BELOW_NAMES.match(name)]
    return " in ".join((inner or names)[:2]) or None
