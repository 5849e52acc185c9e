"""Find the caches and mounts of a task that starts, and say where the task finds them."""

from dataclasses import dataclass

from holdfast.agent.data.caches import HostCaches
from holdfast.agent.data.mounts import HostMounts
from holdfast.core.data.named import Kind, name_variable, read_folder
from holdfast.errors import ValidationError
from holdfast.wire.agent import LaunchOrder


@dataclass(frozen=True)
class TaskFolders:
    """The named folders of one task. variables: the variables by which the task finds its folders.
    volumes: as in JobSpec, for a task in a container."""

    variables: dict[str, str]
    volumes: list[str]


@dataclass(frozen=True)
class NamedFolders:
    """The caches and mounts of this host."""

    caches: HostCaches
    mounts: HostMounts

    def open_mounts(self, order: LaunchOrder) -> None:
        """Make the mounts that an order names. Call this in a thread, because the program of a
        bucket may take seconds. Raises OSError, ValidationError."""
        for word in order.mounts:
            self.mounts.open(read_folder("mount", word).name)

    def open(self, order: LaunchOrder) -> TaskFolders:
        """Open the caches and mounts that an order names, so that its task can use them. Raises
        OSError, ValidationError."""
        found = TaskFolders({}, [])
        for word in order.caches:
            cache = read_folder("cache", word)
            path = self.caches.open(order.project, cache.name)
            _add(found, "cache", cache.name, path, cache.inside, "rw")
        for word in order.mounts:
            mount = read_folder("mount", word)
            path, mode = self.mounts.open(mount.name)
            _add(found, "mount", mount.name, path, mount.inside, mode)
        return found


def _add(found: TaskFolders, kind: Kind, name: str, path: str, inside: str, mode: str) -> None:
    if ":" in path:
        raise ValidationError(f"the folder {path!r} of {kind} {name} has a ':' in its path")
    found.variables[name_variable(kind, name)] = inside or path
    found.volumes.append(f"{path}:{inside or path}:{mode}")
