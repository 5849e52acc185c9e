"""A part of `holdfast up`, as a process of its own: `python -m holdfast.cli.up.part_main NAME
PARENT_PID`.

It imports what it needs while the database is still starting, then reads one line of JSON from
stdin and runs. The line, not the command line, carries the database's password: anybody may read a
command line.

UP-4  A part does not outlive its `up`: it gets SIGTERM when `up` is gone, and an end of stdin
      before its line is the same news.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main(argv: list[str]) -> int:
    """Run one part; the exit status."""
    from holdfast.process.syscalls import set_parent_death_signal

    name, parent = argv[0], int(argv[1])
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        return 0
    run = {"controller": _load_controller, "agent": _load_agent}[name]()
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    return int(run(json.loads(line)))


def _load_controller() -> Any:
    import uvloop  # noqa: F401

    import holdfast.controller.server
    import holdfast.store.postgres.connection.migrate
    import holdfast.store.postgres.store  # noqa: F401
    from holdfast.cli.up.serve import run_controller

    return run_controller


def _load_agent() -> Any:
    import holdfast.agent.guardian.loop  # noqa: F401
    from holdfast.cli.up.serve import run_agent

    return run_agent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
