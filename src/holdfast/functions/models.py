"""Models: loaded once per executor, found warm by later calls, unloaded when a call needs another
model.

    @holdfast.model("qwen-edit", vram_gb=28, time_limit="20m")
    def qwen():
        return DiffusionPipeline.from_pretrained("Qwen/Qwen-Image-Edit").to("cuda")

    @holdfast.task(model=qwen)
    def edit(image: str, prompt: str) -> str:
        pipe = qwen()               # the loaded pipeline

A process has at most one model loaded. Outside of Holdfast the same code loads it at first use.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.settings.resolve import parse_duration
from holdfast.core.spec import Name
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.calls import ModelLimits

T = TypeVar("T")


class WarmModel(Generic[T]):
    """A model, with the functions that load and unload it. Calling it returns the loaded model."""

    def __init__(
        self, load: Callable[[], T], name: str, vram_gb: float, limits: ModelLimits
    ) -> None:
        self.load, self.name, self.vram_gb, self.limits = load, name, vram_gb, limits
        self.unload: Callable[[T], object] | None = None
        self.__doc__ = load.__doc__

    def __call__(self) -> T:
        """Return the model, loaded now if this process has not loaded it."""
        loaded: T = SHELF.fetch(self)
        return loaded

    def unloader(self, unload: Callable[[T], object]) -> Callable[[T], object]:
        """Decorate the function that frees the resources that the model holds, besides its
        memory."""
        self.unload = unload
        return unload


class ModelShelf:
    """The one model that this process has loaded, and all models that it knows how to load.

    loading: called with a model's name before it is loaded. loaded: called with its name and the
    seconds after that. freeing: runs the function that unloads a model, given the model's name; in
    an executor it never raises.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[str, WarmModel[Any]] = {}
        self._model: WarmModel[Any] | None = None
        self._value: Any = None
        self.loading: Callable[[str], None] = lambda name: None
        self.loaded: Callable[[str, float], None] = lambda name, seconds: None
        self.freeing: Callable[[str, Callable[[], object]], object] = lambda name, work: work()

    def declare(self, declared: WarmModel[Any]) -> None:
        """Add a model that can be loaded. A model of the same name is replaced, because a module
        that runs again declares its models again."""
        self._known[declared.name] = declared

    def list_limits(self) -> dict[str, ModelLimits]:
        """Return the limits of the models that can be loaded, by name."""
        return {name: declared.limits for name, declared in self._known.items()}

    def find(self, name: str) -> WarmModel[Any]:
        """Return a declared model. Raises NotFound."""
        found = self._known.get(name)
        if found is None:
            known = ", ".join(sorted(self._known)) or "none"
            raise NotFound(
                f"no model {name!r} is declared here (declared: {known}); import the module with "
                f'its `@holdfast.model("{name}")` in the module of the function'
            )
        return found

    @property
    def name(self) -> str | None:
        """Return the name of the loaded model, or None."""
        return None if self._model is None else self._model.name

    def fetch(self, wanted: WarmModel[Any]) -> Any:
        """Return the loaded model; load it in place of another where it is not loaded."""
        with self._lock:
            if self._model is not wanted:
                self.drop()
                began = time.monotonic()
                self.loading(wanted.name)
                try:
                    self._value = wanted.load()
                    self._model = wanted
                finally:
                    self.loaded(wanted.name, time.monotonic() - began)
            return self._value

    def drop(self) -> None:
        """Unload the model, and free its memory."""
        with self._lock:
            model, value = self._model, self._value
            self._model = self._value = None
            if model is None:
                return
            if model.unload is not None:
                self.freeing(model.name, functools.partial(model.unload, value))
            del value
            self.freeing(model.name, _free_memory)


def _free_memory() -> None:
    gc.collect()
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available():
        cuda.empty_cache()


SHELF = ModelShelf()


def model(
    name: str,
    *,
    vram_gb: float = 0.0,
    time_limit: float | str | None = None,
    stall: float | str | None = None,
) -> Callable[[Callable[[], T]], WarmModel[T]]:
    """Declare the decorated function as the loader of a model.

    Args:
        name: the name by which tasks refer to the model; calls that wait for it prefer executors
            that have it loaded.
        vram_gb: the memory of one GPU that it needs; a host without such a GPU is not asked to load
            it.
        time_limit: how long its loading may take, "20m" or seconds; 30 minutes by default.
        stall: the least patience with a silent call of this model ("30m"), or "off".

    Raises:
        ValidationError: a name or duration that cannot be used.
    """
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise ValidationError(f"{name!r} cannot be the name of a model: {error}") from None
    limits = ModelLimits(
        load_seconds=_read_seconds("time_limit", time_limit),
        stall_seconds=0.0 if stall == "off" else _read_seconds("stall", stall),
        vram_gb=vram_gb,
    )

    def declare(load: Callable[[], T]) -> WarmModel[T]:
        declared = WarmModel(load, name, vram_gb, limits)
        SHELF.declare(declared)
        return declared

    return declare


def _read_seconds(what: str, given: float | str | None) -> float | None:
    if given is None:
        return None
    try:
        seconds = parse_duration(given) if isinstance(given, str) else float(given)
    except ValueError as error:
        raise ValidationError(f"{what}: {error}", field=what) from None
    if not seconds > 0:
        raise ValidationError(f"{what} must be more than 0, not {given!r}", field=what)
    return seconds
