"""Run one part of `holdfast up` in a process: `python -m holdfast.cli.up.run_part NAME PARENT_PID`.

The process imports its modules while the database is still starting, then reads its options from
stdin, as one line of JSON, and runs. The options come by stdin, because they have the database's
password, and any user of the machine could read a command line.

UP-4  A part does not outlive its `up`: it gets SIGTERM when `up` is gone, and it exits if stdin
      ends before the line of options.
"""

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
    run = load(name)
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    return int(run(json.loads(line)))


def load(name: str) -> Any:
    """Import a part, and return the function that runs it."""
    from holdfast.lean import collect_nothing, import_msgspec

    with collect_nothing():
        import_msgspec()
        return {"controller": _load_controller, "agent": _load_agent}[name]()


def _load_controller() -> Any:
    import uvloop  # noqa: F401  imported early, before the fork

    import holdfast.controller.server
    import holdfast.store.postgres.connection.migrate
    import holdfast.store.postgres.store  # noqa: F401  as above
    from holdfast.cli.up.server import run_controller

    return run_controller


def _load_agent() -> Any:
    import holdfast.agent.guardian.loop  # noqa: F401  imported early, before the order comes

    return run_agent


def run_agent(options: dict[str, Any]) -> int:
    """Run the host's guardian in this process until a signal stops it; return the exit status."""
    from holdfast.agent.config import AgentConfig, run_host  # isort: skip  first, for its msgspec
    import msgspec

    from holdfast.wire.mismatch import refuse

    try:
        config = msgspec.convert(options, AgentConfig)
    except msgspec.ValidationError as error:
        where = "the agent cannot be run like this"
        raise refuse(error, options, AgentConfig, where) from error
    return run_host(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
