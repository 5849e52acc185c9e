"""Arrays and sweeps: one submission, many jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.late import on_arrays
from holdfast.client.rest import PageCall, RestCall, ask
from holdfast.client.scripts import gives_each, gives_one
from holdfast.client.specs import keyed, merge_spec
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.spec import JobSpec


class ArrayMethods:
    """Arrays and sweeps."""

    @gives_one
    def submit_array(
        self, array: str, /, spec: JobSpec | None = None, **fields: Any
    ) -> RestCall[ArrayRecord]:
        """Submit a job many times, once for each index of `array`, as "0-999%50".

        Each member has HOLDFAST_ARRAY_INDEX, HOLDFAST_ARRAY_ID and HOLDFAST_ARRAY_SIZE. Spec and
        fields are those of `submit`.
        """
        return _send_array({"array": array}, spec, fields)

    @gives_one
    def submit_sweep(
        self,
        sweep: Mapping[str, Any],
        /,
        spec: JobSpec | None = None,
        *,
        at_once: int | None = None,
        **fields: Any,
    ) -> RestCall[ArrayRecord]:
        """Submit a job once for each point of a grid, `{"grid": {"lr": [1e-3, 1e-4]}}`.

        Parameters take the place of `{lr}` in the command, and stand in HOLDFAST_PARAM_LR.
        """
        return _send_array({"sweep": dict(sweep), "at_once": at_once}, spec, fields)

    @gives_one
    def array(self, array_id: str) -> RestCall[ArrayRecord]:
        """Return one array; its members are `jobs(array=array_id)`."""
        return ask(on_arrays.GET_ARRAY, array_id)

    @gives_each
    def arrays(
        self,
        *,
        states: Sequence[str] = (),
        queue: str | Sequence[str] | None = None,
        project: str | Sequence[str] | None = None,
        owner: str | Sequence[str] | None = None,
        name: str | Sequence[str] | None = None,
        prefix: str | None = None,
        page_size: int | None = None,
    ) -> PageCall[ArrayRecord]:
        """Yield arrays, newest first; `states`: with a member in one of them."""
        return ask(
            on_arrays.LIST_ARRAYS,
            state=list(states),
            queue=queue,
            project=project,
            owner=owner,
            name=name,
            prefix=prefix,
            limit=page_size,
        )

    @gives_one
    def cancel_array(
        self, array_id: str, reason: str = "", *, hard: bool = False
    ) -> RestCall[ArrayRecord]:
        """Cancel every member that has not ended."""
        from holdfast.wire.api import CancelRequest

        body = CancelRequest(reason=reason, hard=hard)
        return ask(on_arrays.CANCEL_ARRAY, array_id, body=body)

    @gives_one
    def retry_array(self, array_id: str) -> RestCall[ArrayRecord]:
        """Give each failed member another attempt, with new budgets."""

        return ask(on_arrays.RETRY_ARRAY, array_id)


def _send_array(
    how: dict[str, Any], spec: JobSpec | None, fields: Mapping[str, Any]
) -> RestCall[ArrayRecord]:
    body = {"job": keyed(merge_spec(spec, fields)), **how}
    return ask(on_arrays.SUBMIT_ARRAY, body=body)
