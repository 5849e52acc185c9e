"""The archive for a report of a fault: what is in it, and that no planted secret is (DOCTOR-1)."""

from __future__ import annotations

import io
import json
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import bundle, doctor
from holdfast.core.records import EventRecord, TokenRecord
from holdfast.version import VERSION
from tests.unit.cli.stub import Answer, Stub, host_record

PLANTED = {
    "token": "hft_PlantedTokenOfTheVariable1", "context": "PlantedContextToken22",
    "up": "hft_PlantedAdminToken333", "join": "hfj_PlantedJoin4444", "key": "PlantedHostKey55555",
    "dsn": "Planted%2FDsn666", "variable": "PlantedVariable777", "odd": "pLantedOdd888xyz",
    "log": "PlantedLogPassword999", "event": "PlantedEventKey1010", "url": "PlantedUrlWord1111",
}  # fmt: skip
LOG = f"""\
first line
connecting to postgresql://holdfast:{PLANTED["log"]}@db/holdfast
started with token {PLANTED["up"]} and {PLANTED["odd"]}
"""


@pytest.fixture
def planted(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """A machine with an `up`, a host and a person who is logged in, full of secrets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "examine_machine", lambda order: [])  # has tests of its own
    monkeypatch.setattr(bundle, "LOG_LINES", 3)
    data = tmp_path / "holdfast-data"
    (data / "log").mkdir(parents=True)
    (data / "host").mkdir()
    (data / "url").write_text(stub.url)
    (data / "token").write_text(PLANTED["up"] + "\n")
    (data / "join").write_text(PLANTED["join"])
    (data / "log" / "controller.log").write_text("zeroth line\n" + LOG)
    (data / "log" / "agent.log").write_text(f'{{"message":"joins","token":"{PLANTED["join"]}"}}\n')
    (data / "host" / "host.json").write_text(json.dumps({"host_key": PLANTED["key"]}))
    settings = {"url": f"https://me:{PLANTED['url']}@c", "labels": {"key": PLANTED["key"]}}
    (data / "host" / "agent.json").write_text(json.dumps(settings))
    config = tmp_path / "config" / "holdfast"
    config.mkdir(parents=True)
    kept = {
        "current": "prod",
        "contexts": {"prod": {"urls": [stub.url], "token": PLANTED["context"]}},
    }
    (config / "contexts.json").write_text(json.dumps(kept))
    (config / "contexts.json").chmod(0o600)
    now = datetime.now(UTC)
    stub.on("GET /v1/whoami", Answer(TokenRecord(id="t", role="admin", name="n", created_at=now)))
    stub.on("GET /v1/server", Answer({"version": VERSION, "clock": now}))
    event = EventRecord(
        id="1", at=now, kind="job", message=f"--api-key {PLANTED['event']}",
        data={"argv": ["x", f"password={PLANTED['event']}"], "said": PLANTED["context"]},
    )  # fmt: skip
    stub.on("GET /v1/events", Answer({"items": [event], "next": None}))
    stub.on("GET /v1/hosts", Answer({"items": [host_record(name="gpu-1")], "next": None}))
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state"),
        "HOLDFAST_CONTEXT": None, "HOLDFAST_TOKEN": PLANTED["token"],
        "HOLDFAST_DSN": f"postgresql://u:{PLANTED['dsn']}@h/d", "MY_API_KEY": PLANTED["variable"],
        "ODD": PLANTED["odd"],
    }  # fmt: skip


def read_archive(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            assert member.isfile()
            assert not member.name.startswith("/")
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("holdfast-report/")] = file.read().decode()
    return found


def run(stub: Stub, env: dict[str, str | None], path: Path, *words: str) -> Any:
    return stub.run("doctor", "--bundle", str(path), *words, env=env)


def test_no_planted_secret_is_in_the_archive(
    stub: Stub, planted: dict[str, str | None], tmp_path: Path
) -> None:
    done = run(stub, planted, tmp_path / "report.tar.gz")
    assert done.exit_code == 0, done.output
    files = read_archive(tmp_path / "report.tar.gz")
    everything = "\n".join([*files, *files.values(), done.output])
    for name, secret in PLANTED.items():
        for form in (secret, secret.replace("%2F", "/")):
            assert form not in everything, name


def test_it_has_what_a_report_needs_and_says_so(
    stub: Stub, planted: dict[str, str | None], tmp_path: Path
) -> None:
    done = run(stub, planted, tmp_path / "report.tar.gz")
    files = read_archive(tmp_path / "report.tar.gz")
    for name in (
        "findings.json", "versions.json", "environment.txt", "config/contexts.json",
        "config/agent.json", "up/state.json", "logs/up-controller.log", "logs/up-agent.log",
        "server/server.json", "server/hosts.json", "server/events.json",
    ):  # fmt: skip
        assert name in files, sorted(files)
        assert name in files["CONTENTS.txt"]
        assert name in done.stdout
    assert "MY_API_KEY" in files["environment.txt"].splitlines()
    assert json.loads(files["versions.json"])["holdfast"] == VERSION
    assert json.loads(files["server/hosts.json"])[0]["name"] == "gpu-1"
    assert "first line" in files["logs/up-controller.log"]
    assert "zeroth line" not in files["logs/up-controller.log"]  # the last lines alone
    assert "server/settings.json" in files["CONTENTS.txt"].partition("could not be read")[2]
    for text in (name for name in files if name.endswith(".json")):
        json.loads(files[text])
    assert (tmp_path / "report.tar.gz").stat().st_mode & 0o777 == 0o600


def test_no_file_is_written_over(
    stub: Stub, planted: dict[str, str | None], tmp_path: Path
) -> None:
    there = tmp_path / "report.tar.gz"
    there.write_text("mine")
    assert run(stub, planted, there).exit_code == 4
    assert there.read_text() == "mine"
    assert run(stub, planted, tmp_path / "nowhere" / "x.tar.gz").exit_code == 2


def test_it_is_made_without_a_server(
    stub: Stub, planted: dict[str, str | None], tmp_path: Path
) -> None:
    done = run(stub, planted, tmp_path / "r.tar.gz", "--url", "http://127.0.0.1:9", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert "cannot be reached" in found["absent"]["server/server.json"]
    assert "server/server.json" not in read_archive(tmp_path / "r.tar.gz")


def test_a_long_log_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LOG_BYTES", 100)
    log = tmp_path / "x.log"
    log.write_bytes(b"".join(b"line %04d\n" % i for i in range(1000)))
    lines = bundle.read_last_lines(log).splitlines()
    assert lines[-1] == "line 0999"
    assert set(map(len, lines)) == {9}
    assert os.path.getsize(log) == 10_000


def test_names_are_redacted_too() -> None:
    report = bundle.Report(bundle.Redaction(["PlantedName"]))
    report.add("logs/PlantedName.log", "a log", "x")
    with tarfile.open(fileobj=io.BytesIO(report.pack())) as archive:
        assert not any("PlantedName" in name for name in archive.getnames())
