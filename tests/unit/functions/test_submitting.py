"""Submission and results, against a controller in memory that runs every call at once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import holdfast
from holdfast.client import Client
from holdfast.client.locate import ControllerPlace
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.values import CallState, FunctionSpec
from holdfast.core.ids import TaskKey
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.functions import CallCancelled, CallFailed, TaskFunction, patience
from holdfast.functions.connection import CONNECTION, CallsConnection
from holdfast.functions.presence import Presence
from holdfast.functions.running import CallContext, enter
from holdfast.functions.submitting import close_all
from holdfast.wire.bearer import make_job_token
from holdfast.wire.calls import CallResult, CallResults, CallView, CallWhyLine


@holdfast.task(queue="gpu", retry=2, time_limit="2m", stall_timeout="off")
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@holdfast.task
async def later(n: int) -> int:
    return n


class Controller:
    """Runs `double` at once, except what is held; -1 fails and -2 is cancelled."""

    def __init__(self) -> None:
        self.sets: dict[str, list[str]] = {}
        self.counts: dict[str, int | None] = {}
        self.specs: dict[str, FunctionSpec] = {}
        self.folders: list[tuple[str, str]] = []
        self.place = ControllerPlace(url="http://c", token=None, source="a test")
        self.requests: list[int] = []
        self.asked = 0
        self.held: set[int] = set()
        self.closed: set[str] = set()
        self.cuts: dict[str, str] = {}
        self.touched: list[str] = []
        self.cancelled: list[tuple[str, list[int]]] = []
        self.why = CallWhyLine(code="ready", message="it is next")

    def create_call_set(
        self,
        spec: FunctionSpec,
        args: Sequence[str],
        *,
        set_id: str,
        count: int | None = None,
        singles: bool = False,
    ) -> None:
        self.sets[set_id], self.specs[set_id], self.counts[set_id] = list(args), spec, count
        self.requests.append(len(args))

    def send_code(self, folder: str, *, project: str) -> CodeRef:
        self.folders.append((folder, project))
        return CodeRef(digest="a" * 64)

    def append_calls(
        self,
        set_id: str,
        first: int,
        args: Sequence[str],
        *,
        count: int | None = None,
        cut: str = "",
    ) -> None:
        if set_id in self.closed:
            raise Conflict("it is closed")
        if set_id not in self.sets:
            raise NotFound("there is no such set")
        assert first == len(self.sets[set_id])
        if not args and count is None:
            self.touched.append(set_id)
        self.cuts[set_id] = cut
        self.sets[set_id] += args
        self.counts[set_id] = count
        self.requests.append(len(args))

    def cancel_calls(self, set_id: str, indices: list[int], reason: str = "") -> None:
        self.cancelled.append((set_id, indices))

    def call_view(self, set_id: str, index: int) -> CallView:
        shown = CallView(set=set_id, index=index, function="f", state="ready", attempts=0)
        return msgspec.structs.replace(shown, why=[self.why])

    def call_results(
        self,
        set_id: str,
        *,
        first: int = 0,
        limit: int = 1000,
        indices: Sequence[int] | None = None,
        wait_seconds: float = 0.0,
    ) -> CallResults:
        self.asked += 1
        texts = self.sets[set_id]
        if indices is None:
            gap = min([i for i in self.held if i >= first], default=len(texts))
            indices = range(first, min(gap, first + limit, len(texts)))
        if wait_seconds and not indices:
            self.held.clear()
        return CallResults(results=[self._end(i, texts[i]) for i in indices if i not in self.held])

    def _end(self, index: int, text: str) -> CallResult:
        n = json.loads(text)["n"]
        if n == -1:
            error = json.dumps({"kind": "ValueError", "message": "too low", "traceback": "line 7"})
            return CallResult(index, CallState.FAILED, error, 3, "2 retries are spent")
        if n == -2:
            return CallResult(index, CallState.CANCELLED, "", 1, "")
        return CallResult(index, CallState.SUCCEEDED, json.dumps(2 * n), 1, "")


@pytest.fixture
def controller() -> Iterator[Controller]:
    fake = Controller()
    CONNECTION.use(cast(Client, fake))
    yield fake
    close_all()
    CONNECTION.use(None)


def test_a_task_called_directly_runs_in_place() -> None:
    assert double(3) == 6
    assert asyncio.run(later(4)) == 4
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")


def test_the_context_in_place_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @holdfast.task
    def look(n: int, ctx: Any = None) -> list[Any]:
        assert holdfast.context() is ctx
        ctx.beat(n)
        ctx.checkpoint.save(b"1")
        return [n, ctx.id, ctx.attempt, ctx.cancelled, ctx.out_dir.name, ctx.checkpoint.load()]

    monkeypatch.chdir(tmp_path)
    assert look(2) == [2, "", 1, False, "out", b"1"]


def test_a_call_is_submitted_and_its_result_taken(controller: Controller) -> None:
    handle = double.submit(3)
    assert handle.result(timeout=60) == 6
    assert handle.done()
    [(set_id, spec)] = controller.specs.items()
    assert handle.id == f"{set_id}.0"
    assert spec.function == f"{__name__}:double"
    assert (spec.queue, spec.time_limit_seconds, spec.stall_timeout_seconds) == (
        "gpu",
        120.0,
        "off",
    )
    assert spec.retry is not None
    assert spec.retry.max_retries == 2


def test_a_folder_is_sent_once_and_its_code_handed_on_by_the_calls_that_it_runs(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = double.options(workdir=tmp_path, project="film")
    handles = [brought.submit(1), brought.submit(2)]
    list(brought.map([3]))
    assert controller.folders == [(str(tmp_path), "film")]
    sent = CodeRef(digest="a" * 64)
    assert {spec.code for spec in controller.specs.values()} == {sent}
    assert handles[0].set_id == handles[1].set_id
    own = CodeRef(digest="b" * 64)
    monkeypatch.setenv("HOLDFAST_APP", "tests")
    monkeypatch.setenv("HOLDFAST_APP_CODE", json.dumps({"digest": own.digest}))
    enter(Hosted(1).context)
    try:
        nested = brought.options().submit(4)
        elsewhere = brought.options(app="other").submit(5)
    finally:
        enter(None)
    assert controller.specs[nested.set_id].code == own
    assert controller.specs[elsewhere.set_id].code is None
    assert len(controller.folders) == 1


def test_calls_of_one_function_share_a_set_until_it_is_closed(controller: Controller) -> None:
    handles = [double.options(priority=9).submit(1), double.submit(2), double.submit(3)]
    assert handles[1].set_id == handles[2].set_id != handles[0].set_id
    controller.closed.add(handles[1].set_id)
    assert double.submit(4).set_id not in {handle.set_id for handle in handles}
    asked = controller.asked
    found = {handle.result() for handle in holdfast.as_completed(handles)}
    assert found == {2, 4, 6}
    assert controller.asked - asked <= 3


def test_handles_come_in_the_order_of_their_ends(controller: Controller) -> None:
    function = TaskFunction(double.function, {})
    handles = [function.submit(n) for n in range(4)]
    controller.held = {0, 2}
    ended = holdfast.as_completed(handles)
    assert {next(ended).index, next(ended).index} == {1, 3}
    controller.held = {0}
    assert next(ended).index == 2
    with pytest.raises(TimeoutError, match="1 calls have not ended"):
        list(holdfast.as_completed([handles[0]], timeout=0.01))
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.01 s; it goes on"):
        handles[0].result(timeout=0.01)
    controller.held = set()
    assert next(ended).index == 0


def test_what_a_call_opened_is_let_go_through_its_own_client(controller: Controller) -> None:
    """SETS-1: no set is appended to, reported or closed by a client that did not open it."""
    function, presence, other = TaskFunction(double.function, {}), Presence(), Controller()
    one, endless = function.submit(1), double.map(itertools.count())
    opened = function._singles[50]
    presence.add(opened)
    presence.add(endless)
    CONNECTION.use(cast(Client, other))
    two = function.submit(2)
    assert (controller.counts[one.set_id], list(other.sets)) == (1, [two.set_id])
    presence.report_clients()
    assert controller.counts[endless.id] == 100
    assert "the call that submitted it ended" in controller.cuts[endless.id]
    assert (controller.touched, other.touched) == ([], [two.set_id])
    CONNECTION.use(cast(Client, controller))
    presence.report_clients()
    assert other.counts[two.set_id] == 1, "it is let go also where no further call is submitted"


def test_a_client_acts_for_one_call_set_until_a_call_of_another_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = "0" * 20, "1" * 20
    token = make_job_token(bytes(32), TaskKey("2" * 20, 0, 1))
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HOLDFAST_TOKEN", token)
    connection, clients = CallsConnection(), []
    try:
        for call in (f"{first}.0", f"{first}.1", None, f"{second}.0", None, f"{first}.2"):
            enter(CallContext(call) if call else None)
            clients.append(connection.client)
    finally:
        enter(None)
    assert [client.place.token for client in clients] == [
        f"{token}~{set_id}" for set_id in (first, first, first, second, second, first)
    ]
    assert clients[0] is clients[1] is clients[2] is not clients[5]
    for client in clients:
        client.close()


def test_calls_go_on_with_another_controller(controller: Controller) -> None:
    function = TaskFunction(double.function, {})
    assert function.submit(1).result() == 2
    CONNECTION.use(cast(Client, Controller()))
    assert function.submit(2).result() == 4, "its open set is of the controller before"


def test_a_waiting_program_hears_what_holds_its_call_up(
    controller: Controller, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.0)
    controller.held = {0}
    handle = double.submit(1)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.02)
    assert not caplog.messages  # its turn will come
    controller.why = CallWhyLine(code="no_host_lists_app", message="no host", hint="start one")
    with pytest.raises(TimeoutError, match=r"it goes on: no host \(start one\)"):
        handle.result(timeout=0.02)
    said = f"call {handle.id} waits: no host (start one)"
    assert caplog.messages == [said]  # once, however often it was looked at
    with pytest.raises(TimeoutError):
        list(holdfast.as_completed([handle], timeout=0.02))
    assert caplog.messages == [said, said]


def test_a_failure_says_what_was_raised(controller: Controller) -> None:
    handle = double.submit(-1)
    with pytest.raises(CallFailed, match=r"ValueError: too low \(2 retries are spent\)") as failed:
        handle.result()
    assert (failed.value.kind, failed.value.attempts) == ("ValueError", 3)
    assert failed.value.__notes__ == ["on its host:\nline 7"]
    assert isinstance(double.submit(-2).exception(), CallCancelled)
    assert double.submit(2).exception() is None


def test_a_wrong_argument_is_refused_before_anything_is_sent(controller: Controller) -> None:
    with pytest.raises(ValidationError, match="argument 'n'"):
        double.submit("three")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValidationError, match="argument 'n'"):
        double.map(["three"])
    assert controller.requests == []


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 25_000])
def test_a_map_gives_results_in_order_in_few_requests(controller: Controller, count: int) -> None:
    results = double.map(range(count))
    assert list(results) == [2 * n for n in range(count)]
    assert controller.counts[results.id] == count
    assert sum(controller.requests) == count
    assert len(controller.requests) <= 8 + count // 1000


def test_a_generator_without_end_is_read_only_so_far_ahead(controller: Controller) -> None:
    results = double.map(itertools.count())
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert sum(controller.requests) <= 1100


def test_a_failed_item_is_raised_in_its_turn(controller: Controller) -> None:
    results = double.map([1, -1, 2])
    assert next(results) == 2
    with pytest.raises(CallFailed):
        next(results)
    assert list(results) == [4]
    one, failure, two = double.map([1, -1, 2], errors="return")
    assert (one, two) == (2, 4)
    assert isinstance(failure, CallFailed)


def test_a_gap_is_waited_for(controller: Controller) -> None:
    controller.held = {1}
    assert list(double.map(range(4))) == [0, 2, 4, 6]


def test_a_handle_can_be_awaited(controller: Controller) -> None:
    async def both() -> list[int]:
        return await asyncio.gather(*(wait(double.submit(n)) for n in (1, 2)))

    async def wait(handle: Any) -> int:
        found: int = await handle
        return found

    assert asyncio.run(both()) == [2, 4]


def test_what_no_host_can_import_is_refused(controller: Controller) -> None:
    @holdfast.task
    def inner() -> None: ...

    with pytest.raises(ValidationError, match="inside a function; declare it at the top"):
        inner.submit()


def test_a_module_may_have_a_hyphen_in_its_name(controller: Controller) -> None:
    def count(n: int) -> int:
        return n

    count.__qualname__, count.__module__ = "count", "my-job"
    handle = holdfast.task(count).submit(1)
    assert controller.specs[handle.set_id].function == "my-job:count"
    count.__module__ = "2nd job"
    with pytest.raises(ValidationError, match=r"a module's file is named with letters, digits"):
        holdfast.task(count).submit(1)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"priorty": 3}, "a task has no option 'priorty'"),
        ({"time_limit": "soon"}, "time_limit: 'soon' is not a duration"),
        ({"retry": {"retries": 3}}, "a retry policy has no field 'retries'"),
        ({"memory": "lots"}, "memory: 'lots' is not a size"),
        ({"host_labels": "rack=b12"}, r"host_labels: a mapping, as \{'rack': '!b12'\}"),
    ],
)
def test_bad_options_are_refused_at_the_declaration(option: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        holdfast.task(**option)(double.function)


def test_a_bad_value_is_refused_at_submission(controller: Controller) -> None:
    with pytest.raises(ValidationError, match="priority: must be at most 100"):
        double.options(priority=101).submit(1)


def test_hosts_are_chosen_by_labels() -> None:
    chosen = holdfast.task(host_labels={"rack": "!b12", "slot": 3})(double.function)
    assert chosen.spec.host_labels == {"rack": "!b12", "slot": "3"}
    assert chosen.options(host_labels={"rack": "b11"}).spec.host_labels == {"rack": "b11"}


def test_a_model_brings_its_memory_and_a_gpu() -> None:
    @holdfast.model("tiny-model", vram_gb=3)
    def tiny() -> int:
        return 1

    assert (double.options(model=tiny).spec.vram_gb, double.options(model=tiny).spec.gpus) == (3, 1)
    assert double.options(model="tiny-model").spec.vram_gb == 3
    assert double.options(model="tiny-model", gpus=0).spec.gpus == 0


def test_a_failure_is_not_said_twice() -> None:
    """The reason of a call without another attempt begins with what went wrong."""
    why = "ValueError: no 4; no retries were asked for"
    failure = CallFailed("set.0", "ValueError", "no 4", "", attempts=1, reason=why)
    assert str(failure) == "call set.0 failed: ValueError: no 4 (no retries were asked for)"


def test_a_source_that_raises_loses_none_of_the_items_before(controller: Controller) -> None:
    def items() -> Iterator[int]:
        yield from range(1900)
        raise RuntimeError("row 1900 is torn")

    results, found = double.map(items()), list[int]()
    with pytest.raises(RuntimeError, match="row 1900 is torn"):
        found.extend(results)
    assert found == [2 * n for n in range(1900)]
    assert (controller.counts[results.id], controller.cuts[results.id]) == (
        1900,
        "the source of its items raised RuntimeError: row 1900 is torn",
    )
    assert list(results) == []


def test_an_item_that_does_not_fit_is_raised_in_its_turn(controller: Controller) -> None:
    results = double.map(iter([1, "two"]))
    assert next(results) == 2
    with pytest.raises(ValidationError, match="argument 'n'"):
        next(results)
    sets = len(controller.sets)
    with pytest.raises(ValidationError, match="argument 'n'"):
        double.map(["one"])
    assert len(controller.sets) == sets, "nothing was sent"


def test_open_sets_are_spoken_for_as_long_as_they_are_in_use(controller: Controller) -> None:
    """PRESENT-1."""
    presence, handle = Presence(), double.submit(1)
    endless = double.map(itertools.count())
    whole = double.map([1, 2])
    for opened in (double._singles[50], endless, whole):
        presence.add(opened)
    controller.requests.clear()
    controller.touched.clear()
    presence.report_clients()
    assert sorted(controller.touched) == sorted([handle.set_id, endless.id])
    endless.close("enough")
    assert controller.cuts[endless.id] == "enough"
    controller.touched.clear()
    del opened
    presence.report_clients()
    assert controller.touched == [handle.set_id]


class Hosted:
    """The context of a call that an executor runs, and what that is told."""

    def __init__(self, priority: int = 50) -> None:
        self.told: list[str] = []
        self.context = CallContext(
            "parent.0",
            priority=priority,
            begin_waiting=self.told.append,
            end_waiting=lambda call: self.told.append(f"-{call}"),
        )


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    made = Hosted()
    enter(made.context)
    yield made
    enter(None)


def test_a_call_that_waits_for_another_tells_its_executor(
    controller: Controller, hosted: Hosted
) -> None:
    handle = double.submit(1)
    assert handle.result() == 2
    assert hosted.told == [], "it had ended"
    for wait in (
        lambda: double.submit(3).result(timeout=0.3),
        lambda: list(holdfast.as_completed([double.submit(4)], timeout=0.3)),
    ):
        controller.held = {len(controller.sets[handle.set_id])}
        with pytest.raises(TimeoutError):
            wait()
        name = f"{handle.set_id}.{controller.held.pop()}"
        assert (hosted.told[0], hosted.told[-1]) == (name, f"-{name}"), "to the end of the wait"
        assert hosted.told.count(name) == hosted.told.count(f"-{name}")
        hosted.told.clear()
    results = double.map([7])
    controller.held = {0}
    assert list(results) == [14]
    assert hosted.told == [f"{results.id}.0", f"-{results.id}.0"]


def test_calls_of_a_call_go_before_calls_like_itself(
    controller: Controller, hosted: Hosted
) -> None:
    handle = double.submit(1)
    assert controller.specs[handle.set_id].priority == 51
    assert controller.specs[double.map([1]).id].priority == 51
    assert controller.specs[double.options(priority=90).submit(1).set_id].priority == 90
    enter(None)
    assert controller.specs[double.submit(1).set_id].priority == 50
    enter(Hosted(100).context)
    assert controller.specs[double.submit(1).set_id].priority == 100


def test_a_call_that_can_never_run_is_refused_to_the_call_that_waits_for_it(
    controller: Controller, hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "CALL_PATIENCE_SECONDS", 0.01)
    controller.held, controller.why = {0}, CallWhyLine(code="waits_for_itself", message="no GPU")
    handle = double.submit(1)
    with pytest.raises(Conflict, match=rf"call {handle.id} can never run: no GPU"):
        handle.result()
    assert controller.cancelled == [(handle.set_id, [0])]
