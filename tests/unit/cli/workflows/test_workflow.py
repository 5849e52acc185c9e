"""Workflows in files, as the command line submits them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.stub import Answer, Stub, sent

FILE = """
name = "nightly"

[node.fetch]
argv = ["python", "fetch.py"]

[node.away]
argv = ["python", "fetch.py"]
cwd = "/data"
env = {PATH = "/opt/bin"}

[node.boxed]
image = "registry.example/publish:2"
"""


def test_jobs_of_a_workflow_run_where_submit_would_run_them(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python fetch.py` of a file is the `python` and the `fetch.py` of this shell."""
    (tmp_path / "nightly.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    stub.on("POST /v1/workflows", Answer({"status": 422, "detail": "seen"}, 422))
    env = {"PATH": "/venv/bin:/bin", "VIRTUAL_ENV": "/venv", "SECRET": "x"}
    done = stub.run("workflow", "run", "nightly.toml", "--detach", env=env)
    assert "seen" in done.stderr, done.stderr
    fetch, away, boxed = (node["job"]["spec"] for node in sent(stub)["spec"]["nodes"])
    assert fetch["cwd"] == str(tmp_path)
    assert fetch["env"]["PATH"] == "/venv/bin:/bin"
    assert fetch["env"]["VIRTUAL_ENV"] == "/venv"
    assert "SECRET" not in fetch["env"]
    assert (away["cwd"], away["env"]["PATH"]) == ("/data", "/opt/bin")
    assert not boxed.get("cwd")  # the image has a folder of its own
    assert not boxed.get("env")
