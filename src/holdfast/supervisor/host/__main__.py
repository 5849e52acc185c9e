"""The host manager of rank 0's machine: `python -m holdfast.supervisor.host CONFIG`, where CONFIG is
a `ManagerConfig` as JSON. The run's keys come by the environment, which other users cannot read.
"""

import os
import sys

from holdfast.errors import HoldfastError
from holdfast.lean import import_msgspec


def main(config: str) -> int:
    """Run the host manager until an order to end; return the exit code."""
    import_msgspec()
    import msgspec

    from holdfast.supervisor.host.config import ManagerConfig
    from holdfast.supervisor.host.host_manager import run_host_manager
    from holdfast.supervisor.line.keys import KEY_VARIABLE, parse_manager_key

    key = parse_manager_key(os.environ[KEY_VARIABLE])
    given = msgspec.json.decode(config, type=ManagerConfig)
    return run_host_manager(msgspec.structs.replace(given, key=key))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except HoldfastError as error:
        sys.exit(f"holdfast: {error}")
