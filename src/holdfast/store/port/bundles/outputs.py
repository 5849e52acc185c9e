"""Outputs: a row for each rank of an attempt that left some (core.data.outputs)."""

from typing import Protocol

import msgspec

from holdfast.core.data.outputs import LeftOut, OutputsRecord
from holdfast.core.ids import TaskKey
from holdfast.core.states import OutputsEvent, OutputsState
from holdfast.store.port.clock import Now


class OutputsTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose outputs a host may send. wanted: its job asks for outputs."""

    attempt: int
    project: str
    wanted: bool


class NewOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """A host's word on the outputs of a task. digest: the bundle; "" where nothing is kept."""

    event: OutputsEvent
    digest: str = ""
    files: int = 0
    bytes: int = 0
    left_out: list[LeftOut] = []
    left_more: int = 0
    reason: str = ""


class OutputsPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of an attempt that began. ended: the attempt is over. gone: its host is, too."""

    attempt: int
    rank: int
    host: str
    ended: bool
    gone: bool


class OutputsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What a report came to. plans: blobs of earlier rounds that nothing names any more."""

    state: OutputsState
    plans: tuple[str, ...] = ()


class OutputStore(Protocol):
    """The outputs of attempts."""

    async def find_outputs_task(
        self, host_id: str, incarnation: str, key: TaskKey, attempt: int
    ) -> OutputsTask:
        """Return the task whose outputs a host sends. Raises Stale where the rank of that attempt
        is not this host's."""

    async def put_outputs(
        self, host_id: str, task: OutputsTask, key: TaskKey, new: NewOutputs, *, now: Now = None
    ) -> OutputsWritten:
        """Write a host's word on outputs, by the table of their states. A report that comes late
        changes nothing."""

    async def list_outputs(
        self,
        job_id: str,
        *,
        lost_seconds: float,
        attempt: int | None = None,
        rank: int | None = None,
        now: Now = None,
    ) -> list[OutputsRecord]:
        """Return the outputs of a job's attempts that began, by attempt and rank. One of which
        nothing came yet is collecting; or lost, where its attempt is over and its host is gone, or
        has been silent for `lost_seconds`."""

    async def settle_outputs(self, lost_seconds: float, *, now: Now = None) -> list[str]:
        """Settle the outputs that hosts which are gone have still to send. Return their jobs."""

    async def expire_outputs(self, keep_seconds: float, *, now: Now = None) -> int:
        """Let go of the bundles of outputs that are as old; return how many. Rows of jobs that were
        pruned are deleted."""
