"""The repository's own files, for the tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")])


def name_of(path: Path) -> str:
    """A path below the repository's root."""
    return str(path.relative_to(ROOT))


@cache
def parse(path: Path) -> ast.Module:
    """A file's syntax tree; it is read once."""
    return ast.parse(path.read_text())
