"""All operations, found in the modules of this room."""

import importlib
import pkgutil

from holdfast.wire import operations
from holdfast.wire.operations.operation import Operation


def list_operations() -> dict[str, Operation]:
    """Return every operation by its module and its name, as `pools.GET_POOL`."""
    modules = pkgutil.walk_packages(operations.__path__, f"{operations.__name__}.")
    return {
        f"{module.rpartition('.')[2]}.{name}": found
        for _, module, _ in modules
        if module != __name__
        for name, found in vars(importlib.import_module(module)).items()
        if isinstance(found, Operation)
    }
