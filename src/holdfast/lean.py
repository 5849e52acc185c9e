"""Imports that cost less, for processes that run nothing but Holdfast's own code."""

import _thread
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_SELDOM = {"msgspec.inspect": (), "msgspec._json_schema": ("schema", "schema_components")}
"""The modules that msgspec imports and that few programs use, with the functions that msgspec takes
from them. They define forty types, which costs half of importing msgspec."""
_swapping = _thread.allocate_lock()


class _LateModule(ModuleType):
    """Stands for a module until a name of that module is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__"):  # asked for by imports, and by each look for a source
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> ModuleType:
        """Import the module, in the place of this one."""
        with _swapping:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return import_module(self.__name__)

    def defer(self, name: str) -> None:
        """Give this module a function that calls the one of that name in the real module."""
        setattr(self, name, lambda *args, **named: getattr(self.load(), name)(*args, **named))


def import_msgspec() -> None:
    """Import msgspec without `typing_extensions`, which costs half of what starting Python does,
    and import the modules of `_SELDOM` at their first use.

    msgspec takes from `typing_extensions` only what `typing` has in every Python that Holdfast runs
    on.
    """
    if "msgspec" in sys.modules:
        return
    unknown = "typing_extensions" not in sys.modules
    if unknown:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # the import fails then
    for name, functions in _SELDOM.items():
        late = sys.modules[name] = _LateModule(name)
        for function in functions:
            late.defer(function)
    try:
        import msgspec  # noqa: F401  # kept in memory
    finally:
        if unknown:
            del sys.modules["typing_extensions"]


@contextmanager
def collect_nothing() -> Iterator[None]:
    """Import in the block without garbage collections, which take a fifth of the time of a large
    program's imports and find nothing, because modules live to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
