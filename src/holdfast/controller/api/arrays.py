"""The routes of arrays: submit, list, show, cancel, retry."""

import hashlib
import re

import msgspec
from starlette.responses import Response

from holdfast.controller.api.jobs import check_specs, find_notes, take_key
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.job_tokens import adopt, enter_project
from holdfast.controller.http.owners import name_caller
from holdfast.controller.http.pages import answer_page, check_job_id, make_cursor, read_cursor
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.arrays.arrays import Member, check_values, make_member, parse_indices, too_many
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.arrays.sweeps import expand_sweep
from holdfast.core.ids import ID_PATTERN
from holdfast.core.records import JobTokenRecord
from holdfast.errors import NotFound, ValidationError
from holdfast.moves.values import ArrayFilter, NewArray
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.api import CancelRequest
from holdfast.wire.arrays import ArrayRequest
from holdfast.wire.operations.queries import ArraysQuery

CANCEL_ROUNDS = 20  # of 500 members each; the leader's loop does the rest
_MEMBER = re.compile(r"([0-9a-z]{20})\[(\d{1,10})\]")
_encoder = msgspec.json.Encoder(order="deterministic")


async def submit_array(call: ApiCall) -> Response:
    """Submit an array: all of its jobs, or none."""
    request = await call.body(ArrayRequest)
    request = msgspec.structs.replace(
        request, job=take_key(request.job, call.header("idempotency-key"))
    )
    members, at_once = read_members(request)
    spec = request.job
    if spec.supervised:
        raise ValidationError("a supervised job cannot be an array", field="job.supervised")
    (spec,) = await enter_project(call, [spec], len(members))
    (checked,) = await check_specs(call.controller, [spec], ["job."], owner=call.user)
    spec = adopt(call, spec)
    check_values(spec, members)
    make_member(spec, "", len(members), members[-1])
    array = NewArray(
        id=make_new_id(),
        spec=spec,
        queue=checked.queue,
        owner=checked.owner,
        members=members,
        member_ids=tuple(make_new_id() for _ in members),
        at_once=at_once,
        digest=hashlib.sha256(_encoder.encode(request)).hexdigest(),
    )
    submitted = await call.store.arrays.submit_array(array)
    if submitted.created:
        call.controller.poke("admit", "events")
    location = {"Location": f"/v1/arrays/{submitted.array.id}"}
    location |= await find_notes(call.controller, [spec])
    return answer_json(submitted.array, 201 if submitted.created else 200, location)


def read_members(request: ArrayRequest) -> tuple[tuple[Member, ...], int | None]:
    """Return the members of an array, and how many run at once. Raises ValidationError."""
    if (request.array is None) == (request.sweep is None):
        text = "an array has either `array`, its indices, or `sweep`, its parameters"
        raise ValidationError(text, field="array")
    if request.sweep is not None:
        members = expand_sweep(request.sweep)
        if len(members) > 100_000:
            raise ValidationError(too_many(), field="sweep")
        return members, request.at_once
    indices, at_once = parse_indices(request.array or "")
    if at_once is not None and request.at_once not in (None, at_once):
        text = "`at_once` and the number after % differ; give one of them"
        raise ValidationError(text, field="at_once")
    return tuple(Member(index=n) for n in indices), at_once or request.at_once


async def list_arrays(call: ApiCall) -> Response:
    """List arrays, newest first."""
    query = name_caller(call, call.query(ArraysQuery))
    found = await call.store.arrays.list_arrays(
        ArrayFilter(
            states=tuple(query.state),
            queues=query.queue,
            projects=query.project,
            owners=query.owner,
            names=query.name,
            prefix=query.prefix,
            before=read_cursor(query.cursor) if query.cursor else None,
            limit=query.limit + 1,
        )
    )
    items = found[: query.limit]
    cursor = make_cursor(items[-1].id) if len(found) > query.limit else None
    if isinstance(call.caller, JobTokenRecord):  # JOB-TOKEN-2
        items = [array for array in items if array.spec.parent == call.caller.job_id]
    return answer_page(items, cursor)


def _read_id(call: ApiCall) -> str:
    array_id = call.params["id"]
    if not ID_PATTERN.fullmatch(array_id):
        raise NotFound(f"there is no array {array_id[:64]!r}; `holdfast jobs` lists them")
    return array_id


async def get_array(call: ApiCall) -> Response:
    """Return one array."""
    return answer_json(await call.store.arrays.get_array(_read_id(call)))


async def cancel_array(call: ApiCall) -> Response:
    """Cancel every member that has not ended. This call cancels up to `CANCEL_ROUNDS` batches; the
    leader's loop cancels the rest of a larger array."""
    request = await call.body(CancelRequest, default=CancelRequest())
    controller, array_id = call.controller, _read_id(call)
    reason = request.reason or f"cancelled by {call.caller_name}"
    await call.store.arrays.cancel_array(array_id, reason, hard=request.hard)
    for _ in range(CANCEL_ROUNDS):
        if not (await call.store.arrays.advance_arrays(only=array_id)).left:
            break
    controller.poke("admit", "drain", "events")
    array = await call.store.arrays.get_array(array_id)
    return answer_json(array, 200 if array.state.terminal else 202)


async def retry_array(call: ApiCall) -> Response:
    """Give each failed member another attempt."""
    array_id = _read_id(call)
    await call.store.arrays.retry_array(array_id, f"retried by {call.caller_name} with its array")
    call.controller.poke("admit", "events")
    return answer_json(await call.store.arrays.get_array(array_id))


async def resolve_member(store: PostgresStore, text: str) -> str:
    """Return the id of the job that `ARRAY[7]` names; return any other text unchanged.

    Raises:
        NotFound: the array has no such member.
    """
    match = _MEMBER.fullmatch(text)
    if match is None:
        return check_job_id(text)
    array_id, index = match[1], int(match[2])
    found = await store.arrays.find_members(array_id, [index])
    if index not in found:
        array: ArrayRecord = await store.arrays.get_array(array_id)
        raise NotFound(f"array {array_id} has no index {index}; it has {array.indices[:200]}")
    return found[index]
