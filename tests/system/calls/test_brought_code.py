"""Calls whose code goes along: any host runs them, and each call set keeps the code it was made
with."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.workflows.values import RunState
from holdfast.functions.connection import CONNECTION
from tests.system.cluster import Cluster
from tests.waits import stretch

pytestmark = pytest.mark.slow

APP = """
import os
import holdfast
from helper import WORD

@holdfast.task(workdir={folder!r}, retry=0)
def tell(path: str = "") -> str:
    if path and not os.path.exists(path):
        raise RuntimeError("not yet")
    return WORD

@holdfast.task(retry=0)
def hand_on() -> str:
    return tell.submit().result(timeout=60)
"""


@pytest.fixture(scope="module")
def bare(shared: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose host lists no app."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        shared.add_host("bare", cpu_slots=3)
        CONNECTION.use(shared.client)
        yield shared
        CONNECTION.use(None)


def write_app(folder: Path, word: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "brought_app.py").write_text(APP.format(folder=str(folder)))
    (folder / "helper.py").write_text(f"WORD = {word!r}\n")


def test_a_changed_file_gives_the_changed_function_and_an_old_set_keeps_its_own(
    bare: Cluster, tmp_path: Path
) -> None:
    folder, late = tmp_path / "app", tmp_path / "late"
    write_app(folder, "first")
    words = ["calls", "call", "brought_app:tell", "--workdir", str(folder), "--no-import"]

    def call(*more: str) -> Any:
        done = bare.cli(*words, *more, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    failed = call(json.dumps({"path": str(late)}))
    assert (failed["state"], "not yet" in failed["reason"]) == ("failed", True)
    write_app(folder, "second")
    second = call()
    assert second["value"] == "second"
    late.touch()
    set_id = failed["call"].partition(".")[0]
    bare.client.retry_calls(set_id)
    (result,) = bare.client.each_result(set_id)
    assert json.loads(result.value) == "first"
    codes = [bare.client.call_set(one).spec.code for one in (set_id, second["call"][:-2])]
    assert len({code.digest for code in codes if code is not None}) == 2


def test_a_function_that_names_its_folder_goes_along_and_hands_its_code_on(
    bare: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "app"
    write_app(folder, "brought")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    app = importlib.import_module("brought_app")
    try:
        assert app.tell.submit().result(timeout=stretch(60)) == "brought"
        assert list(app.tell.map([""] * 20)) == ["brought"] * 20
        nested = app.hand_on.options(workdir=folder)
        assert nested.submit().result(timeout=stretch(60)) == "brought"
        (tmp_path / "flow.toml").write_text(
            f'name = "flow"\n[node.one]\ntask = "brought_app:tell"\nworkdir = "{folder}"\n'
        )
        done = bare.cli("workflow", "run", str(tmp_path / "flow.toml"), "--json")
        assert done.stdout, done.stderr
        assert json.loads(done.stdout)["state"] == RunState.SUCCEEDED
    finally:
        for name in ("brought_app", "helper"):
            sys.modules.pop(name, None)
