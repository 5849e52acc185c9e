"""Every block of the guide for those who come from elsewhere is run as it stands; only the numbers
are smaller."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.supervisor
from holdfast.supervisor import Context
from tests.system.supervisor.rig import PATIENCE, local_context, python

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "coming-from.md"
FEWER = [
    ("command, 8", "command, 2"),
    ("ctx, 16, spares=2, gpus=8", "ctx, 2, spares=1"),
    ("=60", "=1, first_seconds=5"),
]
# Rank 1 fails at its first starts, so many of them as the command says, and where it says.
WORKER = """
import os, sys, time
where = os.environ.get("REPLICA_GROUP_ID", "0")
with open("starts", "a") as file: file.write(f"{where}-{os.environ['RANK']}\\n")
print("here is rank", os.environ["RANK"], flush=True)
count = open("starts").read().count("0-1\\n")
if where + os.environ["RANK"] == "01" and count <= int(sys.argv[1]): sys.exit(3)
time.sleep(float(sys.argv[2]))
"""


class Blocks:
    """The blocks of the page, each known by words in it."""

    def __init__(self, ctx: Context) -> None:
        found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
        self.left = [textwrap.dedent(block) for block in found]
        public = {name: getattr(holdfast.supervisor, name) for name in holdfast.supervisor.__all__}
        self.names: dict[str, Any] = {**public, "ctx": ctx}

    def run(self, words: str) -> None:
        (block,) = [block for block in self.left if words in block]
        self.left.remove(block)
        for number, fewer in FEWER:
            block = block.replace(number, fewer)
        exec(compile(block, words, "exec"), self.names)  # noqa: S102  the page is our own


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.chdir(tmp_path)
    made = local_context(log_format=str(tmp_path / "{name}.txt"))
    yield made
    made.shutdown()


def test_every_block_runs(
    local: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = Blocks(local)
    names = blocks.names
    names["hosts"] = hosts = local.request_hosts(2)
    local.start_local_managers(5)
    starts = tmp_path / "starts"

    names["group"] = group = local.create_process_group(hosts, python(WORKER, "9", "6000"), 2)
    for process in group:
        process.pid().result(PATIENCE)
    blocks.run("group.signal()")
    codes = [process.returncode().result(PATIENCE) for process in group]
    assert codes == [-15, 3, -15, -15]

    starts.unlink()
    names["command"] = python(WORKER, "2", "0")
    blocks.run("restarts = 0")
    assert names["restarts"] == 2

    starts.unlink()
    names |= {"lighthouse": "http://lighthouse", "command": python(WORKER, "1", "4")}
    blocks.run("start_replica")
    begun = Counter(starts.read_text().split())
    assert (begun["0-1"], begun["1-0"], begun["1-1"]) == (2, 1, 1), "the other replica ran on"

    starts.unlink()
    names["command"] = python(WORKER, "0", "6000")
    blocks.run("choose_hosts")
    assert names["failure"].hung
    said = capsys.readouterr().out
    assert "train0| here is rank 0" in said
    assert "train1|" not in said
    assert "4 ranks (0-3) are in <module> (<string>:8)" in said
    assert blocks.left == []
