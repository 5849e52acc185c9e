"""Settings of the cluster, its queues and its projects, and the operators' rules."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.core.records import ProjectRecord, QueueRecord
from holdfast.core.settings.resolve import Value
from holdfast.moves.values import SettingsLayers
from holdfast.store.port.clock import Now


class SettingsStore(Protocol):
    """Every layer of settings on record.

    A write merges `changes` into the layer and drops the names in `unset`. Where that changed
    anything, it increments the revision and writes an event. A bad value raises ValidationError.
    """

    async def read_settings(self) -> SettingsLayers:
        """Return every layer, from one revision or newer."""

    async def write_cluster_settings(
        self, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> int:
        """Change the cluster's settings and return the revision. Event settings.changed."""

    async def write_rules(self, text: str, *, now: Now = None) -> int:
        """Replace the operators' rules (checked by the caller) and return the revision. Event
        settings.changed."""

    async def list_projects(self) -> list[ProjectRecord]:
        """Return, by name, projects with settings of their own and projects of unfinished jobs."""

    async def get_project(self, name: str) -> ProjectRecord:
        """Return a project; a name that was never used is an empty project."""

    async def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> ProjectRecord:
        """Create or change a project. Event project.changed."""

    async def delete_project(self, name: str, *, now: Now = None) -> None:
        """Forget a project's settings. Raises NotFound where it has none, Conflict while unfinished
        jobs are in it."""

    async def list_queues(self) -> list[QueueRecord]:
        """Return every queue, by name."""

    async def get_queue(self, name: str) -> QueueRecord:
        """Return a queue. Raises NotFound."""

    async def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> QueueRecord:
        """Create or change a queue."""

    async def delete_queue(self, name: str, *, now: Now = None) -> None:
        """Delete a queue. Raises NotFound, Conflict while unfinished jobs are in it."""

    async def pause_queue(
        self, name: str, reason: str, *, hard: bool, now: Now = None
    ) -> list[str]:
        """Stop new starts from the queue; `hard` also drains its running jobs (cause preempted,
        operator stop). Returns the jobs that began to drain. Raises NotFound."""

    async def resume_queue(self, name: str, *, now: Now = None) -> None:
        """Allow new starts again. Raises NotFound."""
