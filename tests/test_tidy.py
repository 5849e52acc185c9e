"""House rules that a machine can check: sizes, names, generated pages, and nothing half-done left lying about."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from holdfast.core.diagrams import render_states_page

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
MODULE_LINES = 500
FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES, f"{name_of(path)} is over {MODULE_LINES} lines: split it by decision"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{name_of(path)}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_names_and_docstrings(path: Path) -> None:
    assert (
        not set(path.stem.split("_")) & {"utils", "util", "helpers", "helper", "manager", "base"}
        or path.stem == "host_manager"
    )
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name_of(path)}: {node.name} has no docstring"


def test_sql_lives_in_the_store() -> None:
    statement = re.compile(r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM)\b", re.I | re.S)
    for path in SOURCES:
        if "store" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n\n" not in node.value:
                assert not statement.search(node.value), f"{name_of(path)}:{node.lineno} holds SQL"


def test_the_states_page_is_generated() -> None:
    page = ROOT / "docs" / "reference" / "states.md"
    assert page.read_text() == render_states_page(), "run `python -m holdfast.core.diagrams > docs/reference/states.md`"


def test_invariants_have_one_home() -> None:
    """An invariant's definition (its name at the start of a line, then two spaces) stands in one module alone."""
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for found in re.finditer(r"^\s*(?:#\s*)?([A-Z]+-\d+)  \S", path.read_text(), re.M):
            homes.setdefault(found[1], []).append(name_of(path))
    assert homes
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_unfinished_marks_have_a_reason() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    for path in SOURCES:
        assert not marks.search(path.read_text()), f"{name_of(path)} has an unfinished mark"
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "type: ignore" in line:
                assert re.search(r"type: ignore\[[\w, -]+\]\s+#\s+\S", line), f"{name_of(path)}:{number}: say why"


def test_no_local_paths_are_tracked() -> None:
    """A page or a test that names the folder it was written in works nowhere else."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    for name in tracked.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in {".py", ".md", ".toml", ".sql", ".service", ""}:
            assert f"{ROOT}/" not in path.read_text(errors="replace"), f"{name} names this checkout's folder"
