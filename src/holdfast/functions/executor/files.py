"""The files of an app, as they were when this executor imported them.

CODE-1  A call runs the code as it is when the call is handed out: an executor that imported another
        version of a file of its app's folder is replaced before its next batch. A file counts as
        another version where its time, its size or its inode differs.
CODE-2  No bytecode is read or written for a file of that folder that was changed in the second of
        its compilation, or recently, because the check of bytecode compares whole seconds and
        sizes.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import time
import traceback
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

YOUNG_SECONDS = 2.0
FAILED_SECONDS = 5.0
"""How long a failed import is reported to calls. After that another executor tries anew, because
the missing part may have been installed outside the app's folder."""
_GRAIN_SECONDS = 0.01
"""The resolution of a file system's times."""

State = tuple[int, int, int]
_NONE: State = (0, 0, 0)
_CHANGED: State = (-1, -1, -1)


class AppFiles:
    """Files by path, with their state at their import. folder: the app's folder, "" without one."""

    def __init__(self, folder: str) -> None:
        self._folders = {f"{path.rstrip('/')}/" for path in (folder, os.path.realpath(folder))}
        self._folder = folder
        self._files: dict[str, State] = {}
        self._modules = 0
        self._failed_at: float | None = None

    def note_imports(self, since: float) -> None:
        """Note the files of modules that were imported after `since`, a time of the wall clock."""
        if len(sys.modules) == self._modules:
            return
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self._files and self.is_own(file):
                self._files[file] = _read_imported(file, since)
        self._modules = len(sys.modules)

    def note_failure(self, error: BaseException) -> None:
        """Note the files that an import failed in, and the folder, where a file may be missing."""
        self._failed_at = self._failed_at or time.monotonic()
        files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        if isinstance(error, SyntaxError) and error.filename is not None:
            files.add(error.filename)
        files = {file for file in files if self.is_own(file)}
        for file in (*files, self._folder, *(os.path.dirname(file) for file in files)):
            self._files.setdefault(file, read_state(file))

    def forget_failure(self) -> None:
        """Forget the noted failure, because a function was found all the same."""
        self._failed_at = None

    def changed(self) -> bool:
        """Return whether a noted file has changed by now, or an import failed a while ago."""
        old = self._failed_at is not None and time.monotonic() - self._failed_at > FAILED_SECONDS
        return old or any(read_state(file) != before for file, before in self._files.items())

    def is_own(self, file: str) -> bool:
        """Return whether a file belongs to the app's folder, and to no package that is installed
        there."""
        inside = bool(self._folder) and file.startswith(tuple(self._folders))
        return inside and "/site-packages/" not in file


def read_state(file: str) -> State:
    """Return the values of a file's state by which two versions of the file are told apart."""
    try:
        found = os.stat(file)
    except OSError:
        return _NONE
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_imported(file: str, since: float) -> State:
    """Return a file's state at its import. A file that changed since the import began gets a state
    that no later reading equals, because the imported version is unknown."""
    state = read_state(file)
    changed_at = state[0] / 1e9
    return _CHANGED if since - _GRAIN_SECONDS <= changed_at <= time.time() else state


class _AppLoader(SourceFileLoader):
    """Loads a module of the app's folder (CODE-2)."""

    def get_data(self, path: str) -> bytes:
        if path.endswith(".pyc"):
            source = os.stat(importlib.util.source_from_cache(path)).st_mtime
            if int(source) >= int(os.stat(path).st_mtime):
                raise OSError(f"{path} may be of another version")
        return super().get_data(path)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        with contextlib.suppress(OSError):
            source = os.stat(importlib.util.source_from_cache(path)).st_mtime
            if not 0 <= time.time() - source < YOUNG_SECONDS:
                super().set_data(path, data, _mode=_mode)


def find_modules_of(folder: str) -> None:
    """Have Python search an app's folder first for modules, and load them as they are now."""
    details = (
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_AppLoader, SOURCE_SUFFIXES),
        (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
    )
    own, inside = Path(folder), f"{folder.rstrip('/')}/"

    def hook(path: str) -> FileFinder:
        if (path != str(own) and not path.startswith(inside)) or "/site-packages" in path:
            raise ImportError(f"{path} is no folder of the app")
        if not os.path.isdir(path):
            raise ImportError(f"{path} is no folder")
        return FileFinder(path, *details)

    sys.path_hooks.insert(0, hook)
    sys.path.insert(0, folder)
