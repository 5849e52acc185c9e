"""Hold the settings of a guardian."""

from pathlib import Path

import msgspec


class GuardianConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a guardian.

    state_dir: the guardian's own folder, made 0700. host_id: the mark that its processes carry,
    unique to this host and cluster. agent_argv: the agent's command. frozen_seconds: the silence
    after which the agent is replaced. agent_backoff_seconds: the first and the longest wait before
    an agent that keeps dying is started again. kill_limit_seconds: the time after SIGKILL after
    which a process counts as unkillable. use_groups: True to make control groups if possible.
    die_with_parent: True to shut down when the process that started the guardian dies.
    """

    state_dir: Path
    host_id: str
    agent_argv: list[str]
    frozen_seconds: float = 20.0
    agent_backoff_seconds: tuple[float, float] = (0.2, 10.0)
    kill_limit_seconds: float = 10.0
    use_groups: bool = True
    die_with_parent: bool = False
