"""Make the Python environments of tasks: plan how `holdfast.work.making` makes one, on the host or in
a container, and read when it was ready, or why it failed.

The program is a zip of that room, so that it needs no package of the Python that runs it, which can
then be isolated."""

import hashlib
import io
import json
import shlex
import sys
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec

from holdfast.agent.folders import make_folder
from holdfast.agent.tasks.task import AgentTask
from holdfast.errors import ValidationError
from holdfast.process.files import write_atomic
from holdfast.wire.agent import LaunchOrder
from holdfast.work import making

SETUP_FOLDER, PLAN_FILE, FAILED_FILE, MADE_FILE = "setup", "plan.json", "failed", "made"
CODE_FILE, PROGRAM_FILE = "code", "holdfast-making.zip"
_ROOM, _START = (
    "holdfast/work/making",
    "import sys\nfrom {0}.program import main\nsys.exit(main(sys.argv[1:]))\n",
)
_NO_PYTHON = "its image has no python3, which makes the environment of --setup"


def wrap_command(task: AgentTask, order: LaunchOrder, root: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that makes the Python environment of an order and then becomes the order's
    program; the program's own command where the order asks for no environment. Raises OSError."""
    if not order.makes_environment:
        return list(argv)
    plan, program = _write_plan(task, order, root)
    return [sys.executable, "-I", str(program), str(plan), "--", *argv]


def wrap_box(task: AgentTask, order: LaunchOrder, root: Path, argv: Sequence[str]) -> LaunchOrder:
    """Return the order of a task in a container with a shell line that makes its environment inside
    and then becomes its program, by a Python of the image; unchanged where it asks for none. The
    environments of its project are mounted at the path that they have outside. Raises OSError,
    ValidationError."""
    if not order.makes_environment:
        return order
    plan, program = _write_plan(task, order, root)
    folder = plan.parent
    inside = shlex.join([str(program), str(plan), "--", *argv])
    failed = shlex.join(["echo", _NO_PYTHON])
    line = (
        "for python in python3 python; do "
        f"command -v $python >/dev/null 2>&1 && exec $python -I {inside}; done; "
        f"{failed} >&2; {failed} >{shlex.quote(str(folder / FAILED_FILE))}; exit 1"
    )
    mounted = [str(folder), str(_find_root(order, root))]
    if odd := [path for path in mounted if ":" in path]:
        raise ValidationError(f"--setup in a container needs a state folder without ':': {odd[0]}")
    volumes = [*order.volumes, *(f"{path}:{path}" for path in mounted)]
    return msgspec.structs.replace(order, shell=line, argv=[], volumes=volumes)


def _find_root(order: LaunchOrder, root: Path) -> Path:
    return root / hashlib.sha256(order.project.encode()).hexdigest()[:16]


def write_code(task: AgentTask, paths: Iterable[bytes]) -> None:
    """Note which paths below a task's folder are its job's code. Raises OSError."""
    folder = task.folder / SETUP_FOLDER
    make_folder(str(folder))
    write_atomic(folder / CODE_FILE, b"\0".join(paths))


@cache
def _pack_program() -> bytes:
    """Return the zip of the program that makes environments."""
    room = Path(making.__file__).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        for above in ("holdfast", "holdfast/work"):
            zipped.writestr(f"{above}/__init__.py", "")
        for path in sorted(room.glob("*.py")):
            zipped.writestr(f"{_ROOM}/{path.name}", path.read_bytes())
        zipped.writestr("__main__.py", _START.format(_ROOM.replace("/", ".")))
    return packed.getvalue()


def _write_plan(task: AgentTask, order: LaunchOrder, root: Path) -> tuple[Path, Path]:
    """Write the plan and the program of a task's environment; return their paths. Raises
    OSError."""
    place, folder = _find_root(order, root), task.folder / SETUP_FOLDER
    make_folder(str(place))
    make_folder(str(folder))
    code = folder / CODE_FILE
    if order.cwd is None and not code.exists():
        write_atomic(code, b"")
    plan = {
        "root": str(place),
        "setup": order.setup or "",
        "files": list(order.setup_files),
        "python": order.python or "",
        "image": order.image or "",
        "given": sorted({**order.env, **order.secrets}),
        "code": "" if order.cwd is not None else str(code),
        "seconds": order.setup_seconds,
        "failed": str(folder / FAILED_FILE),
        "made": str(folder / MADE_FILE),
    }
    path, program = folder / PLAN_FILE, folder / PROGRAM_FILE
    write_atomic(path, json.dumps(plan).encode())
    write_atomic(program, _pack_program())
    return path, program


def read_made(task: AgentTask) -> float | None:
    """Return when a task's environment was ready and its program began (CLOCK_BOOTTIME); None
    before that."""
    try:
        return float((task.folder / SETUP_FOLDER / MADE_FILE).read_text())
    except (OSError, ValueError):
        return None


def read_failure(task: AgentTask) -> str | None:
    """Return why a task's Python environment could not be made; None where it was made."""
    try:
        return (task.folder / SETUP_FOLDER / FAILED_FILE).read_text(errors="replace")[:4096] or None
    except OSError:
        return None
