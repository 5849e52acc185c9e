"""Results over 256 KiB between the nodes of a run, with `holdfast up --app`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.up.up_rig import Rig

pytestmark = pytest.mark.slow

APP = """
import holdfast

KIB = 1024

@holdfast.task
def make(kib: int) -> dict[str, list[str]]:
    return {"parts": [f"{n:02}" * 5 * KIB for n in range(kib // 10)]}

@holdfast.task
def widen(part: str, whole: dict[str, list[str]]) -> list[str]:
    return [part] * (30 if part[0] == "1" else 1) + [str(len(whole["parts"]))]

@holdfast.task
def total(lists: list[list[str]], first: str, *, n: int = 0) -> list[int]:
    return [len(each) for each in lists] + [len(first)]

@holdfast.task
def echo(lists: list[str]) -> int:
    return len(lists)

@holdfast.task
def count(numbers: list[int]) -> int:
    return sum(numbers)
"""

FLOW = """
import holdfast
from bigtasks import count, echo, make, total, widen

wf = holdfast.Workflow("large")
made = wf.add(make, 400)
wide = wf.map(widen, made.out["parts"], made.out)   # the list is known by a large result alone
sums = wf.add(total, wide.out, made.out["parts"][7])
each = wf.map("bigtasks:echo", wide.out, item_name="lists")   # items of which some are large
job = wf.job("look", argv=["sh", "-c", 'test ${#HOLDFAST_INPUTS} = 10252 || exit 9'],
             inputs={"seven": made.out["parts"][7]})
skip = wf.add(count, [1], name="skipped", skip_if=made.out)
wrong = wf.add("bigtasks:count", name="wrong", numbers=made.out["parts"],
               after=[sums, each, job, skip])
run = wf.submit()
view = run.wait(120)
print(view.state, view.failed_node, view.reason)
print({node.name: (str(node.state), node.reason) for node in run.nodes()})
print(len(run.result(made)["parts"]), len(run.result(wide)[1]))
lengths = run.result(sums)
print(len(lengths), lengths[0], lengths[10], lengths[-1], sum(run.result(each)))
"""


@pytest.fixture
def rig(tmp_path: Path, migrated_cluster: Path) -> Iterator[Rig]:
    (tmp_path / "bigtasks.py").write_text(APP)
    (tmp_path / "flow.py").write_text(FLOW)
    made = Rig(tmp_path, "--port", "0", "--app", "bigtasks", cluster=migrated_cluster)
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def test_large_results_are_arguments_items_and_conditions(rig: Rig) -> None:
    end, states, sizes, lengths = rig.run_python("flow.py").splitlines()
    assert end.startswith("failed wrong node wrong failed: "), end
    assert "argument 'numbers[...]'" in end or "argument 'numbers" in end
    assert "'skipped': ('skipped'" in states
    for name in ("make", "widen", "total", "echo", "look"):
        assert f"'{name}': ('succeeded'" in states, states
    assert sizes == "40 2"
    # 40 lists of 2, but ten of 31: the parts that begin with 1
    assert lengths == f"41 2 31 10240 {30 * 2 + 10 * 31}"
