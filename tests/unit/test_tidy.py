"""House rules that a machine can check: sizes, names, generated pages, and nothing half-done left
lying about."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.states import render_states_page
from tests.unit.sources import PACKAGE, ROOT, SOURCES, TESTS, name_of, parse

MODULE_LINES = 500
FUNCTION_LINES = 60


def find_lengths(path: Path) -> Iterator[str]:
    """What is too long in a module."""
    if path.read_text().count("\n") > MODULE_LINES:
        yield f"{name_of(path)} is over {MODULE_LINES} lines: split it by decision"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{name_of(path)}: {node.name} has {length} lines"


def find_nameless(path: Path) -> Iterator[str]:
    """What a module does not say of itself: by its name, or by a docstring."""
    vague = {"utils", "util", "helpers", "helper", "manager", "base"}
    if set(path.stem.split("_")) & vague and path.stem != "host_manager":
        yield f"{name_of(path)} has a name that says nothing"
    tree = parse(path)
    if not ast.get_docstring(tree):
        yield f"{name_of(path)} has no docstring"
    for node in tree.body:
        public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if public and not node.name.startswith("_") and not ast.get_docstring(node):
            yield f"{name_of(path)}: {node.name} has no docstring"


# One test for all modules: with one for each, four workers would collect 1,400 more.
def test_modules_and_functions_stay_short() -> None:
    assert [words for path in SOURCES for words in find_lengths(path)] == []


def test_names_and_docstrings() -> None:
    assert [words for path in SOURCES for words in find_nameless(path)] == []


def test_sql_lives_in_the_store() -> None:
    statement = re.compile(
        r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM)\b", re.I | re.S
    )
    for path in SOURCES:
        if "store" in path.parts:
            continue
        for node in ast.walk(parse(path)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and "\n\n" not in node.value
            ):
                assert not statement.search(node.value), f"{name_of(path)}:{node.lineno} holds SQL"


def test_the_states_page_is_generated() -> None:
    page = ROOT / "docs" / "reference" / "states.md"
    assert page.read_text() == render_states_page(), (
        "run `python -m tests.reference.states > docs/reference/states.md`"
    )


# An invariant's definition: its name at the start of a line, then two spaces or more.
DEFINITION = re.compile(r"^\s*(?:#\s*)?([A-Z]+(?:-[A-Z]+)*)-(\d+)  +\S", re.M)
CITATION = re.compile(r"\b([A-Z]+(?:-[A-Z]+)*)-(\d+)\b(?:…(\d+)\b)?")


def find_definitions() -> dict[tuple[str, int], set[str]]:
    """(family, number) of every invariant → the modules that define it, as paths below
    `src/holdfast`."""
    homes: dict[tuple[str, int], set[str]] = {}
    for path in SOURCES:
        for family, number in DEFINITION.findall(path.read_text()):
            homes.setdefault((family, int(number)), set()).add(str(path.relative_to(PACKAGE)))
    assert homes
    return homes


def find_citations(text: str, families: set[str]) -> set[tuple[str, int]]:
    """Every invariant that a text names; of a range ("GUARD-1…8") each."""
    return {
        (family, number)
        for family, first, last in CITATION.findall(text)
        if family in families
        for number in range(int(first), int(last or first) + 1)
    }


def test_invariants_have_one_home() -> None:
    assert {name: places for name, places in find_definitions().items() if len(places) > 1} == {}


def test_an_invariant_has_a_name_where_another_file_relies_on_it() -> None:
    """Names that no other file cites are more than a reader holds: there the sentence stands alone."""
    homes = find_definitions()
    families = {family for family, _ in homes}
    pages = [*SOURCES, *PACKAGE.rglob("*.sql"), *PACKAGE.rglob("*.c")]
    pages += [*(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    cited: dict[tuple[str, int], set[Path]] = {}
    for page in [*pages, ROOT / "ARCHITECTURE.md"]:
        for name in find_citations(page.read_text(), families):
            cited.setdefault(name, set()).add(page)
    alone = sorted(f"{family}-{n}" for family, n in homes if len(cited[family, n]) < 2)
    assert alone == [], "give these sentences no name, or cite the name in the test that holds them"


def test_invariants_that_are_named_are_there() -> None:
    """A name that leads nowhere, or to another's rule, tells a reader less than no name."""
    homes = find_definitions()
    families = {family for family, _ in homes}
    pages = [
        *SOURCES,
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "ARCHITECTURE.md",
        ROOT / "STYLE.md",
    ]
    unknown = {
        name_of(page): find_citations(page.read_text(), families) - homes.keys() for page in pages
    }
    assert {page: names for page, names in unknown.items() if names} == {}


def test_the_map_of_invariants_is_true() -> None:
    """ARCHITECTURE.md's table: what stands in its first column is defined in the places of its
    second."""
    homes = find_definitions()
    families = {family for family, _ in homes}
    rows = re.findall(
        r"^\| ([A-Z][^|]*?) \| ([^|]*`[^|]*?) \| [^|]* \|$",
        (ROOT / "ARCHITECTURE.md").read_text(),
        re.M,
    )
    assert 20 < len(rows) <= 40, "the map shows what a newcomer must know, and no more"
    for names, places in rows:
        wanted = find_citations(names, families)
        wanted |= {name for name in homes if re.search(rf"(?<![A-Z-]){name[0]}(?!-)\b", names)}
        assert wanted, f"{names}: no invariant is called so"
        patterns = [
            re.escape(place).replace(r"\*", "[^/]*") for place in re.findall(r"`([^`]+)`", places)
        ]
        for name in sorted(wanted):
            homes_of = homes[name]
            assert any(re.match(pattern, home) for pattern in patterns for home in homes_of), (
                f"{name} is in {homes_of}, not in {places}"
            )


def test_unfinished_marks_have_a_reason() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    for path in SOURCES:
        assert not marks.search(path.read_text()), f"{name_of(path)} has an unfinished mark"
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "type: ignore" in line:
                assert re.search(r"type: ignore\[[\w, -]+\]\s+#\s+\S", line), (
                    f"{name_of(path)}:{number}: say why"
                )


HANG_SECONDS = 900  # pytest's own limit, in pyproject.toml


def find_fixed_limits(path: Path) -> Iterator[str]:
    """Limits on real time in a test file that do not grow with the load."""
    if not re.search(r"subprocess\.run\(.*timeout=|mark\.timeout\(", path.read_text(), re.S):
        return
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Call):
            continue
        where, called = f"{name_of(path)}:{node.lineno}", ast.unparse(node.func)
        if called == "subprocess.run" and any(word.arg == "timeout" for word in node.keywords):
            yield f"{where}: a program is run with `run_patiently`"
        if called == "pytest.mark.timeout" and is_below(node.args[0], HANG_SECONDS):
            yield f"{where}: a test that hangs is found after {HANG_SECONDS} s, as all are"


def is_below(node: ast.expr, number: int) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < number


def test_no_verdict_is_a_matter_of_the_load() -> None:
    """Tests on a GPU are run one at a time, and alone."""
    files = [path for path in TESTS if {"tests", "gpu"} & set(path.parts) == {"tests"}]
    assert [words for path in files for words in find_fixed_limits(path)] == []


def test_no_local_paths_are_tracked() -> None:
    """A page or a test that names the folder it was written in works nowhere else."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    for name in tracked.stdout.decode().split("\0"):
        path = ROOT / name
        if (
            name
            and path.is_file()
            and path.suffix in {".py", ".md", ".toml", ".sql", ".service", ""}
        ):
            assert f"{ROOT}/" not in path.read_text(errors="replace"), (
                f"{name} names this checkout's folder"
            )
