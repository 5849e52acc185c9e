"""A module that is imported when it is first used, because most commands need few of them."""

import importlib
from typing import Any


class LateModule:
    """Stands for a module, and imports it when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
