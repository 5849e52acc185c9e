"""Change the file of a user's contexts: made 0600, replaced whole, and under a lock, so that two
logins at once lose neither."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.client.contexts.file import CliContexts, find_contexts_file, read_contexts
from holdfast.errors import ValidationError
from holdfast.process.files import make_private_folder, write_atomic


def change_contexts(
    environ: Mapping[str, str], change: Callable[[CliContexts], CliContexts]
) -> CliContexts:
    """Change the contexts under a lock, and return them as they are now.

    Raises ValidationError where the file cannot be read or written, and what `change` raises; the
    file is then untouched.
    """
    path = find_contexts_file(environ)
    if path is None:
        raise ValidationError(
            "there is no folder for the contexts: set HOME or XDG_CONFIG_HOME to an absolute path"
        )
    try:
        make_private_folder(path.parent)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_contexts(environ)
        after = change(before)
        if after != before:
            data = msgspec.json.format(msgspec.json.encode(after), indent=2) + b"\n"
            write_atomic(path.resolve(), data, durable=True)
        return after
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    finally:
        os.close(lock)


def _unwritable(folder: Path, error: OSError) -> ValidationError:
    why = error.strerror or str(error)
    return ValidationError(
        f"the contexts in {folder} cannot be written: {why}. Name another folder with "
        "XDG_CONFIG_HOME"
    )
