"""House rules for the whole of src: rooms stay small, imports run in no circle, a name means one
thing, inner parts stay inner, templates stand in short lines, paths in the documents exist, and
sentences have plain subjects."""

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
WORDS_BUDGET = 5
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
TOP_FOLDERS = ("src", "tests", "docs", "bench", "examples", "release", ".ci", ".github")


def module_name(path: Path) -> str:
    """`src/holdfast/core/ids.py` → `holdfast.core.ids`; a package is named without `__init__`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def test_no_folder_is_crowded() -> None:
    counts = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    crowded = {name_of(p): n for p, n in counts.items() if n > FOLDER_MODULES}
    assert crowded == {}, f"over {FOLDER_MODULES} modules a folder: make rooms in it"


# ---- imports


def find_imports(path: Path) -> set[str]:
    """The modules of the package that a module imports anywhere: when it is loaded, for its types,
    or inside of a function."""
    here = module_name(path)
    package = here if path.name == "__init__.py" else here.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in MODULES else base)
    return {name for name in found if name in MODULES and name != here}


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan 1972), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            cut = stack.index(node)
            found, stack[cut:] = stack[cut:], []
            if len(found) > 1:
                circles.append(sorted(found))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return circles


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert find_circles(graph) == [["d", "e"], ["a", "b", "c"]]


def test_no_imports_run_in_a_circle() -> None:
    """Two modules that name each other's types, or import each other late, are one thing. The root
    only re-exports, when it is asked."""
    graph = {name: find_imports(path) for name, path in MODULES.items()} | {"holdfast": set()}
    assert find_circles(graph) == []


# ---- names


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    doubled = {name: places for name, places in homes.items() if len(places) > 1}
    assert {n: places for n, places in doubled.items() if n not in SAME_NAMES} == {}
    assert SAME_NAMES.keys() <= doubled.keys(), "a reason for what is there no more"


def find_reaches(path: Path) -> Iterator[str]:
    """`file:line value._name` of each private member that is not the module's own class's."""
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        if node.attr.startswith("__") and node.attr.endswith("__"):
            continue
        value = ast.unparse(node.value)
        own = value in ("self", "cls") or value.startswith("super(")
        if not own and f"{value}.{node.attr}" not in FOREIGN_PRIVATES:
            yield f"{name_of(path)}:{node.lineno} {value}.{node.attr}"


def test_inner_parts_stay_inner() -> None:
    reaches = [reach for path in SOURCES for reach in find_reaches(path)]
    assert reaches == [], "make a method that says what happens"


def test_tests_patch_objects() -> None:
    """A patch by a path in a string is found by no rename."""
    calls = {"setattr", "delattr", "patch"}
    likely = re.compile(rf"({'|'.join(calls)})\s*\([\s(]*[a-zA-Z]?[\"']")  # parsing all takes 3 s
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in TESTS
        if likely.search(path.read_text())
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in calls
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    assert found == []


# ---- templates

TEMPLATE_COLUMNS = 120


def test_templates_stand_in_lines_that_a_change_shows() -> None:
    """A template is read and compared line by line, as code is."""
    wide = [
        f"{name_of(path)}:{number}"
        for path in sorted((PACKAGE / "web" / "templates").rglob("*.html"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > TEMPLATE_COLUMNS
    ]
    assert wide == [], f"over {TEMPLATE_COLUMNS} columns: wrap them where the page stays the same"


# ---- documents

QUOTED = re.compile(r"`([^`\s]+)`")
PATH = re.compile(r"[\w.*…-]+(?:/[\w.*…-]+)*/?")


def find_paths(page: Path) -> Iterator[str]:
    """What stands in backticks on a page and looks like a path of this repository or, as in
    `core/endings/drain.py` or `store/postgres/`, of the package."""
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    for words in QUOTED.findall(page.read_text()):
        path = words.split("::")[0]
        first = path.split("/")[0]
        if PATH.fullmatch(path) and "/" in path and (first in TOP_FOLDERS or first in rooms):
            yield path


def exists(path: str) -> bool:
    """True where the repository or the package has it; `*` stands for any part of a name."""
    return any(any(top.glob(path.rstrip("/"))) for top in (ROOT, PACKAGE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_in_documents_are_there(page: Path) -> None:
    assert sorted({p for p in find_paths(page) if not exists(p)}) == []


def test_decisions_have_numbers_of_their_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = Counter(int(page.name[:4]) for page in pages)
    assert [number for number, count in numbers.items() if count > 1] == []
    titles = {page.name: re.match(r"# (\d+)\. ", page.read_text()) for page in pages}
    wrong = [name for name, found in titles.items() if not found or int(found[1]) != int(name[:4])]
    assert wrong == [], "a page's title begins with the number in its name"


def test_a_decision_is_one_page() -> None:
    """The question, the choice, and what would reverse it: a diary hides which of it still holds."""
    pages = {p.name: p.read_text() for p in (ROOT / "docs" / "decisions").glob("*.md")}
    assert [name for name, text in pages.items() if text.count("\n") > 46] == []
    wide = [
        (name, line)
        for name, text in pages.items()
        for line in text.splitlines()
        if len(line) > 120 and not line.startswith("|")
    ]
    assert wide == []


# ---- words


def find_prose(path: Path) -> Iterator[str]:
    """Every docstring and comment of a module, those under fields and constants included."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_migrations_and_decisions_are_numbered_without_a_gap() -> None:
    for folder, first in ((PACKAGE / "store/postgres/migrations", 2), (ROOT / "docs/decisions", 1)):
        numbers = sorted(int(path.name[:4]) for path in folder.glob("[0-9]*"))
        assert numbers == list(range(first, len(numbers) + first)), folder


def test_sentences_have_plain_subjects() -> None:
    counts = {
        name_of(path): n
        for path in SOURCES
        if WORDS.search(path.read_text())  # reading all word by word takes 2 s
        and (n := sum(len(WORDS.findall(text)) for text in find_prose(path)))
    }
    worst = sorted(counts.items(), key=lambda item: -item[1])[:10]
    assert sum(counts.values()) <= WORDS_BUDGET, (
        f"name the thing instead of who, whoever or nobody; most are in {worst}"
    )
