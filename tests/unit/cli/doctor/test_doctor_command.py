"""`doctor`: on this machine, against a stub controller."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import doctor, probe
from holdfast.cli.doctor.places import Places
from holdfast.cli.doctor.probe import ProbeOrder
from holdfast.core.doctor.findings import Level
from holdfast.core.doctor.host import judge_import
from holdfast.core.doctor.machine import JUDGES
from holdfast.core.records import TokenRecord
from holdfast.version import VERSION
from tests.unit.cli.stub import Answer, Stub


@pytest.fixture
def somewhere(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """The variables of a person in a folder without an `up`, on a machine without an agent."""
    now = datetime.now(UTC)
    stub.on("GET /v1/whoami", Answer(TokenRecord(id="t", role="admin", name="n", created_at=now)))
    stub.on("GET /v1/server", Answer({"version": VERSION, "clock": now}))
    monkeypatch.chdir(tmp_path)
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state"),
        "TMPDIR": str(tmp_path), "HOLDFAST_DSN": None, "HOLDFAST_CONTEXT": None,
    }  # fmt: skip


def test_every_part_that_is_looked_at_is_judged() -> None:
    order = ProbeOrder(folders={"/x y": "z"}, host=True, data="/d", state="/s")
    assert {part.split(" ")[0] for part in order.parts} == set(JUDGES)


@pytest.mark.slow
def test_a_laptop_is_looked_at_without_what_tasks_need(
    stub: Stub, somewhere: dict[str, str | None]
) -> None:
    done = stub.run("doctor", "--json", env=somewhere)
    found = json.loads(done.stdout)
    parts = {one["part"] for one in found["findings"]}
    assert found["host"] is False
    assert {"controller", "token", "versions", "system", "disk", "ports"} <= parts
    assert not {"gpu", "cgroups", "containers"} & parts
    assert done.exit_code == (1 if found["gravest"] == "problem" else 0)


def test_every_file_of_tokens_that_is_used_is_looked_at(
    somewhere: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(tmp_path / "token"))
    places = Places(data=tmp_path / "data", state=tmp_path / "host")
    looked_at = doctor.make_order(places, host=True, dsn=None).files
    for name in (
        "token", "holdfast/contexts.json", "data", "data/token", "host", "host/host.json",
    ):  # fmt: skip
        assert str(tmp_path / name) in looked_at


def test_the_package_of_another_project_is_told_from_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "holdfast"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Governed evolution for prompts."""\n')
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    own, other = probe.look_at_imports()
    monkeypatch.chdir(package.parent)
    _, near = probe.look_at_imports()
    assert (own.own, own.python) == (True, sys.executable)
    assert (other.own, other.near, other.file) == (False, False, str(package / "__init__.py"))
    assert (near.own, near.near) == (False, True)
    assert "Rename" in next(judge_import(near)).mend
    assert "pip uninstall" in next(judge_import(other)).mend


@pytest.mark.slow
def test_an_engine_that_hangs_holds_up_neither_the_doctor_nor_its_other_parts(
    stub: Stub, somewhere: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "podman").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600\n")
    (programs / "podman").chmod(0o755)
    monkeypatch.setattr(doctor, "SECONDS", 3.0)
    env = {**somewhere, "PATH": f"{programs}:{os.environ['PATH']}"}
    began = time.monotonic()
    done = stub.run("doctor", "--host", "--json", env=env)
    assert time.monotonic() - began < 60  # 600 is what it must not wait
    found = json.loads(done.stdout)["findings"]
    told = {one["part"]: one for one in found}
    assert "containers did not end within 3 s" in told["containers"]["sentence"]
    assert ("shm", "ok") in {(one["part"], one["level"]) for one in found}
    assert done.exit_code == 1
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}/exe").exists(), "the engine's client was left behind"


def test_a_file_that_others_read_is_found(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("x")
    secret.chmod(0o644)
    (facts,) = probe.look_at_files({str(secret): "token", str(tmp_path / "absent"): "none"})
    assert facts.mode == 0o644


def test_a_folder_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    assert probe.look_at_disk(str(tmp_path / "gone"), "data").error == "No such file or directory"
    facts = probe.look_at_disk(str(tmp_path), "data")
    assert facts.error == ""
    assert facts.sync_seconds is not None
    assert list(tmp_path.iterdir()) == []


def test_an_agents_folder_says_whether_it_runs(tmp_path: Path) -> None:
    from holdfast.agent.guardian.guardian_folder import GuardianFolder

    assert probe.look_at_agent(str(tmp_path)).running is False
    home = GuardianFolder(tmp_path / "host")
    assert probe.look_at_agent(str(tmp_path / "host")).running is True
    home.close()


def test_what_the_probes_find_here_can_be_judged(tmp_path: Path) -> None:
    """Each function's facts are those that its judge reads."""
    import msgspec

    order = ProbeOrder(
        folders={str(tmp_path): "data"}, files={str(tmp_path): "data"}, host=True, port=9
    )
    for part, look in order.parts.items():
        kind, judge = JUDGES[part.split(" ")[0]]
        plain: Any = msgspec.json.decode(msgspec.json.encode(look()))
        for finding in judge(msgspec.convert(plain, kind)):
            assert finding.level in Level
