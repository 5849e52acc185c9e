"""One rank of a supervised job: `python -m holdfast.supervisor.member GPUS METRICS COMMAND...`.

GPUS: the number of this rank's GPUs. METRICS: the address at which the script's `Context()` serves
metrics, or an empty word. COMMAND: the script, which rank 0 runs. No person writes these words
(`holdfast supervise` does), so they are read without click, which would cost every rank 30 ms.
"""

import os
import sys
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.lean import import_msgspec


def main(gpus: int, metrics: str, command: Sequence[str]) -> int:
    """Run a host manager, and in rank 0 the script too, until the rank has ended."""
    import_msgspec()
    from holdfast.supervisor.member.member import clean_environment, make_manager, read_member

    member = read_member(os.environ)
    environ = clean_environment(os.environ, gpus)
    if member.rank == 0:
        from holdfast.supervisor.member.first_rank import run_first_rank

        return run_first_rank(member, command, environ, gpus=gpus, metrics=metrics)
    from holdfast.supervisor.host.host_manager import run_host_manager

    os.environ.clear()
    os.environ.update(environ)
    return run_host_manager(make_manager(member, gpus, key=member.make_keys().for_managers()))


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except HoldfastError as error:
        sys.exit(f"holdfast: {error}")
