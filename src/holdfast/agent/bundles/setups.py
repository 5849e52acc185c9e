"""Make the Python environments of tasks: plan how `holdfast.work.setup` makes one, on the host or in
a container, and read why it failed."""

import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from holdfast.agent.folders import make_folder
from holdfast.agent.tasks import AgentTask
from holdfast.errors import ValidationError
from holdfast.process.files import write_atomic
from holdfast.wire.agent import LaunchOrder

PROGRAM = "holdfast.work.setup"
SETUP_FOLDER, PLAN_FILE, FAILED_FILE = "setup", "plan.json", "failed"
_NO_PYTHON = "its image has no python3, which makes the environment of --setup"


def wrap_command(task: AgentTask, order: LaunchOrder, root: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that makes the Python environment of an order and then becomes the order's
    program; the program's own command where the order asks for no environment. Raises OSError."""
    if not order.makes_environment:
        return list(argv)
    plan = _write_plan(task, order, root)
    return [sys.executable, "-P", "-m", PROGRAM, str(plan), "--", *argv]


def wrap_box(task: AgentTask, order: LaunchOrder, root: Path, argv: Sequence[str]) -> LaunchOrder:
    """Return the order of a task in a container with a shell line that makes its environment inside
    and then becomes its program, by a Python of the image; unchanged where it asks for none. The
    environments of its project are mounted at the path that they have outside. Raises OSError,
    ValidationError."""
    if not order.makes_environment:
        return order
    plan = _write_plan(task, order, root)
    folder, program = plan.parent, plan.parent / "setup.py"
    found = find_spec(PROGRAM)
    assert found is not None
    assert found.origin is not None
    write_atomic(program, Path(found.origin).read_bytes())
    inside = shlex.join([str(program), str(plan), "--", *argv])
    failed = shlex.join(["echo", _NO_PYTHON])
    line = (
        "for python in python3 python; do "
        f"command -v $python >/dev/null 2>&1 && exec $python {inside}; done; "
        f"{failed} >&2; {failed} >{shlex.quote(str(folder / FAILED_FILE))}; exit 1"
    )
    mounted = [str(folder), str(_find_root(order, root))]
    if odd := [path for path in mounted if ":" in path]:
        raise ValidationError(f"--setup in a container needs a state folder without ':': {odd[0]}")
    volumes = [*order.volumes, *(f"{path}:{path}" for path in mounted)]
    return msgspec.structs.replace(order, shell=line, argv=[], volumes=volumes)


def _find_root(order: LaunchOrder, root: Path) -> Path:
    return root / hashlib.sha256(order.project.encode()).hexdigest()[:16]


def _write_plan(task: AgentTask, order: LaunchOrder, root: Path) -> Path:
    place, folder = _find_root(order, root), task.folder / SETUP_FOLDER
    make_folder(str(place))
    make_folder(str(folder))
    plan = {
        "root": str(place),
        "setup": order.setup or "",
        "files": list(order.setup_files),
        "python": order.python or "",
        "image": order.image or "",
        "failed": str(folder / FAILED_FILE),
    }
    path = folder / PLAN_FILE
    write_atomic(path, json.dumps(plan).encode())
    return path


def read_failure(task: AgentTask) -> str | None:
    """Return why a task's Python environment could not be made; None where it was made."""
    try:
        return (task.folder / SETUP_FOLDER / FAILED_FILE).read_text(errors="replace")[:4096] or None
    except OSError:
        return None
