"""`login`, `logout`, `status` and `contexts` against a stub controller."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast.core.records import TokenRecord
from holdfast.version import VERSION
from tests.unit.cli.stub import Answer, Stub

NOW = datetime.now(UTC)


class Person:
    """A person with a configuration of their own and no variables, at the stub."""

    def __init__(self, stub: Stub, home: Path) -> None:
        self.stub, self.file = stub, home / "holdfast" / "contexts.json"
        self.env: dict[str, str | None] = {
            "XDG_CONFIG_HOME": str(home), "HOLDFAST_URL": None, "HOLDFAST_TOKEN": None,
            "HOLDFAST_CONTEXT": None,
        }  # fmt: skip

    def run(self, *words: str, **more: Any) -> Result:
        env = {**self.env, **more.pop("env", {})}
        return self.stub.run(*words, env=env, **more)

    def log_in(self, *words: str) -> Result:
        return self.run("login", self.stub.url, "--token-stdin", *words, input="hft_secret\n")


@pytest.fixture
def person(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    token = TokenRecord(id="t1", role="submit", name="laptop", user="alice", created_at=NOW)
    stub.on("GET /v1/whoami", Answer(token))
    stub.on("GET /v1/server", Answer({"version": VERSION, "clock": datetime.now(UTC)}))
    monkeypatch.chdir(tmp_path)
    return Person(stub, tmp_path / "config")


def test_login_tries_the_token_and_keeps_it(person: Person) -> None:
    done = person.log_in("--context", "prod")
    assert done.exit_code == 0, done.stderr
    assert "as alice (submit)" in done.stdout
    assert "hft_secret" not in done.output
    assert person.stub.requests[0].headers["Authorization"] == "Bearer hft_secret"
    person.stub.on("GET /v1/jobs", Answer({"items": [], "next": None}))
    assert person.run("jobs").exit_code == 0
    assert person.stub.requests[-1].headers["Authorization"] == "Bearer hft_secret"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (Answer({"status": 401, "code": "unauthorized", "detail": "unknown"}, 401), 5, "not take"),
        (Answer({"status": 401, "code": "join_token", "detail": "join"}, 401), 5, "join token"),
        (Answer(b"<html>hello</html>", 200, "text/html"), 1, "no controller"),
        (Answer({"status": 503, "code": "unavailable", "detail": "no"}, 503), 6, "Nothing was"),
    ],
)
def test_login_keeps_nothing_that_does_not_work(
    person: Person, answer: Answer, code: int, words: str
) -> None:
    person.stub.on("GET /v1/whoami", answer)
    done = person.log_in()
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert not person.file.exists()


def test_login_asks_at_a_terminal_alone(person: Person) -> None:
    done = person.run("login", person.stub.url, input="")
    assert (done.exit_code, "--token-stdin" in done.stderr) == (2, True)
    assert person.stub.requests == []


def test_no_word_of_login_is_a_token(person: Person) -> None:
    """Every user of a machine can list commands."""
    assert person.run("login", person.stub.url, "--token", "x").exit_code == 2
    done = person.run("login", "http://me:pw@127.0.0.1:1", "--token-stdin", input="x")
    assert (done.exit_code, "holds a name or a password" in done.stderr) == (2, True)
    assert "pw" not in done.output.replace("password", "")


def test_login_warns_of_plain_http_to_another_machine(person: Person) -> None:
    done = person.run("login", "http://192.0.2.1.invalid:1", "--token-stdin", input="t\n")
    assert "plain http to another machine" in done.stderr
    assert "plain http" not in person.log_in().stderr


def test_login_says_that_a_variable_goes_before_it(person: Person) -> None:
    person.env["HOLDFAST_URL"] = person.stub.url
    done = person.log_in("--context", "prod")
    assert "HOLDFAST_URL is set" in done.stderr
    assert "holdfast -c prod" in done.stderr


def test_status_says_where_as_whom_and_from_where(person: Person) -> None:
    person.log_in("--context", "prod")
    done = person.run("status")
    assert done.exit_code == 0, done.output
    for words in (person.stub.url, "the current context, prod", "alice, role submit", VERSION):
        assert words in done.stdout
    assert "hft_secret" not in done.output
    found = json.loads(person.run("-c", "prod", "status", "--json").stdout)
    assert (found["works"], found["user"], found["role"]) == (True, "alice", "submit")
    assert (found["context"], found["from"]) == ("prod", "the context prod (--context)")
    assert abs(found["clock_seconds"]) < 60
    assert {one["level"] for one in found["findings"]} == {"ok"}


def test_status_fails_where_the_server_does(person: Person) -> None:
    refused = Answer({"status": 401, "code": "unauthorized", "detail": "unknown"}, 401)
    person.log_in("--context", "prod")
    person.stub.on("GET /v1/whoami", refused)
    done = person.run("status")
    assert (done.exit_code, "holdfast login" in done.stdout) == (5, True)
    assert "from the context prod" in done.stdout or "in the context prod" in done.stdout
    away = person.run("status", "--url", "http://127.0.0.1:9", "--json")
    assert away.exit_code == 6
    found = json.loads(away.stdout)
    assert (found["works"], found["error"]["code"]) == (False, "unreachable")
    assert found["findings"][0]["mend"]
    person.run("logout")
    assert person.run("status").exit_code == 6


def test_status_warns_of_a_clock_and_a_version_that_differ(person: Person) -> None:
    person.log_in()
    late = NOW - timedelta(minutes=3)
    person.stub.on("GET /v1/server", Answer({"version": "0.0.1", "clock": late}))
    done = person.run("status")
    assert done.exit_code == 0
    assert "ahead of the controller's" in done.stdout
    assert "the controller is 0.0.1" in done.stdout


def test_contexts_are_listed_used_and_deleted_without_a_controller(person: Person) -> None:
    person.log_in("--context", "prod")
    person.log_in("--context", "lab")
    asked = len(person.stub.requests)
    rows = json.loads(person.run("contexts", "--json").stdout)
    assert [(row["name"], row["current"]) for row in rows] == [
        ("local", False), ("lab", True), ("prod", False),
    ]  # fmt: skip
    assert "hft_secret" not in person.run("contexts").stdout
    assert person.run("contexts", "use", "prod").exit_code == 0
    assert person.run("contexts", "show", "prod").stdout.count("yes") == 1
    assert person.run("contexts", "delete", "prod").exit_code == 0
    assert json.loads(person.run("contexts", "list", "--json").stdout)[0]["current"] is True
    assert person.run("contexts", "use", "prod").exit_code == 3
    assert len(person.stub.requests) == asked


def test_logout_forgets_the_token(person: Person) -> None:
    assert person.run("logout").exit_code == 4
    person.log_in("--context", "prod")
    assert person.run("logout").exit_code == 0
    assert "hft_secret" not in person.file.read_text()


def test_a_word_before_the_command_names_the_server(person: Person) -> None:
    person.log_in("--context", "prod")
    person.run("contexts", "use", "local")
    person.stub.on("GET /v1/jobs", Answer({"items": [], "next": None}))
    for words in (("-c", "prod", "jobs"), ("jobs", "-c", "prod"), ("--context", "prod", "jobs")):
        assert person.run(*words).exit_code == 0, words
    assert person.run("jobs").exit_code == 6
    assert person.run("jobs", env={"HOLDFAST_CONTEXT": "prod"}).exit_code == 0


def test_a_file_that_others_read_stops_every_command_with_words(person: Person) -> None:
    person.log_in("--context", "prod")
    os.chmod(person.file, 0o644)
    done = person.run("jobs")
    assert (done.exit_code, "chmod 600" in done.stderr) == (2, True)
