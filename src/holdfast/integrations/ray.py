"""Ray: beats from Ray's tasks and actors, and from a driver that waits for them.

Ray starts its workers with an environment of its own. `ray.init(runtime_env=runtime_env())` gives
them the task's line, so that `holdfast.beat()` inside a Ray task on the same host counts. Workers on
other hosts cannot reach it: there, `as_completed` beats in the driver for each result.
"""

from __future__ import annotations

import os

from holdfast.work import beat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

_NAMES = ("HOLDFAST_TASK", "HOLDFAST_BEAT_SOCKET")


def runtime_env(more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `more`, a runtime environment of Ray, with the variables that beats need in its
    `env_vars`."""
    found = dict(more or {})
    ours = {name: os.environ[name] for name in _NAMES if name in os.environ}
    found["env_vars"] = {**found.get("env_vars", {}), **ours}
    return found


def as_completed(refs: Iterable[Any]) -> Iterator[Any]:
    """Yield the refs as their tasks end, and beat for each."""
    import ray

    left = list(refs)
    total = len(left)
    while left:
        ended, left = ray.wait(left, num_returns=1)
        beat(total - len(left), total)
        yield from ended
