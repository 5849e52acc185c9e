"""A real `holdfast server` that sends itself a signal at one step of the fleet's work:

python stopping_server.py SIGNAL "before|after METHOD" server …
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from holdfast.cli.main import main
from holdfast.providers.local import LocalProvider
from holdfast.store.postgres.fleet.instances import PostgresFleet


def stop_at(number: int, step: str) -> None:
    """Have the first call of the method be stopped, before or after what it does."""
    when, name = step.split()
    owner: Any = LocalProvider if hasattr(LocalProvider, name) else PostgresFleet
    inner = getattr(owner, name)
    signals = [number]

    @functools.wraps(inner)
    async def call(*args: Any, **named: Any) -> Any:
        if when == "before" and signals:
            os.kill(os.getpid(), signals.pop())
        found = await inner(*args, **named)
        if when == "after" and signals:
            os.kill(os.getpid(), signals.pop())
        return found

    setattr(owner, name, call)


if __name__ == "__main__":
    stop_at(int(sys.argv[1]), sys.argv[2])
    sys.argv[1:] = sys.argv[3:]
    sys.exit(main())
