"""`@holdfast.task`: make a plain function into a function whose calls can run on the hosts of a
cluster."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import msgspec

from holdfast.client.specs import read_function_fields
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.texts import shorten
from holdfast.core.calls.values import FunctionSpec
from holdfast.errors import ValidationError
from holdfast.functions.code import bring_code
from holdfast.functions.codec import CONTEXT, CallCodec
from holdfast.functions.connection import CONNECTION
from holdfast.functions.handles import CallHandle
from holdfast.functions.mapping import MapResults
from holdfast.functions.models import SHELF, WarmModel
from holdfast.functions.running import context
from holdfast.functions.submitting import OpenSet
from holdfast.wire.mismatch import locate, say_mismatch

MAX_PRIORITY = 100
P = ParamSpec("P")
R = TypeVar("R")


class TaskFunction(Generic[P, R]):
    """A function and how its calls are run. Calling it runs it here, in place."""

    def __init__(self, function: Callable[P, R], given: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._given = dict(given)
        self.workdir = _read_workdir(given)
        self._takes_context = CONTEXT in inspect.signature(function).parameters
        self._fields = _read_fields(given)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._takes_context and CONTEXT not in kwargs:
            kwargs[CONTEXT] = context()
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.function.__module__}:{self.function.__qualname__}>"

    @functools.cached_property
    def name(self) -> str:
        """Return the function's `module:name`, by which hosts import it. Raises ValidationError
        where they cannot."""
        return find_name(self.function)

    @functools.cached_property
    def codec(self) -> CallCodec:
        """Return the codec of the function's calls. Raises ValidationError for an annotation
        without JSON."""
        return CallCodec(self.function, self.name)

    @functools.cached_property
    def spec(self) -> FunctionSpec:
        """Return how the function's calls are run. Raises ValidationError."""
        fields = {"function": self.name, **self._fields}
        wanted = fields.get("model")
        if isinstance(wanted, str) and "vram_gb" not in fields and wanted in SHELF.list_limits():
            fields["vram_gb"] = SHELF.find(wanted).vram_gb
        if fields.get("vram_gb") and "gpus" not in fields:
            fields["gpus"] = 1
        try:
            return msgspec.convert(fields, FunctionSpec)
        except msgspec.ValidationError as error:
            said, field = locate(error, fields, FunctionSpec)
            sentence = f"@holdfast.task of {self.name}: {field}: {say_mismatch(said)}"
            raise ValidationError(sentence, field=field or None) from None

    @property
    def _wanted(self) -> FunctionSpec:
        """Return how calls submitted here are run. The calls that a running call submits go before
        calls like itself, because it may wait for them."""
        spec, caller = bring_code(self.spec, self.workdir), context()
        if not caller.hosted or spec.priority > caller.priority:
            return spec
        return msgspec.structs.replace(spec, priority=min(MAX_PRIORITY, caller.priority + 1))

    @functools.cached_property
    def _singles(self) -> dict[int, OpenSet]:
        return {}

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> CallHandle[R]:
        """Submit one call, which is on record when this returns.

        Raises:
            ValidationError: an argument does not fit; nothing was sent.
        """
        text = shorten(self.codec.encode_args(args, kwargs), CONNECTION.keep)
        spec = self._wanted
        known = self._singles
        singles = known.get(spec.priority) or known.setdefault(spec.priority, OpenSet(spec))
        set_id, index = singles.submit(text)
        return CallHandle(self.codec, set_id, index)

    def map(
        self, *items: Iterable[Any], errors: Literal["raise", "return"] = "raise"
    ) -> MapResults[R]:
        """Submit a call for each item, or each tuple of items of several iterables; return the
        results in the order of the items.

        errors: "raise" to raise a failed item's CallFailed when its turn comes, "return" to yield
        the exception in the item's place.
        """
        encode = self.codec.encode_args
        texts = (shorten(encode(args, {}), CONNECTION.keep) for args in zip(*items, strict=False))
        return MapResults(self._wanted, self.codec, texts, errors)

    def options(self, **changes: Any) -> TaskFunction[P, R]:
        """Return the same function with other options: `edit.options(priority=90).submit(…)`."""
        return TaskFunction(self.function, {**self._given, **changes})


def _read_workdir(given: Mapping[str, Any]) -> str | None:
    folder = given.get("workdir")
    return None if folder is None else os.path.abspath(os.fspath(folder))


def _read_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as fields of a `FunctionSpec`. Raises ValidationError."""
    given = {name: value for name, value in given.items() if name != "workdir"}
    model = given.get("model")
    if not isinstance(model, WarmModel):
        return read_function_fields(given)
    fields = read_function_fields({**given, "model": model.name})
    fields.setdefault("vram_gb", model.vram_gb)
    return fields


def find_name(function: Callable[..., Any]) -> str:
    """Return the `module:name` of a function. Raises ValidationError where no import finds it."""
    module, name = function.__module__, function.__qualname__
    if "<" in name:
        raise ValidationError(
            f"{name} cannot be imported by a host, because it is inside a function; declare it at "
            "the top of a module"
        )
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
        elif file is not None:
            module = Path(file).stem
        else:
            raise ValidationError(
                f"{name} cannot be imported by a host, because it is defined in a notebook or at "
                "a prompt; move it into a module (a file) and import it"
            )
    return f"{module}:{name}"


@overload
def task(function: Callable[P, R], /) -> TaskFunction[P, R]:
    """Declare a function without options."""


@overload
def task(
    *,
    queue: str | None = None,
    model: str | WarmModel[Any] | None = None,
    retry: int | Mapping[str, Any] | None = None,
    time_limit: float | str | None = None,
    stall_timeout: float | str | None = None,
    silence_limit: float | str | None = None,
    first_beat_timeout: float | str | None = None,
    watchdog_cap: int | None = None,
    gpus: int | None = None,
    cpus: int | None = None,
    memory: int | str | None = None,
    host_labels: Mapping[str, Any] | None = None,
    vram_gb: float | None = None,
    project: str | None = None,
    priority: int | None = None,
    app: str | None = None,
    workdir: str | os.PathLike[str] | None = None,
    code: CodeRef | None = None,
    cold_wait: float | str | None = None,
) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
    """Declare a function with options."""


def task(function: Any = None, /, **options: Any) -> Any:
    """Declare that calls of the decorated function can run on the hosts of a cluster.

    Args:
        queue, project, priority: the same settings as a job's.
        model: the `@holdfast.model` that the function uses; executors that have it loaded are
            preferred.
        retry: how many times a call is retried, or a policy's fields.
        time_limit, stall_timeout, silence_limit, first_beat_timeout: limits of one call, "2m" or
            seconds, or "off"; the time in which its model is loaded does not count.
        gpus, cpus, memory: the resources of the process that runs calls.
        host_labels: the labels that a host must have; {"rack": "!b12"} avoids hosts of that rack.
        app: the app that a host must list to run the function; by default the first part of its
            module's name.
        workdir: the folder with the function's module, which is sent with the first call, so that
            any host can run the calls as the code is then; no host need list the app.
        code: what `Client.send_code` returned, instead of `workdir`.
        cold_wait: how long a call may wait while executors prefer calls of the model they have
            loaded.

    Raises:
        ValidationError: an option that cannot be used.
    """
    if function is not None:
        return TaskFunction(function, {})
    return lambda decorated: TaskFunction(decorated, options)
