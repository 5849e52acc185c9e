"""Runs calls, one after the other, and decides when the process ends.

EXEC-1  A process that ends by itself does so between two calls, with status 0, after its ends were
        sent: it was idle for long, it was told to leave, it ran its number of calls, it holds more
        memory than it may, a file of its app was changed (CODE-1), an import failed, or an
        exception left its GPU unusable. Its status is 1 where it could not run its last call.
EXEC-2  The end of a call that ran while the process was told to stop (TERM) and raised is not sent:
        the stop made it raise, and the call is run again elsewhere.
"""

import importlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.calls.large import fill_arguments
from holdfast.core.calls.texts import lengthen, shorten
from holdfast.core.calls.values import ExecutorLimits
from holdfast.errors import HoldfastError, NotFound, Unavailable, ValidationError
from holdfast.functions.executor.checkpoints import HostedCheckpoint
from holdfast.functions.executor.files import AppFiles
from holdfast.functions.executor.functions import (
    NOT_A_TASK,
    CallRefused,
    CoroutineRunner,
    FunctionTable,
    HostedFunction,
    describe_error,
)
from holdfast.functions.executor.guard import UserGuard
from holdfast.functions.executor.held_batches import HeldBatch, HeldBatches
from holdfast.functions.executor.line import AgentLine
from holdfast.functions.executor.place import PlaceWriter
from holdfast.functions.models import SHELF
from holdfast.functions.running import CallContext, enter
from holdfast.wire.calls import (
    PHASE_CALLING,
    PHASE_IDLE,
    PHASE_LOADING,
    PHASE_UNABLE,
    PHASE_UNLOADING,
    AgentFrame,
    CallEnd,
    CallError,
    CallOrder,
    ModelLoad,
)

_LAST_WORDS_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_STOPPED = "its executor was told to stop"
_BROKEN_DEVICE = ("CUDA error", "HIP error", "device-side assert")
_encode_error = msgspec.json.Encoder().encode


class RunnerPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The app and the folders of an executor. app: the module to import before the first call, if
    it is one. path: the folder that the app is in. blobs: the folder of large values in transfer.
    files: the folder of calls' files."""

    app: str
    path: str
    blobs: Path
    files: Path


class CallRunner:
    """The main thread of an executor."""

    def __init__(
        self,
        batches: HeldBatches,
        place: PlaceWriter,
        limits: ExecutorLimits,
        places: RunnerPlaces,
        address: str,
    ) -> None:
        self._batches, self._place = batches, place
        self._limits, self._places = limits, places
        self._files_folder = str(places.files)  # a path is joined anew for each call
        self._line = AgentLine(address, batches, self._hear)
        self._guard = UserGuard(self.stop, self._cut_child)
        self._files = AppFiles(places.path)
        self._functions = FunctionTable(self._files)
        self._coroutines = CoroutineRunner()
        self._ran = 0
        self._stopped = self._broken = self._forked = self._leaves = False
        self._unable = ""  # why the last call that ended could not be run here
        self._context: CallContext | None = None
        self._looked_at = 0.0
        self._before_load = PHASE_IDLE
        self._began = 0.0
        SHELF.loading, SHELF.loaded = self._begin_load, self._end_load
        SHELF.freeing = self._free_model

    def stop(self) -> None:
        """End after the running call (TERM)."""
        self._stopped = True
        if self._context is not None:
            self._context.cancel(_STOPPED)
        self._batches.news.set()

    def run(self) -> int:
        """Run calls until there is a reason to end. Returns the exit status."""
        self._line.start()
        self._import_app()
        self._batches.open = True
        self._line.wake()
        used_at = time.monotonic()
        while not self._must_go():
            held = self._batches.next_batch()
            if held is not None:
                if self._files.changed():
                    break
                self._run_batch(held)
                used_at = time.monotonic()
                if self._leaves:
                    break
            elif self._batches.leaving or not self._wait(time.monotonic() - used_at):
                break
        self._say_last_words()
        self._drop_model()
        unable = self._unable and (self._leaves or self._batches.leaving)
        return self._say_unable() if unable else 0

    def _say_unable(self) -> int:
        """Report to the agent that this host cannot run the app (ABLE-1). Returns the status."""
        print(f"[holdfast] {' '.join(self._unable.split())}", file=self._guard.streams[1])
        self._place.write(0, 0, PHASE_UNABLE)
        return 1

    def close(self) -> None:
        """End the tasks that coroutines of calls left running."""
        self._guard.shield("what a coroutine of a call left running", self._coroutines.close)

    def _cut_child(self) -> None:
        """Cut off a process that a call forked, because the place file and the line belong to its
        parent."""
        SHELF.loading, SHELF.loaded = (lambda name: None), (lambda name, seconds: None)
        self._forked = True
        self._line.cut()

    def _import_app(self) -> None:
        """Import the app ahead of the first call. The calls that meet an error of the import report
        it; an executor that ends in the import has run no call, and its agent reports that."""
        self._place.write(0, 0, PHASE_LOADING)
        app, since = self._places.app, time.time()
        try:
            self._guard.run(importlib.import_module, app, sets_up=True)
        except BaseException as error:
            # An app need not be a module: its functions may be in another one.
            if not (isinstance(error, ModuleNotFoundError) and error.name == app):
                self._files.note_failure(error)
        self._files.note_imports(since)
        self._batches.models = SHELF.list_limits()
        self._place.write(0, 0, PHASE_IDLE)

    # ---- when to go

    def _must_go(self) -> bool:
        if self._stopped or self._broken:
            return True
        limits = self._limits
        if limits.calls and self._ran >= limits.calls:
            return True
        if not limits.memory_bytes:
            return False
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        return read_resident_bytes() > limits.memory_bytes

    def _wait(self, idle_seconds: float) -> bool:
        """Wait for calls; unload a model that is not used. Returns False when the executor was idle
        for long."""
        batches, limits = self._batches, self._limits
        if batches.next_batch() is not None:
            return True
        until = [limits.idle_seconds] if limits.idle_seconds else []
        if SHELF.name is not None and limits.model_idle_seconds:
            if idle_seconds >= limits.model_idle_seconds:
                self._drop_model()
                self._line.wake()
            else:
                until.append(limits.model_idle_seconds)
        if limits.idle_seconds and idle_seconds >= limits.idle_seconds:
            return False
        self._line.wake()
        batches.news.wait(min(until) - idle_seconds if until else None)
        batches.news.clear()
        return True

    def _say_last_words(self) -> None:
        """Take no more calls, and wait for a moment until all ends are on record."""
        self._batches.open = False
        until = time.monotonic() + _LAST_WORDS_SECONDS
        while self._batches.unrecorded and time.monotonic() < until:
            self._line.wake()
            self._batches.news.wait(0.05)
            self._batches.news.clear()

    def _hear(self, frame: AgentFrame) -> None:
        """Act on a frame, on the line's thread: a cancelled call learns of it at once."""
        context = self._context
        if context is not None and self._batches.cancelled is not None:
            context.cancel(self._batches.cancelled)

    # ---- calls

    def _run_batch(self, held: HeldBatch) -> None:
        calls, batches = held.batch.calls, self._batches
        model = held.batch.model
        if model is not None and model != SHELF.name:
            self._drop_model()  # before the first call, whose time must not include an unloader's
        while not self._must_go() and (position := batches.begin_call(held)) is not None:
            end: CallEnd | None
            try:
                if position in held.cancelled:
                    end = _end_uncalled(position, held.cancelled[position])
                else:
                    end = self._run_call(held, position, calls[position], model)
            finally:
                batches.leave_call()
                enter(None)
                self._context = None
            if end is not None:
                batches.end_call(held, end)
                if not self._line.looks or batches.hungry or not batches.in_hand:
                    self._line.wake()
        self._place.write(0, 0, PHASE_IDLE)

    def _run_call(
        self, held: HeldBatch, position: int, order: CallOrder, model: str | None
    ) -> CallEnd | None:
        info = held.batch.sets[order.set]
        self._ran += 1
        for stream in self._guard.streams:
            stream.begin_call(info.id, order.index, order.attempt)
        folder = info.out_dir or f"{self._files_folder}/{info.id}"
        name = f"{info.id}.{order.index}"
        place, where = self._place, (held.batch.id, position)
        checkpoint = HostedCheckpoint(self._line, self._places.blobs, *where)
        context = CallContext(
            name,
            order.attempt,
            f"{folder}/{order.index}",
            checkpoint,
            priority=info.spec.priority,
            begin_waiting=self._begin_waiting,
            end_waiting=self._end_waiting,
        )
        cold = not self._functions.knows(info.spec.function) or model != SHELF.name
        place.write(*where, PHASE_LOADING if cold else PHASE_CALLING, begins=True)
        self._began, since = time.perf_counter(), time.time()
        try:
            hosted = self._find(info.spec.function)
            text = self._guard.run(self._attempt, held, position, hosted, order, context, cold)
            self._unable = ""
        except BaseException as failure:
            if self._stopped:
                return None  # EXEC-2
            self._note_unable(failure)
            return CallEnd(position, True, self._read_seconds(), self._describe(failure))
        finally:
            self._files.note_imports(since)
        if text is None:
            return _end_uncalled(position, held.cancelled[position])
        return CallEnd(position, False, self._read_seconds(), text)

    def _attempt(
        self,
        held: HeldBatch,
        position: int,
        hosted: HostedFunction,
        order: CallOrder,
        context: CallContext,
        cold: bool,
    ) -> str | None:
        """Run a call and return its result as text; None where the call was cancelled before it
        began."""
        args, kwargs = self._read(hosted, order.args)
        if held.batch.model is not None:
            self._load(held.batch.model)
        if position in held.cancelled:  # meanwhile
            return None
        self._context = context
        enter(context)
        if self._stopped or self._batches.cancelled is not None:
            context.cancel(self._batches.cancelled or _STOPPED)
        if cold:
            self._place.write(held.batch.id, position, PHASE_CALLING)
            self._began = time.perf_counter()
        return self._write(hosted, hosted.run(args, kwargs, self._coroutines))

    def _note_unable(self, failure: BaseException) -> None:
        """Note a function that cannot be run here. After a failed import, another process tries
        it."""
        if isinstance(failure, CallRefused) and failure.error.unable:
            self._unable = failure.error.message
            self._leaves = self._leaves or failure.error.kind != NOT_A_TASK

    def _read_seconds(self) -> float:
        return time.perf_counter() - self._began

    def _find(self, name: str) -> HostedFunction:
        if self._functions.knows(name):
            return self._functions.find(name)
        return self._guard.run(self._functions.find, name, sets_up=True)

    def _describe(self, failure: BaseException) -> str:
        """Return the error of a call as text, even where its exception's own code raises."""
        try:
            error = self._guard.run(describe_error, failure)
        except BaseException:  # no memory, or a signal
            error = CallError(kind=type(failure).__name__, message="(its text cannot be read)")
        self._note_device(failure, error)
        return _encode_error(error).decode()

    def _note_device(self, failure: BaseException, error: CallError) -> None:
        """Note whether this process can no longer use its GPU after a call's exception."""
        if not isinstance(failure, HoldfastError | CallRefused):
            self._broken = self._broken or any(w in error.message for w in _BROKEN_DEVICE)

    def _free_model(self, name: str, work: Callable[[], object]) -> None:
        """Run the function that unloads a model. Its exception is logged, and fails no call."""
        before = self._place.phase
        self._place.change_phase(PHASE_UNLOADING)
        failure = self._guard.shield(f"the unloader of model {name}", work)
        self._place.change_phase(before)
        if failure is not None:
            self._describe(failure)

    def _begin_waiting(self, call: str) -> None:
        if not self._forked:
            self._batches.begin_waiting(call)
            self._line.wake()

    def _end_waiting(self, call: str) -> None:
        if not self._forked:
            self._batches.end_waiting(call)
            self._line.wake()

    def _read(self, function: HostedFunction, text: str) -> tuple[list[Any], dict[str, Any]]:
        text = lengthen(text, self._fetch)
        try:
            text = fill_arguments(text, self._fetch)
            return function.codec.decode_args(text)
        except ValidationError as error:
            raise _refuse(error) from None

    def _write(self, function: HostedFunction, value: object) -> str:
        try:
            text = function.codec.encode_result(value)
        except ValidationError as error:
            raise _refuse(error) from None
        return shorten(text, self._keep)

    def _load(self, name: str) -> None:
        if SHELF.name == name:
            return
        try:
            wanted = SHELF.find(name)
        except NotFound as missing:
            raise _refuse(missing) from None
        wanted()

    def _drop_model(self) -> None:
        """Unload the model."""
        if SHELF.name is not None:
            SHELF.drop()
            self._batches.loaded = None

    def _begin_load(self, name: str) -> None:
        self._batches.loaded = None
        self._before_load = self._place.phase
        self._place.change_phase(PHASE_LOADING)

    def _end_load(self, name: str, seconds: float) -> None:
        self._batches.loaded = SHELF.name
        self._batches.models = SHELF.list_limits()
        self._batches.note_load(ModelLoad(name, seconds))
        self._place.change_phase(self._before_load)

    # ---- large values

    def _fetch(self, sha256: str) -> bytes:
        path = self._places.blobs / sha256
        why = self._line.move_blob("fetch", sha256)
        if why is not None:
            raise Unavailable(f"a large value of this call cannot be had: {why}")
        return path.read_bytes()

    def _keep(self, sha256: str, data: bytes) -> None:
        path = self._places.blobs / sha256
        part = path.with_name(f".{sha256}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)
        why = self._line.move_blob("keep", sha256)
        if why is not None:
            raise Unavailable(f"a large result of this call cannot be kept: {why}")


def _end_uncalled(position: int, reason: str) -> CallEnd:
    message = f"it was cancelled before it began: {reason}".rstrip(": ")
    error = CallError(kind="Cancelled", message=message)
    return CallEnd(position, True, 0.0, _encode_error(error).decode())


def _refuse(error: HoldfastError) -> CallRefused:
    """Return the error of a call that is not run, because it would fail in every other attempt,
    too."""
    return CallRefused(CallError(kind=type(error).__name__, message=error.message, invalid=True))


def read_resident_bytes() -> int:
    """Return the resident memory of this process, without the pages of mapped files, which the
    kernel can drop."""
    with open("/proc/self/statm") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    return (resident - of_files) * resource.getpagesize()
