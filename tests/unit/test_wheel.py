"""The wheel holds the product alone: what only tests, benchmarks or documents use stands beside them."""

from __future__ import annotations

import re

from tests.unit.sources import ROOT, name_of
from tests.unit.test_house import MODULES, find_imports

DOORS = {
    f"holdfast.integrations.{name}": "users' programs import it"
    for name in ("accelerate", "diffusers", "lightning", "ray", "torch", "transformers")
}  # fmt: skip
"""Module → why it is in the wheel though no other module imports or starts it."""


def test_each_module_is_imported_or_started_by_another() -> None:
    imported = {name for path in MODULES.values() for name in find_imports(path)}
    texts = {name: path.read_text() for name, path in MODULES.items()}
    alone = {
        name
        for name, path in MODULES.items()
        if name not in imported
        and path.name not in ("__init__.py", "__main__.py")
        and not any(_names(text, name) for other, text in texts.items() if other != name)
    }
    assert alone == DOORS.keys(), "move it below tests/ or bench/, or say who opens this door"


def _names(text: str, module: str) -> bool:
    """Return whether a module's text names another: by its whole name, as the command line's table
    does (`"jobs.run"`), or by its file beside it."""
    command = f'("{module.removeprefix("holdfast.cli.")}"'
    return module in text or command in text or f'"{module.rpartition(".")[2]}.py"' in text


def test_no_module_imports_what_stands_beside_the_wheel() -> None:
    found = [
        name_of(path)
        for path in MODULES.values()
        if re.search(r"^\s*(?:from|import) (?:tests|bench|examples)\b", path.read_text(), re.M)
    ]
    assert found == []


def test_the_wheel_is_made_of_the_package_alone() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[tool.hatch.build.targets.wheel]\npackages = ["src/holdfast"]\n' in text
