"""Make control groups with a memory limit, for tasks and for sessions."""

from holdfast.process.groups import GroupHome, TaskGroup
from holdfast.process.loop import Mishaps


def make_limited_group(
    home: GroupHome | None, memory_bytes: int, mishaps: Mishaps
) -> TaskGroup | None:
    """Return a new group, limited where `memory_bytes` is not 0 and limits work; None where no group
    can be made."""
    if home is None:
        return None
    try:
        group = home.make_group()
    except OSError as error:
        mishaps.say_once(f"no control group could be made: {error}")
        return None
    if memory_bytes and home.memory:
        try:
            group.set_limit(memory_bytes)
        except OSError as error:
            mishaps.say_once(f"a memory limit was refused, so the agent watches over it: {error}")
    return group
