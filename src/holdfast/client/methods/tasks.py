"""Files and ports of running tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.client.scripts import Caller, Script, UseCaller, runs

if TYPE_CHECKING:
    from holdfast.client.data.copy import Copier, CopyProgress
    from holdfast.client.sessions.forward import PortForward


def _ignore(sentence: str) -> None:
    """Do nothing with a sentence."""


class TaskMethods:
    """The client's methods that reach into a running task; the asyncio client waits in a thread."""

    @runs
    def copy_from(
        self, job_id: str, paths: Sequence[str], to: str, *, rank: int = 0
    ) -> Script[CopyProgress]:
        """Copy files and folders of a running task below `to`, as `holdfast cp JOB:PATH… TO` does.
        Raises HoldfastError, OSError; the same call then goes on."""
        done: CopyProgress = yield UseCaller(
            lambda caller: _make_copier(caller, job_id, rank, paths).fetch(paths, to)
        )
        return done

    @runs
    def copy_to(
        self, job_id: str, paths: Sequence[str], to: str = "", *, rank: int = 0
    ) -> Script[CopyProgress]:
        """Copy files and folders of this machine to a running task, as `holdfast cp PATH… JOB:TO`
        does. Raises HoldfastError, OSError; the same call then goes on."""
        done: CopyProgress = yield UseCaller(
            lambda caller: _make_copier(caller, job_id, rank, paths).send(paths, to)
        )
        return done

    @runs
    def forward_port(
        self,
        job_id: str,
        port: int,
        *,
        local_port: int | None = 0,
        address: str = "127.0.0.1",
        rank: int = 0,
        on_refused: Callable[[str], None] = _ignore,
        on_notice: Callable[[str], None] = _ignore,
    ) -> Script[PortForward]:
        """Listen here, and carry each connection to a port on which a process of a running task
        listens, until the forward is closed or the job ends.

        local_port: the port here; 0 for any free one, None for the same number. on_refused: called
        with a sentence for each connection that could not be made; on_notice: with one for the
        user. Raises OSError where the port here is taken.
        """
        from holdfast.client.sessions.forward import PortForward

        forward: PortForward = yield UseCaller(
            lambda caller: PortForward(
                caller.place,
                job_id,
                port,
                local_port=local_port,
                address=address,
                rank=rank,
                on_refused=on_refused,
                on_notice=on_notice,
            )
        )
        return forward


def _make_copier(caller: Caller, job_id: str, rank: int, paths: Sequence[str]) -> Copier:
    from holdfast.client.data.copy import Copier
    from holdfast.client.data.session_pipe import CopySessions

    return Copier(CopySessions(caller, job_id, rank, ["cp", *paths]).open)
