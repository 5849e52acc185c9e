"""Make the Python environments of tasks: plan how `holdfast.work.setup` makes one, and read why it
failed."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.agent.tasks import AgentTask
from holdfast.process.files import write_atomic
from holdfast.wire.agent import LaunchOrder

PLAN_FILE, FAILED_FILE = "setup.json", "setup.failed"


def wrap_command(task: AgentTask, order: LaunchOrder, root: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that makes the Python environment of an order and then becomes the order's
    program; the program's own command where the order asks for no environment. Raises OSError."""
    if order.setup is None and order.python is None:
        return list(argv)
    project = hashlib.sha256(order.project.encode()).hexdigest()[:16]
    plan = {
        "root": str(root / project),
        "setup": order.setup or "",
        "files": list(order.setup_files),
        "python": order.python or "",
        "failed": str(task.folder / FAILED_FILE),
    }
    path = task.folder / PLAN_FILE
    write_atomic(path, json.dumps(plan).encode())
    return [sys.executable, "-P", "-m", "holdfast.work.setup", str(path), "--", *argv]


def read_failure(task: AgentTask) -> str | None:
    """Return why a task's Python environment could not be made; None where it was made."""
    try:
        return (task.folder / FAILED_FILE).read_text(errors="replace")[:4096] or None
    except OSError:
        return None
