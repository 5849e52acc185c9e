"""`checkpoint.save` and `checkpoint.load`: data that one attempt leaves for the next.

A save is a file in the agent's folder `HOLDFAST_CHECKPOINT_OUT`: written under a name that begins
with a dot, flushed to the disk, then renamed to `checkpoint` or `checkpoint.<step>`. A datagram
tells the agent (`wire.beat`), which uploads the newest in the background. A lost datagram loses
nothing, because the agent also looks by itself, and at the end.

Any language can do the same; `holdfast checkpoint save FILE` does it for a shell.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from holdfast.work.line import Line

TYPE_CHECKING = False  # as in `beats`
if TYPE_CHECKING:
    from typing import SupportsIndex

    Data = bytes | bytearray | memoryview
    Path = str | os.PathLike[str]

NAME = "checkpoint"
PATIENCE_SECONDS = 0.05
_COPY_BYTES = 1 << 20
_said = False


def save(
    data: Data | Path, step: SupportsIndex | None = None, *, local: Path | None = None
) -> bool:
    """Leave `data`, bytes or a file's path, for the next attempt of this rank; return whether it
    was kept.

    step: how far the work is; shown, and returned to the next attempt. The file is copied, so it
    may change afterwards. local: the file that keeps the data outside Holdfast (whole or not at
    all); without it nothing is kept there.

    Returns when the bytes are on this machine's disk; the agent uploads them meanwhile, and a newer
    save replaces one that is not uploaded yet. Never raises for the disk or the agent: a failure is
    reported on stderr, once.

    Raises:
        TypeError: `data` is neither bytes nor a path, or `step` no whole number.
    """
    if not isinstance(data, (bytes, bytearray, memoryview, str, os.PathLike)):
        raise TypeError(f"a checkpoint is bytes or the path of a file, not {type(data).__name__}")
    number = None if step is None else step.__index__()
    folder = os.environ.get("HOLDFAST_CHECKPOINT_OUT")
    try:
        if folder:
            name = NAME if number is None or number < 0 else f"{NAME}.{number}"
            began = monotonic()
            _write(data, folder, name)
            _remove_older(folder, name)
            _tell(monotonic() - began)
            return True
        if local is not None:
            where = os.path.abspath(os.fspath(local))
            _write(data, os.path.dirname(where), os.path.basename(where))
            return True
    except OSError as error:
        _complain(error)
        _note_failure(error)
    return False


def load(*, local: Path | None = None) -> bytes | None:
    """Return the checkpoint of an earlier attempt; None in the first, or where none was left.

    local: the file in which `save` kept the data outside Holdfast.

    Raises:
        OSError: the checkpoint is there and cannot be read. To begin anew in silence would throw
        the work away.
    """
    where = path(local=local)
    if where is None:
        return None
    with open(where, "rb") as file:
        return file.read()


def path(*, local: Path | None = None) -> str | None:
    """Return the file that `load` reads. The file stays for as long as the task runs; copy it to
    keep it longer."""
    if os.environ.get("HOLDFAST_TASK"):
        return os.environ.get("HOLDFAST_CHECKPOINT") or None
    if local is not None and os.path.exists(local):
        return os.fspath(local)
    return None


def step() -> int | None:
    """Return the step of the loaded checkpoint, as it was given to `save`, or None."""
    text = os.environ.get("HOLDFAST_CHECKPOINT_STEP", "")
    return int(text) if text.isdigit() else None


def _write(data: Data | Path, folder: str, name: str) -> None:
    """Put `data` at `folder`/`name`, whole or not at all, and on the disk. Raises OSError."""
    import threading

    part = os.path.join(folder, f".{name}.{os.getpid()}.{threading.get_ident()}")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as target:
            if isinstance(data, (bytes, bytearray, memoryview)):
                _write_all(fd, memoryview(data).cast("B"))
            else:
                with open(data, "rb", buffering=0) as source:
                    while piece := source.read(_COPY_BYTES):
                        _write_all(fd, memoryview(piece))
            os.fsync(target)
        os.rename(part, os.path.join(folder, name))
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def _remove_older(folder: str, name: str) -> None:
    """Remove older checkpoints, which would fill the disk while no agent uploads them."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name != name and entry.name.split(".")[0] == NAME:
                try:
                    os.unlink(entry.path)
                except OSError:
                    pass  # the agent was quicker


def _note_failure(error: OSError) -> None:
    """Note for the attempt's reason that the save of its stop failed."""
    from holdfast.work.save_note import SaveNote
    from holdfast.work.stop_word import stopping

    if stopping(0) is not None:
        SaveNote().write(f"checkpoint.save: {error}")


def _tell(took: float) -> None:
    task, address = os.environ.get("HOLDFAST_TASK"), os.environ.get("HOLDFAST_BEAT_SOCKET")
    if task and address:
        from json import dumps

        line = Line(address)
        said = {"task": task, "checkpoint": True, "took": round(took, 3)}
        line.send_patiently(dumps(said).encode(), PATIENCE_SECONDS)
        line.close()


def _complain(error: OSError) -> None:
    global _said
    if not _said:
        _said = True
        try:
            text = "holdfast: a checkpoint could not be kept, and the work goes on without"
            print(f"{text}: {error}", file=sys.stderr)
        except (OSError, ValueError):
            pass
