"""The users' routes of call sets: submit, append, list, show, read results, cancel, retry."""

import functools
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import msgspec
from starlette.responses import Response

from holdfast.bounds import UNREADABLE
from holdfast.controller.api.jobs import check_bundles, check_project, knows_project
from holdfast.controller.calls.why import view_call
from holdfast.controller.http.bodies import decode_body, read_body, wait_unless_gone
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.job_tokens import adopt_function
from holdfast.controller.http.owners import name_caller
from holdfast.controller.http.pages import answer_page, make_cursor, read_cursor
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.background import BEHIND_SECONDS
from holdfast.controller.runtime.context import Controller
from holdfast.core.bundles.code import check_code
from holdfast.core.calls.executors import APP, as_job
from holdfast.core.calls.values import (
    MAX_INLINE_BYTES,
    MAX_SET_CALLS,
    CallState,
    FunctionSpec,
    find_family,
)
from holdfast.core.ids import ID_PATTERN
from holdfast.core.retry import check_fields
from holdfast.core.settings.resolve import check_layer, job_layer
from holdfast.core.spec import check_memory
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.calls import (
    MAX_CALLS_BYTES,
    CallResult,
    CallResults,
    CallsChange,
    MoreCalls,
    NewCallSet,
)
from holdfast.wire.operations.work.calls import ResultsQuery, SetsQuery

MAX_WAIT_SECONDS = 25
MAX_INDICES = 10_000
ANSWER_BYTES = 8 * 1024 * 1024
"""The most bytes of results in one answer, plus one last result; the next page has the others."""
_LOOK = 128
"""The number of results that are read first, before their sizes are known."""
T = TypeVar("T")
_find_decoder = functools.cache(msgspec.json.Decoder)
_JSON = msgspec.json.Decoder(msgspec.Raw)


async def create_set(call: ApiCall) -> Response:
    """Create a call set with its first calls. A repeat of the request changes nothing."""
    new = await _read_body(call, NewCallSet)
    if not ID_PATTERN.fullmatch(new.id):
        form = "id: 20 digits and lower-case letters without i, l, o and u, made by the client"
        raise ValidationError(form, field="id")
    check_args(new.args, 0, new.count)
    controller, spec = call.controller, await adopt_function(call, new.spec)
    settings = await controller.settings.recent()
    queue = find_queue(spec)
    if queue not in settings.queues or not knows_project(spec.project, settings):
        settings = await controller.settings.refresh()
    check_function(spec, queue, settings.queues)
    check_project(spec.project, settings)
    await check_bundles(controller, [spec], ["spec."])
    view = await call.store.calls.create_set(
        new.id, spec, queue, count=new.count, args=new.args, singles=new.singles, owner=call.user
    )
    if new.args:
        poke_family(controller, view.spec, queue)
    controller.poke(f"set:{new.id}", "events")
    return answer_json(view, 201, {"Location": f"/v1/call-sets/{view.id}"})


async def append_calls(call: ApiCall) -> Response:
    """Add calls to an open set."""
    set_id = _set_id(call)
    more = await _read_body(call, MoreCalls)
    check_args(more.args, more.first, more.count)
    view = await call.store.calls.append_calls(
        set_id, more.first, more.args, count=more.count, cut=more.cut
    )
    if not more.args and more.count is None:
        return answer_json(view)  # the request only shows that its client is alive
    poke_family(call.controller, view.spec, find_queue(view.spec))
    call.controller.poke(f"set:{set_id}")
    return answer_json(view)


async def list_sets(call: ApiCall) -> Response:
    """List call sets, newest first."""
    query = name_caller(call, call.query(SetsQuery))
    found = await call.store.calls.list_sets(
        before=read_cursor(query.cursor) if query.cursor else None,
        limit=query.limit + 1,
        project=query.project,
        owner=query.owner,
    )
    items = found[: query.limit]
    more = len(found) > query.limit
    return answer_page(items, make_cursor(items[-1].id) if more else None)


async def get_set(call: ApiCall) -> Response:
    """Return one call set and its counts."""
    view = await call.store.calls.read_set(_set_id(call))
    settings = await call.controller.settings.current()
    limit = settings.call_limit(find_queue(view.spec), view.spec)
    seconds = None if limit.value is None else float(limit.value)
    source = limit.source.replace("job", "function")
    return answer_json(
        msgspec.structs.replace(view, time_limit_seconds=seconds, time_limit_source=source)
    )


async def get_call(call: ApiCall) -> Response:
    """Return one call: its failed attempts, and why it is where it is."""
    return answer_json(await view_call(call.controller, *read_call_name(call)))


def read_call_name(call: ApiCall) -> tuple[str, int]:
    """Return the set and the index in a request's path. Raises NotFound."""
    set_id = _set_id(call)
    text = call.params["index"]
    if not (text.isascii() and text.isdigit() and len(text) <= 8):
        raise NotFound(f"set {set_id} has no call {text[:64]!r}; calls are numbered from 0")
    return set_id, int(text)


async def get_results(call: ApiCall) -> Response:
    """Return results, waiting for the first of them for `wait` seconds at most."""
    set_id, query = _set_id(call), call.query(ResultsQuery)
    indices = None if query.index is None else [int(n) for n in query.index.split(",")]
    if indices is not None and len(indices) > MAX_INDICES:
        most = f"query.index: at most {MAX_INDICES} at once"
        raise ValidationError(most, field="query.index")
    states = _read_states(query.state)
    await read_body(call.scope, call.receive, 0)  # any later message is the client's hang-up
    controller = call.controller
    until = controller.clock() + min(float(query.wait), MAX_WAIT_SECONDS)
    with controller.wakes.watching(f"set:{set_id}") as wake:
        while True:
            seen = wake.version
            found = await read_results(controller, set_id, query, indices, states)
            left = until - controller.clock()
            if found.results or found.ended or left <= 0 or controller.wakes.closing:
                return answer_json(found)
            # Look again now and then, because a wake from another replica may be lost.
            await wait_unless_gone({wake: seen}, min(left, 5.0), call.receive)


async def read_results(
    controller: Controller,
    set_id: str,
    query: ResultsQuery,
    indices: Sequence[int] | None,
    states: Sequence[CallState],
) -> CallResults:
    """Return the results recorded so far, and whether the reader may wait for more."""
    calls = controller.store.calls
    asked = query.limit if indices is not None else min(query.limit, _LOOK)
    found = list(
        await calls.read_results(
            set_id, first=query.first, limit=asked, indices=indices, states=states
        )
    )
    if len(found) == asked < query.limit and measure_results(found) < ANSWER_BYTES // 8:
        following, asked = (
            found[-1].index + 1,
            query.limit,
        )  # results are small: the others fit at once
        more = query.limit - len(found)
        found += await calls.read_results(set_id, first=following, limit=more, states=states)
    results = fit_results(found)
    following = results[-1].index + 1 if results else query.first
    if indices is not None:
        ended = len(results) == len(set(indices))
    elif states:
        ended = len(results) < asked
    else:
        ended = len(results) < asked and await _is_past_end(controller, set_id, following)
    return CallResults(results=results, next=following, ended=ended and len(results) == len(found))


def measure_results(results: Iterable[CallResult]) -> int:
    """Return about how many bytes the results take."""
    return sum(len(result.value) for result in results)


def fit_results(results: list[CallResult]) -> list[CallResult]:
    """Return the leading results that fit into one answer."""
    size = 0
    for count, result in enumerate(results):
        if size >= ANSWER_BYTES:
            return results[:count]
        size += len(result.value)
    return results


async def _is_past_end(controller: Controller, set_id: str, index: int) -> bool:
    view = await controller.store.calls.read_set(set_id)
    return view.count is not None and index >= view.count


async def cancel_calls(call: ApiCall) -> Response:
    """Cancel calls: waiting ones at once, running ones cooperatively."""
    set_id = _set_id(call)
    change = await call.body(CallsChange, default=CallsChange())
    reason = change.reason or f"cancelled by {call.caller_name}"
    view = await call.store.calls.cancel_calls(
        set_id, change.indices, reason=reason, hard=change.hard
    )
    poke_family(call.controller, view.spec, find_queue(view.spec))
    call.controller.poke(f"set:{set_id}", "events")
    return answer_json(view)


async def retry_calls(call: ApiCall) -> Response:
    """Make failed and cancelled calls ready again."""
    set_id = _set_id(call)
    change = await call.body(CallsChange, default=CallsChange())
    view = await call.store.calls.retry_calls(set_id, change.indices)
    poke_family(call.controller, view.spec, find_queue(view.spec))
    call.controller.poke(f"set:{set_id}", "events")
    return answer_json(view)


def poke_family(controller: Controller, spec: FunctionSpec, queue: str) -> None:
    """Wake the executors that wait for calls of this function. The loop that starts more executors
    is woken a moment later, because its reads would take CPU time from the calls."""
    controller.poke(f"calls:{find_family(spec, queue).name}")
    controller.poke_soon("executors", seconds=BEHIND_SECONDS)


def find_queue(spec: FunctionSpec) -> str:
    """Return the queue of a function's executors."""
    return spec.queue or ("gpu" if spec.gpus else "cpu")


def check_function(spec: FunctionSpec, queue: str, queues: Collection[str]) -> None:
    """Raise ValidationError for a declaration that cannot be served."""
    if queue not in queues:
        raise ValidationError(
            f"there is no queue {queue!r}; there are {', '.join(sorted(queues)) or 'none yet'}. "
            f"An admin makes it with `holdfast queues set {queue}`",
            code="unknown_queue",
            field="spec.queue",
        )
    if spec.retry is not None:
        check_fields(spec.retry)
    if spec.code is not None:
        check_code(spec.code)
    check_layer(job_layer(as_job(spec)), "job")
    check_memory(spec.memory_bytes)
    if any(name.startswith(APP) for name in spec.host_labels):
        text = "a label app/… tells which apps a host lists; spec.app names the app of a function"
        raise ValidationError(text, field="spec.host_labels")
    if spec.vram_gb and spec.model is None:
        raise ValidationError("spec.vram_gb is of a model; name the model", field="spec.vram_gb")


def check_args(args: Sequence[str], first: int, count: int | None) -> None:
    """Raise ValidationError for arguments that no call could take."""
    if first + len(args) > (MAX_SET_CALLS if count is None else min(count, MAX_SET_CALLS)):
        most = MAX_SET_CALLS if count is None else count
        text = f"calls up to index {first + len(args) - 1}, and the set has at most {most}"
        raise ValidationError(f"args: {text}", field="args")
    for number, text in enumerate(args):
        if len(text) > MAX_INLINE_BYTES:
            raise ValidationError(
                f"args[{number}]: over {MAX_INLINE_BYTES} bytes; pass a large value by reference",
                field=f"args[{number}]",
            )
        try:
            _JSON.decode(text)
        except UNREADABLE as error:
            message = f"args[{number}]: this is no JSON text: {error}"
            raise ValidationError(message, field=f"args[{number}]") from None


def _read_states(words: Sequence[str]) -> list[CallState]:
    ended = {state.name.lower(): state for state in CallState if state is not CallState.PENDING}
    unknown = [word for word in words if word not in ended]
    if unknown:
        names = ", ".join(ended)
        raise ValidationError(f"query.state: one of {names}", field="query.state")
    return [ended[word] for word in words]


def _set_id(call: ApiCall) -> str:
    set_id = call.params["id"]
    if not ID_PATTERN.fullmatch(set_id):
        raise NotFound(
            f"there is no call set {set_id[:64]!r}; an id is 20 letters and digits, as "
            "`holdfast calls` shows it"
        )
    return set_id


async def _read_body(call: ApiCall, kind: type[T]) -> T:
    data = await read_body(call.scope, call.receive, MAX_CALLS_BYTES)
    decoder: msgspec.json.Decoder[T] = _find_decoder(kind)  # type: ignore[arg-type]  # hashable
    return decode_body(data, decoder)
