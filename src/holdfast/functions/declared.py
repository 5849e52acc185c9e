"""`python -m holdfast.functions.declared MODULE:FUNCTION FD`: write a function's declaration, as JSON,
to a descriptor.

A process of its own imports the module, because the code of the user may print, exit or hang.
"""

import importlib
import os
import sys

import msgspec

from holdfast.functions.declare import TaskFunction


def main() -> int:
    """Write the `FunctionSpec` and the `workdir` of the task that argv names. Raises what its module raises."""
    module, _, path = sys.argv[1].partition(":")
    sys.path.insert(0, os.getcwd())
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, TaskFunction):
        raise TypeError(f"{sys.argv[1]} is no @holdfast.task")
    spec = msgspec.structs.replace(found.spec, function=sys.argv[1])
    os.write(int(sys.argv[2]), msgspec.json.encode((spec, found.workdir)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
