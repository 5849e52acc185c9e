"""The guide and the script for people who come from a scheduler name commands that there are."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.cli.commands import COMMANDS

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "coming-from-a-scheduler.md"
TO_COME = {"cp", "port-forward"}
"""Commands of steps that are left out as long as a version lacks them."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_hour", ROOT / "examples" / "first_hour.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["first_hour"] = module
    spec.loader.exec_module(module)
    return module


def find_commands(text: str) -> set[str]:
    return set(re.findall(r"\bholdfast (?:-c \w+ )?([a-z][a-z-]+)\b", text))


def test_the_guides_table_names_commands_that_are_there() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("|")]
    quoted = " ".join(re.findall(r"`([^`]+)`", " ".join(rows)))
    assert find_commands(quoted) - COMMANDS.keys() == set()


def test_the_script_types_commands_that_are_there_or_says_that_they_are_needed(
    script: ModuleType,
) -> None:
    assert {session.origin for session in script.SESSIONS} == {
        "Slurm", "SkyPilot", "dstack", "Modal", "Kubernetes",
    }  # fmt: skip
    for session in script.SESSIONS:
        assert session.steps[0] == script.Step(session.steps[0].there, script.LOGIN.here)
        for step in session.steps:
            words = {need.split(" ")[0] for need in step.needs}
            assert find_commands(step.here) - words <= COMMANDS.keys(), step
            assert words <= COMMANDS.keys() | TO_COME, step


def test_a_page_says_what_did_not_end_as_it_should(script: ModuleType) -> None:
    step, absent = (
        script.Step("was", "holdfast jobs"),
        script.Step("was", "holdfast cp a b", ("cp",)),
    )
    session = script.Session("Slurm", (step,), {})
    good = script.draw(session, [script.Told(step, 0.5, 0, "fine\n")], [absent])
    assert "NOT AS" not in good
    assert "[0.50 s]" in good
    assert "- `was` (cp)" in good
    assert "exit code 3: NOT AS" in script.draw(session, [script.Told(step, 0.5, 3, "")], [])
