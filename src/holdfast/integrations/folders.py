"""Checkpoints that are folders: packed as one tar for `holdfast.checkpoint`, and unpacked again."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile

from holdfast.work import checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = str | os.PathLike[str]


def save_folder(folder: Path, step: int) -> bool:
    """Leave a folder for the next attempt of this rank; return whether it was kept.

    The tar is written beside the folder, because a temporary file system may be too small for it,
    and removed. It is not compressed, because weights hardly shrink.
    """
    if not os.environ.get("HOLDFAST_CHECKPOINT_OUT"):
        return False
    where = os.path.abspath(os.fspath(folder))
    handle, path = tempfile.mkstemp(prefix=".holdfast-", suffix=".tar", dir=os.path.dirname(where))
    os.close(handle)
    try:
        with tarfile.open(path, "w") as tar:
            tar.add(where, arcname=".")
        return checkpoint.save(path, step)
    finally:
        os.unlink(path)


def load_folder(folder: Path) -> bool:
    """Unpack an earlier attempt's folder to `folder`, whole or not at all; return whether there was
    one.

    Raises:
        OSError, tarfile.TarError: the folder is there and cannot be unpacked. To begin anew in
        silence would throw the work away.
    """
    path = checkpoint.path()
    if path is None:
        return False
    where = os.path.abspath(os.fspath(folder))
    os.makedirs(os.path.dirname(where), exist_ok=True)
    part = tempfile.mkdtemp(prefix=".holdfast-", dir=os.path.dirname(where))
    try:
        with tarfile.open(path) as tar:
            tar.extractall(part, filter="data")  # nothing outside of the folder
        shutil.rmtree(where, ignore_errors=True)
        os.rename(part, where)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return True
