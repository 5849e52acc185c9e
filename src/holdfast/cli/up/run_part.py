"""The process of one part of `holdfast up`: `python -m holdfast.cli.up.run_part NAME PARENT_PID`.

It imports its modules while the database is still starting, then reads its options from stdin, as
one line of JSON, and runs. The options hold the database's password, and any user of the machine
could read a command line.

UP-4  A part does not outlive its `up`: it gets SIGTERM when `up` is gone, and it exits if stdin
      ends before its line.
"""

import gc
import json
import os
import signal
import sys
from typing import Any


def main(argv: list[str]) -> int:
    """Run one part and return the exit status."""
    from holdfast.process.syscalls import set_parent_death_signal

    name, parent = argv[0], int(argv[1])
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        return 0
    gc.disable()  # what an import makes lives to the end: a collection would find nothing
    run = {"controller": _load_controller, "agent": _load_agent}[name]()
    gc.enable()
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    return int(run(json.loads(line)))


def _load_controller() -> Any:
    import uvloop  # noqa: F401  imported early, before the fork

    import holdfast.controller.server
    import holdfast.store.postgres.connection.migrate
    import holdfast.store.postgres.store  # noqa: F401  as above
    from holdfast.cli.up.server import run_controller

    return run_controller


def _load_agent() -> Any:
    import holdfast.agent.guardian.loop  # noqa: F401  imported early, before the order comes
    from holdfast.cli.up.agent import run_agent

    return run_agent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
