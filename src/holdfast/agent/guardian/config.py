"""How a guardian is to run."""

from pathlib import Path

import msgspec


class GuardianConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to run.

    state_dir: the guardian's own folder, made 0700. host_id: the mark its processes carry; unique
    to this host and cluster. agent_argv: the agent's command. frozen_seconds: silence after which
    it is replaced. agent_backoff_seconds: the first and the longest wait before an agent that keeps
    dying is started again. kill_limit_seconds: after which what survives SIGKILL is given up as
    unkillable. use_groups: make control groups where possible. die_with_parent: shut down when the
    starter dies.
    """

    state_dir: Path
    host_id: str
    agent_argv: list[str]
    frozen_seconds: float = 20.0
    agent_backoff_seconds: tuple[float, float] = (0.2, 10.0)
    kill_limit_seconds: float = 10.0
    use_groups: bool = True
    die_with_parent: bool = False
