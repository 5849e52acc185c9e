"""What the processes of a host and of a supervised run import: nothing that they do not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.run_seed import SEED_VARIABLE


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("holdfast.agent.__main__", {"typing_extensions"}),
        ("holdfast.agent.containers.runner", {"asyncio", "typing_extensions"}),
        ("holdfast.controller.server", {"jinja2", "yaml"}),
        ("holdfast.agent.guardian.loop", {"asyncio", "typing_extensions"}),
        ("holdfast.agent.probes.worker", {"asyncio", "typing_extensions"}),
        ("holdfast.supervisor.host.host_manager", {"asyncio", "concurrent.futures"}),
        ("holdfast.supervisor.line.bus_process", {"asyncio"}),
        ("holdfast.supervisor.member.messages", {"asyncio", "zmq"}),
        ("holdfast.functions.executor.__main__", {"asyncio"}),
    ],
)
def test_a_process_imports_nothing_that_it_does_not_use(module: str, unused: set[str]) -> None:
    """Each costs tens of milliseconds of every start."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not unused & set(done.stdout.split())


def test_a_rank_of_a_supervised_job_imports_neither_click_nor_extensions(tmp_path: Path) -> None:
    """Nor does the host manager beside the script. The rank dials an address that cannot be one."""
    rank = {"RANK": "1", "WORLD_SIZE": "2", "HOLDFAST_JOB_ID": "job", "HOLDFAST_ATTEMPT": "1"}
    rank |= {SEED_VARIABLE: "00" * 32, "MASTER_ADDR": "no address", "MASTER_PORT": "1"}
    rank |= {"HOLDFAST_WORK": str(tmp_path)}
    code = """
import sys
from holdfast.errors import Unavailable
from holdfast.supervisor.member.__main__ import main
try:
    main(0, "", ["true"])
except Unavailable:
    from holdfast.supervisor.member import first_rank
    print({"asyncio", "click", "typing_extensions"} & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **rank},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "set()\n", done.stderr


def test_a_member_that_is_no_rank_says_so_in_one_line() -> None:
    words = [sys.executable, "-P", "-m", "holdfast.supervisor.member", "0", "", "true"]
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "holdfast: RANK is not set" in done.stderr


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


@pytest.mark.parametrize(
    "use",
    [
        "print(msgspec.inspect.type_info(int).gt)",
        "from msgspec.inspect import *; print(type_info(int).gt)",
        "print(msgspec.json.schema(int).get('minimum'))",
        "from msgspec._json_schema import schema; print(schema(int).get('minimum'))",
        "names = ('msgspec.inspect', 'msgspec._json_schema'); "
        "print(next((n for n in names if hasattr(sys.modules[n], '__file__')), None))",
    ],
)
def test_what_msgspec_seldom_uses_is_imported_at_its_first_use(use: str) -> None:
    code = "import sys; from holdfast.lean import import_msgspec; import_msgspec(); import msgspec"
    words = [sys.executable, "-P", "-c", f"{code}; {use}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr
