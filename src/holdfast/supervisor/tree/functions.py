"""Functions by name, because nothing is pickled: a file or a module, and the function in it.

    /shared/policy.py:look
    holdfast.supervisor.gather.ranks:look_at_ranks

A host loads the same file under the same path, as it does for the command of a process.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import ValidationError

_OURS = "holdfast."


def name_function(function: Callable[..., Any] | str) -> str:
    """Name a function so that another process finds it.

    Raises:
        ValidationError: the value is no function at the top of a file or module. A lambda is none,
        nor is a function inside another.
    """
    if isinstance(function, str):
        return function
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    if module is None or getattr(module, name, None) is not function:
        raise ValidationError(
            f"{function!r} cannot be named for other hosts: give a function that a file defines at "
            "its top level, or `FILE:NAME`",
            field="function",
        )
    if module.__name__.startswith(_OURS):
        return f"{module.__name__}:{name}"
    file = getattr(module, "__file__", None)
    if file is None:
        raise ValidationError(
            f"{name} was not read from a file, so other hosts cannot load it", field="function"
        )
    return f"{os.path.abspath(file)}:{name}"


def find_folders() -> list[str]:
    """Return the folders that this script imports from, beyond the packages installed with its
    Python."""
    installed = tuple(f"{prefix}{os.sep}" for prefix in (sys.prefix, sys.base_prefix))
    folders = (os.path.abspath(folder) for folder in sys.path)
    return [folder for folder in folders if not f"{folder}{os.sep}".startswith(installed)]


def add_folders(folders: list[str]) -> None:
    """Import from these folders too, after all others."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def load_function(name: str) -> Callable[..., Any]:
    """Return the function that another process named. Raises ValidationError where it is not found
    here."""
    home, _, inner = name.rpartition(":")
    try:
        module = _load_file(home) if home.endswith(".py") else importlib.import_module(home)
        found: Callable[..., Any] = getattr(module, inner)
        return found
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise ValidationError(f"{name} cannot be loaded here: {error}", field="function") from error


def _load_file(path: str) -> ModuleType:
    for known in list(sys.modules.values()):
        if getattr(known, "__file__", None) == path:
            return known
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    add_folders([str(Path(path).parent)])  # its own folder, from which a script imports, too
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
