"""Calls choose and avoid hosts by labels: two real hosts that list the same app."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.functions.connection import CONNECTION
from holdfast.functions.failures import CallFailed
from tests.system.cluster import Cluster
from tests.waits import stretch, wait_until

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # hosts import the app by the same name

import pages  # noqa: E402  found by the line above

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def racks(shared: Cluster) -> Iterator[Cluster]:
    """A host in each of two racks."""
    for name in ("b11", "b12"):
        shared.add_host(name, labels={"rack": name}, apps=["pages"], app_path=str(HERE))
    CONNECTION.use(shared.client)
    yield shared
    CONNECTION.use(None)


@pytest.mark.parametrize(("wanted", "name"), [("b11", "b11"), ("!b11", "b12"), ("b12", "b12")])
def test_a_call_runs_where_its_labels_say(racks: Cluster, wanted: str, name: str) -> None:
    chosen = pages.locate.options(host_labels={"rack": wanted})
    assert {chosen.submit().result(timeout=stretch(60)) for _ in range(3)} == {name}


def test_a_node_of_a_workflow_avoids_a_host(racks: Cluster) -> None:
    flow = holdfast.Workflow("racks")
    node = flow.add(pages.locate, options={"host_labels": {"rack": "!b12"}})
    run = flow.submit(client=racks.client)
    run.wait(timeout=stretch(60))
    assert run.result(node) == "b11"


def test_a_label_that_no_host_has_is_named(racks: Cluster) -> None:
    handle = pages.locate.options(host_labels={"rack": "b13"}).submit()
    said = "- no live host that lists app pages has the label rack=b13"
    wait_until(lambda: said in racks.cli("calls", "why", handle.id).stdout.decode(), 20)
    handle.cancel()


def test_a_host_that_cannot_run_the_app_fails_no_call(racks: Cluster, tmp_path: Path) -> None:
    """ABLE-1…4: the app is taken off it, `hosts` and `why` say so, and it comes back when mended."""
    (tmp_path / "pages.py").write_text("import a_package_that_is_missing\n")
    racks.add_host(
        "b10", labels={"rack": "b10"}, cpu_slots=4, apps=["pages"], app_path=str(tmp_path)
    )
    anywhere = pages.locate.options(host_labels={"rack": "!b12"}, retry=0)
    handles = [anywhere.submit() for _ in range(40)]
    assert {handle.result(timeout=stretch(60)) for handle in handles} == {"b11"}
    only = pages.locate.options(host_labels={"rack": "b10"}, retry=0)
    for _ in range(3):
        with pytest.raises(CallFailed) as caught:
            only.submit().result(timeout=stretch(60))
        assert "ModuleNotFoundError: No module named 'a_package_that_is_missing'" in str(
            caught.value
        )
        if "no calls of app pages" in racks.cli("hosts").stdout.decode():
            break
    off = "cannot run it: module pages cannot be imported on host b10"
    handle = only.submit()
    assert off in racks.cli("calls", "why", handle.id).stdout.decode()
    assert "no calls of app pages" in racks.cli("hosts").stdout.decode()
    (tmp_path / "pages.py").write_text((HERE / "pages.py").read_text())
    assert handle.result(timeout=stretch(60)) == "b10"
