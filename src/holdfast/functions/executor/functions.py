"""Functions by their `module:name`, imported at first use."""

import contextlib
import contextvars
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.functions.codec import CONTEXT, CallCodec
from holdfast.functions.declare import TaskFunction
from holdfast.functions.executor.files import AppFiles
from holdfast.functions.running import context
from holdfast.wire.calls import CallError

if TYPE_CHECKING:
    import asyncio

MAX_TRACEBACK_CHARS = 16_000
MAX_MESSAGE_CHARS = 4_000
NOT_A_TASK = "NotATask"
_OWN = os.path.dirname(__file__)


class CallRefused(Exception):
    """A call that can have no result here. `error` holds the reason."""

    def __init__(self, error: CallError) -> None:
        super().__init__(error.message)
        self.error = error


class CoroutineRunner:
    """Runs coroutines by an `asyncio.Runner` that is made for the first one, because importing
    asyncio is a third of an executor's start, and most executors never run a coroutine."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, and cancel the tasks that it left, as `asyncio.run` does. All
        coroutines run on one loop, because a model may hold objects of that loop."""
        if self._runner is None:
            import asyncio

            self._runner = asyncio.Runner()
        try:
            return self._runner.run(coroutine, context=contextvars.copy_context())
        finally:
            self._clear(self._runner)

    def _clear(self, runner: "asyncio.Runner") -> None:
        """Cancel the tasks that are left. A loop that was closed, or that a pending call would
        stop, is not used again."""
        import asyncio

        loop = runner.get_loop()
        try:
            loop.call_soon(loop.stop)  # a stop that the call asked for may still lie in the loop
            loop.run_forever()
            if left := asyncio.all_tasks(loop):
                for each in left:
                    each.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        except RuntimeError:
            self._runner = None
            with contextlib.suppress(RuntimeError):
                loop.close()

    def close(self) -> None:
        """End the tasks that coroutines left running."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


class HostedFunction:
    """A function as this host has it."""

    def __init__(self, declared: TaskFunction[..., Any], name: str) -> None:
        self.codec = CallCodec(declared.function, name)
        self._function = declared.function

    def run(self, args: list[Any], kwargs: dict[str, Any], runner: CoroutineRunner) -> Any:
        """Run one call to its end."""
        if self.codec.takes_context:
            kwargs[CONTEXT] = context()
        value: Any = self._function(*args, **kwargs)
        return runner.run(value) if type(value) is CoroutineType else value


class FunctionTable:
    """The functions that this executor has run. A refusal stands until the executor is replaced,
    because a module that failed to import is left in an unknown state."""

    def __init__(self, files: AppFiles) -> None:
        self._found: dict[str, HostedFunction | CallRefused] = {}
        self._files = files

    def knows(self, name: str) -> bool:
        """Return whether the function was looked up before."""
        return name in self._found

    def find(self, name: str) -> HostedFunction:
        """Return a function. Raises CallRefused."""
        found = self._found.get(name)
        if found is None:
            try:
                found = self._import_function(name)
                self._files.forget_failure()
            except CallRefused as refused:
                found = refused
            self._found[name] = found
        if isinstance(found, CallRefused):
            raise found
        return found

    def _import_function(self, name: str) -> HostedFunction:
        module_name, _, path = name.partition(":")
        host = os.environ.get("HOLDFAST_HOST_NAME") or socket.gethostname()
        try:
            value: Any = importlib.import_module(module_name)
        except BaseException as error:
            self._files.note_failure(error)
            if isinstance(error, KeyboardInterrupt | MemoryError):
                raise
            message = f"module {module_name} cannot be imported on host {host}: {say_why(error)}"
            kind = _say(_name_kind, error)
            raise _refuse(kind, message, describe_trace(error), unable=True) from None
        for part in path.split("."):
            value = getattr(value, part, None)
        if not isinstance(value, TaskFunction):
            what = "there is none" if value is None else f"it is a {type(value).__name__}"
            raise _refuse(
                NOT_A_TASK,
                f"module {module_name} on host {host} has no task {path!r}: {what}; is its version "
                "another than the caller's, or does it lack @holdfast.task?",
                unable=True,
            )
        try:
            return HostedFunction(value, name)
        except HoldfastError as error:
            raise _refuse(type(error).__name__, str(error)) from None


def say_why(error: BaseException) -> str:
    """Return the last line of an import's traceback; for a missing module also the folders that
    were searched."""
    why = f"{_say(_name_kind, error)}: {_say(str, error)}"[:MAX_MESSAGE_CHARS]
    if not isinstance(error, ModuleNotFoundError):
        return why
    where = os.environ.get("HOLDFAST_APP_PATH") or os.getcwd()
    return f"{why} (looked in {where} and in the packages of {sys.executable})"


def _refuse(kind: str, message: str, trace: str = "", *, unable: bool = False) -> CallRefused:
    text = message[:MAX_MESSAGE_CHARS]
    error = CallError(kind=kind, message=text, traceback=trace, invalid=True, unable=unable)
    return CallRefused(error)


def describe_error(error: BaseException) -> CallError:
    """Return an exception that left a function as the error of its call."""
    if isinstance(error, CallRefused):
        return error.error
    return CallError(
        kind=_say(_name_kind, error),
        message=_say(str, error)[:MAX_MESSAGE_CHARS],
        traceback=describe_trace(error),
    )


def _name_kind(error: BaseException) -> str:
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name.removeprefix("builtins.")


def _say(read: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return read(error).encode("utf-8", "replace").decode()
    except BaseException:  # a `__str__` of the user's own
        return "(its text cannot be read)"


def describe_trace(error: BaseException) -> str:
    """Return a traceback without the executor's own frames; only its end where it is long."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next

    def read(error: BaseException) -> str:
        return "".join(traceback.format_exception(type(error), error, trace))

    return _say(read, error)[-MAX_TRACEBACK_CHARS:]
