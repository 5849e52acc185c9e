"""What the processes of a host and of a supervised run import: nothing that they do not use."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("holdfast.agent.__main__", {"typing_extensions"}),
        ("holdfast.agent.containers.runner", {"asyncio", "typing_extensions"}),
        ("holdfast.agent.guardian.loop", {"asyncio", "typing_extensions"}),
        ("holdfast.agent.probes.worker", {"asyncio", "typing_extensions"}),
        ("holdfast.supervisor.host.host_manager", {"asyncio", "concurrent.futures"}),
        ("holdfast.supervisor.line.bus_process", {"asyncio"}),
        ("holdfast.supervisor.member.messages", {"asyncio", "zmq"}),
        ("holdfast.tasks.executor.__main__", {"asyncio"}),
    ],
)
def test_a_process_imports_nothing_that_it_does_not_use(module: str, unused: set[str]) -> None:
    """Each costs tens of milliseconds of every start."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not unused & set(done.stdout.split())


def test_msgspec_works_without_the_extensions_and_they_can_be_imported_after_it() -> None:
    code = """
from holdfast.lean import import_msgspec
import_msgspec()
from typing import Annotated, NotRequired, TypedDict
import msgspec
class Row(TypedDict):
    name: NotRequired[Annotated[str, msgspec.Meta(max_length=3)]]
assert msgspec.convert({}, Row) == {}
try:
    msgspec.convert({"name": "long"}, Row)
except msgspec.ValidationError:
    import typing_extensions
    print(typing_extensions.__name__)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "typing_extensions\n", done.stderr
