"""House rules for the whole of src: rooms stay small, imports run in no circle, a name means one
thing, inner parts stay inner, paths in the documents exist, and sentences have plain subjects."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sources import PACKAGE, ROOT, SOURCES, TESTS, name_of, parse

FOLDER_MODULES = 15

SAME_NAMES: dict[str, str] = {}
"""Class name → why two modules may each have one."""

FOREIGN_PRIVATES = {"os._exit": "the standard library's own name for an exit without clean-up"}
"""`value._name` → why another's private member is used."""

WORDS = re.compile(r"\b(who|whom|whoever|nobody|whatever)\b", re.I)
WORDS_BUDGET = 18
"""So many of `WORDS` may stand in docstrings and comments of src; the number only falls."""

PAGES = sorted(
    [
        ROOT / "ARCHITECTURE.md",
        ROOT / "README.md",
        ROOT / "STYLE.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "tests" / "README.md",
    ]
)
TOP_FOLDERS = ("src", "tests", "docs", "bench", "examples", ".ci")


def module_name(path: Path) -> str:
    """`src/holdfast/core/ids.py` → `holdfast.core.ids`; a package is named without `__init__`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def test_no_folder_is_crowded() -> None:
    counts = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    crowded = {name_of(p): n for p, n in counts.items() if n > FOLDER_MODULES}
    worst = sorted(counts.items(), key=lambda item: -item[1])[:10]
    assert sum(counts.values()) <= WORDS_BUDGET, (
        f"name the thing instead of who, whoever or nobody; most are in {worst}"
    )
