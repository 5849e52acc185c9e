"""`holdfast rules`: shown, checked without a controller, tried, set."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from holdfast.core.endings.rules import parse_rules
from holdfast.wire.api import RulesFinding, RulesTrial, RulesView
from tests.unit.cli.stub import Answer, Stub, sent

RULES = '[[rule]]\nname = "config"\nexit_codes = [64]\nsignals = ["SIGSEGV"]\npattern = "bad key"\nnever_retry = true\n'
VIEW = RulesView(text=RULES, rules=list(parse_rules(RULES)), revision=3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def test_showing(stub: Stub) -> None:
    stub.on("GET /v1/rules", Answer(VIEW))
    lines = stub.run("rules").stdout.splitlines()
    assert lines[0].split() == ["RULE", "WHEN", "CAUSE", "AND"]
    assert "/bad key/ and exit 64 or SIGSEGV" in lines[1]
    assert "never retry" in lines[1]
    assert stub.run("rules", "--text").stdout == RULES
    assert json.loads(stub.run("rules", "--json").stdout)["text"] == RULES


def test_one_rule_is_shown_and_one_that_is_not_there_is_refused(stub: Stub) -> None:
    stub.on("GET /v1/rules", Answer(VIEW))
    assert "/bad key/ and exit 64 or SIGSEGV" in stub.run("rules", "show", "config").stdout
    assert json.loads(stub.run("rules", "show", "config", "--json").stdout)["name"] == "config"
    for word in ("show", "delete"):
        done = stub.run("rules", word, "other")
        assert (done.exit_code, "there is no rule 'other'" in done.stderr) == (3, True)


def test_a_rule_is_deleted_and_the_others_stay_as_they_were_written(stub: Stub) -> None:
    other = '# why\n[[rule]]\nname = "other"\npattern = "x"\navoid_host = true\n'
    stub.on("GET /v1/rules", Answer(RulesView(text=RULES + other, rules=[], revision=3)))
    stub.on("PUT /v1/rules", Answer(VIEW))
    assert stub.run("rules", "delete", "config").exit_code == 0
    assert sent(stub) == {"text": other}


def test_no_rules_and_rules_that_are_not_in_force(stub: Stub) -> None:
    stub.on("GET /v1/rules", Answer(RulesView(text="", rules=[], revision=1)))
    assert "the shipped ones apply" in stub.run("rules").stdout
    stub.on(
        "GET /v1/rules",
        Answer(RulesView(text="x", rules=[], revision=1, problem="line 1: what is x")),
    )
    assert "not in force" in stub.run("rules").stderr
    stub.on("GET /v1/rules", Answer(msgspec.structs.replace(VIEW, outdated=["config"])))
    assert "the pattern of rule config is not one of RE2" in stub.run("rules").stderr


def test_checking_needs_no_controller(stub: Stub, file: Path) -> None:
    done = stub.run("rules", "check", str(file))
    assert done.exit_code == 0
    assert "config" in done.stdout
    assert json.loads(stub.run("rules", "check", "--json", str(file)).stdout)[0]["signals"] == [11]
    file.write_text(RULES + '[[rule]]\nname = "loop"\npattern = "(?=a)b"\ncause = "unknown"\n')
    done = stub.run("rules", "check", str(file))
    assert done.exit_code == 2
    assert "line 9: pattern:" in done.stderr
    assert stub.run("rules", "check", str(file) + ".not").exit_code == 2
    assert stub.requests == []


def test_setting(stub: Stub, file: Path) -> None:
    stub.on("PUT /v1/rules", Answer(VIEW))
    assert "config" in stub.run("rules", "set", str(file)).stdout
    assert sent(stub) == {"text": RULES}
    stub.on("PUT /v1/rules", Answer(RulesView(text="", rules=[], revision=4)))
    assert "any more" in stub.run("rules", "set", "-", input="").stdout
    assert sent(stub) == {"text": ""}
    refused = {
        "status": 422,
        "code": "validation_error",
        "detail": "line 2: name: no",
        "field": "line 2",
    }
    stub.on("PUT /v1/rules", Answer(refused, 422))
    done = stub.run("rules", "set", str(file))
    assert done.exit_code == 2
    assert "line 2: name: no" in done.stderr


def test_trying_says_when_no_retry_follows(stub: Stub) -> None:
    finding = RulesFinding(
        cause="program_error", rule="log-name", message="m", charged_to="retries", exit_code=1
    )
    stub.on("POST /v1/rules/try", Answer(finding))
    done = stub.run("rules", "try", "--exit-code", "1")
    assert "program_error (never retried, unless the attempt reported a new step" in done.stdout


def test_trying(stub: Stub, file: Path, tmp_path: Path) -> None:
    finding = RulesFinding(
        cause="nonzero_exit",
        rule="operator:config",
        message="bad key",
        charged_to="retries",
        exit_code=64,
        evidence={"line": "bad key 7"},
        never_retry=True,
    )
    stub.on("POST /v1/rules/try", Answer(finding))
    log = tmp_path / "job.log"
    log.write_bytes(b"begin" + b"x" * 20_000 + b"\x00bad key 7\n")
    done = stub.run("rules", "try", "--exit-code", "64", "--log", str(log), "--rules", str(file))
    assert done.exit_code == 0, done.stderr
    trial = msgspec.json.decode(stub.requests[-1].body, type=RulesTrial)
    assert (trial.exit_code, trial.text, len(trial.log)) == (64, RULES, 16_384)
    assert trial.log.endswith("xbad key 7\n")
    assert "nonzero_exit (charged to retries)" in done.stdout
    assert "bad key 7" in done.stdout
    assert "never retried, by the rule" in done.stdout
    stub.run("rules", "try", "--signal", "sigsegv")
    assert sent(stub)["signal"] == 11
    stub.run("rules", "try", "--signal", "9")
    assert sent(stub)["signal"] == 9


@pytest.mark.parametrize(
    "words",
    [[], ["--exit-code", "1", "--signal", "9"], ["--exit-code", "0"], ["--signal", "SIGNOPE"]],
)
def test_what_cannot_be_tried(stub: Stub, words: list[str]) -> None:
    assert stub.run("rules", "try", *words).exit_code == 2
    assert stub.requests == []
