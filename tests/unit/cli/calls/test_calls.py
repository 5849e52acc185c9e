"""`tasks`: what it sends, prints and exits with."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from holdfast.cli.calls.calls import rate_text
from holdfast.core.calls.values import FunctionSpec
from holdfast.wire.calls import (
    CallFailureView,
    CallLogLine,
    CallResult,
    CallResults,
    CallsChange,
    CallSetView,
    CallView,
    CallWhyLine,
    NewCallSet,
)
from holdfast.wire.states import tell_state
from tests.unit.cli.stub import Answer, Stub, events

SET = "06ch2v8wq1m4kz7d9x3t"
ERROR = json.dumps(
    {"kind": "ValueError", "message": "no", "traceback": "Traceback …\nValueError: no\n"}
)


def view(**fields: Any) -> CallSetView:
    plain: dict[str, Any] = {
        "id": SET,
        "spec": FunctionSpec(function="mytasks:double"),
        "state": "ended",
        "count": 10,
        "submitted": 10,
        "succeeded": 9,
        "failed": 1,
        "cancelled": 0,
        "created_at": 1000.0,
        "ended_at": 1005.0,
    }
    return CallSetView(**{**plain, **fields})


def result(index: int, state: int = 1, value: str = "6", reason: str = "") -> CallResult:
    return CallResult(index=index, state=state, value=value, attempts=1, reason=reason)


def call(**fields: Any) -> CallView:
    plain: dict[str, Any] = {
        "set": SET,
        "index": 3,
        "function": "mytasks:double",
        "state": "failed",
        "attempts": 2,
    }
    return CallView(**{**plain, **fields})


def test_sets_are_listed_with_counts_and_rate(stub: Stub) -> None:
    began = time.time() - 60
    recent = view(created_at=began, ended_at=began + 5)
    stub.on("GET /v1/call-sets", Answer({"items": [recent], "next": None}))
    done = stub.run("calls", "--project", "film")
    assert done.exit_code == 0, done.stderr
    head, row = done.stdout.splitlines()
    assert head.split()[:4] == ["ID", "FUNCTION", "STATE", "DONE"]
    words = row.split()
    assert words[:6] == [SET, "mytasks:double", "failed", "9/10", "1", "2/s"]
    assert "project=film" in stub.requests[0].path
    assert json.loads(stub.run("calls", "--json").stdout)[0]["id"] == SET


def test_no_sets_say_what_to_do(stub: Stub) -> None:
    stub.on("GET /v1/call-sets", Answer({"items": [], "next": None}))
    assert "holdfast calls call" in stub.run("calls").stdout


def test_states_and_rates_of_sets() -> None:
    still = {"state": "open", "ended_at": None}
    assert tell_state(view(**still, running=True)).word == "running"
    assert tell_state(view(**still, submitted=5, succeeded=1, failed=0)).word == "queued"
    assert tell_state(view(**still, submitted=5, succeeded=4, failed=1)).word == "open"
    assert tell_state(view(failed=0)).word == "succeeded"
    assert tell_state(view(failed=0, cancelled=1)).word == "cancelled"
    assert rate_text(view(state="open", ended_at=None, succeeded=3999), now=1002.0) == "2000/s"
    assert rate_text(view(succeeded=0, failed=0)) == "-"


def test_a_set_is_shown_with_its_failed_calls(stub: Stub) -> None:
    stub.on(f"GET /v1/call-sets/{SET}", Answer(view()))
    failed = CallResults(results=[result(7, 2, ERROR, "ValueError: no")], ended=True)
    stub.on(f"GET /v1/call-sets/{SET}/results", Answer(failed))
    shown = stub.run("calls", "show", SET).stdout
    assert "10 of 10 ended, 1 failed" in shown
    assert f"{SET}.7: ValueError: no" in shown


def test_a_call_is_shown_with_its_chain(stub: Stub) -> None:
    chain = [CallFailureView(attempt=1, host="h1", cause="stalled", reason="no beat for 120 s")]
    stub.on(f"GET /v1/call-sets/{SET}/calls/3", Answer(call(failures=chain, value=ERROR)))
    shown = stub.run("calls", "show", f"{SET}.3").stdout
    assert "attempt 1 on h1: stalled: no beat for 120 s" in shown
    assert shown.rstrip().endswith("ValueError: no")


def test_why_of_a_failed_call_says_its_reason_once(stub: Stub) -> None:
    why = [CallWhyLine(code="ended", message="it failed: no 4", hint=f"calls retry {SET}.3")]
    stub.on(f"GET /v1/call-sets/{SET}/calls/3", Answer(call(reason="no 4", why=why)))
    said = stub.run("calls", "why", f"{SET}.3").stdout
    assert said.splitlines() == ["failed: no 4", f"  calls retry {SET}.3"]


def test_why_says_each_line_and_its_hint(stub: Stub) -> None:
    why = [
        CallWhyLine(
            code="no_host_lists_app",
            message="no live host lists app mytasks",
            hint="holdfast agent --app mytasks",
        )
    ]
    stub.on(f"GET /v1/call-sets/{SET}/calls/3", Answer(call(state="ready", why=why)))
    said = stub.run("calls", "why", f"{SET}.3").stdout
    assert said.splitlines() == [
        "ready",
        "- no live host lists app mytasks",
        "  holdfast agent --app mytasks",
    ]
    refused = stub.run("calls", "why", SET)
    assert refused.exit_code == 2
    assert f"{SET}.0" in refused.stderr


def test_results_are_lines_and_a_failure_is_the_exit_code(stub: Stub) -> None:
    first = CallResults(results=[result(0)], next=1)
    last = CallResults(results=[result(1, 2, ERROR, "ValueError: no")], next=2, ended=True)
    stub.on(f"GET /v1/call-sets/{SET}/results", Answer(first), Answer(last))
    done = stub.run("calls", "results", SET)
    assert done.stdout.splitlines() == ["0\t6", "1\tfailed: ValueError: no"]
    assert done.exit_code == 1
    stub.on(f"GET /v1/call-sets/{SET}/results", Answer(first), Answer(last))
    lines = stub.run("calls", "results", SET, "--json").stdout.splitlines()
    assert json.loads(lines[0]) == {
        "index": 0,
        "state": "succeeded",
        "value": 6,
        "attempts": 1,
        "reason": "",
    }


def test_a_set_is_cancelled_whole_or_by_call(stub: Stub) -> None:
    stub.on(f"POST /v1/call-sets/{SET}/cancel", Answer(view()))
    stub.run("calls", "cancel", SET, f"{SET}.4", "--reason", "wrong")
    bodies = [msgspec.json.decode(r.body, type=CallsChange) for r in stub.requests]
    assert bodies == [CallsChange(reason="wrong"), CallsChange(indices=[4], reason="wrong")]


def test_retry_of_the_failed_names_them(stub: Stub) -> None:
    failed = CallResults(results=[result(2, 2), result(5, 2)], ended=True)
    stub.on(f"GET /v1/call-sets/{SET}/results", Answer(failed))
    stub.on(f"GET /v1/call-sets/{SET}", Answer(view()))
    stub.on(f"POST /v1/call-sets/{SET}/retry", Answer(view()))
    assert stub.run("calls", "retry", SET, "--failed").exit_code == 0
    assert msgspec.json.decode(stub.requests[-1].body, type=CallsChange).indices == [2, 5]
    stub.run("calls", "retry", SET)
    assert msgspec.json.decode(stub.requests[-1].body, type=CallsChange).indices is None


def test_a_set_is_found_by_the_beginning_of_its_id(stub: Stub) -> None:
    stub.on("GET /v1/call-sets", Answer({"items": [view(), view(id="1" * 20)], "next": None}))
    stub.on(f"POST /v1/call-sets/{SET}/cancel", Answer(view()))
    assert stub.run("calls", "cancel", SET[:5]).exit_code == 0
    assert stub.run("calls", "cancel", "@last").exit_code == 0
    missing = stub.run("calls", "cancel", "2")
    assert missing.exit_code == 3


def test_call_submits_one_and_waits(stub: Stub) -> None:
    stub.on("POST /v1/call-sets", Answer(view(), 201))
    answers = (CallResults(results=[]), CallResults(results=[result(0)], next=1, ended=True))
    stub.on(f"GET /v1/call-sets/{SET}/results", *(Answer(one) for one in answers))
    because = CallWhyLine(code="no_host_lists_app", message="no host", hint="start one")
    call = CallView(set=SET, index=0, function="f", state="ready", attempts=0, why=[because])
    stub.on(f"GET /v1/call-sets/{SET}/calls/0", Answer(call))
    words = ["--gpus", "1", "--model", "qwen", "--time-limit", "2m", "--max-retries", "2"]
    words += ["--host-label", "rack=!b12", "--host-label", "disk=fast"]
    done = stub.run("calls", "call", "mytasks:double", '{"x": 3}', *words)
    assert (done.exit_code, done.stdout) == (0, "6\n")
    assert "waiting: no host (start one)" in done.stderr
    sent = msgspec.json.decode(stub.requests[0].body, type=NewCallSet)
    assert (sent.args, sent.count) == (['{"x": 3}'], 1)
    assert (sent.spec.gpus, sent.spec.model, sent.spec.time_limit_seconds) == (1, "qwen", 120.0)
    assert sent.spec.host_labels == {"rack": "!b12", "disk": "fast"}
    assert sent.spec.retry is not None
    assert sent.spec.retry.max_retries == 2
    queries = [parse_qs(r.path.partition("?")[2]) for r in stub.requests[1:]]
    assert [q["wait"] for q in queries if "wait" in q] == [["2.000"], ["20.000"]]


DECLARED = """
import sys
import holdfast
print("loading", flush=True)
@holdfast.task(time_limit="4s", retry=3, model="qwen", vram_gb=2, host_labels={"disk": "fast"})
def render(x: int) -> int: return x
"""


def test_call_has_what_its_function_declares_and_the_options_over_it(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared_app.py").write_text(DECLARED)
    monkeypatch.chdir(tmp_path)
    stub.on("POST /v1/call-sets", Answer(view(), 201))
    name = "declared_app:render"
    words = ["--no-wait", "--time-limit", "9s", "--host-label", "rack=!b12"]
    done = stub.run("calls", "call", name, *words)
    assert (done.exit_code, "cannot be imported" in done.stderr) == (0, False)
    spec = msgspec.json.decode(stub.requests[-1].body, type=NewCallSet).spec
    assert (spec.function, spec.time_limit_seconds, spec.model, spec.gpus) == (name, 9.0, "qwen", 1)
    assert spec.host_labels == {"disk": "fast", "rack": "!b12"}
    assert spec.retry is not None
    assert spec.retry.max_retries == 3
    stub.run("calls", "call", name, "--no-wait", "--no-import")
    bare = msgspec.json.decode(stub.requests[-1].body, type=NewCallSet).spec
    assert bare == FunctionSpec(function=name)
    missing = stub.run("calls", "call", "nowhere_app:f", "--no-wait")
    assert missing.exit_code == 0
    assert "not those that the function declares: ModuleNotFoundError" in missing.stderr


def test_a_failed_call_shows_its_traceback_and_exits_with_1(stub: Stub) -> None:
    stub.on("POST /v1/call-sets", Answer(view(), 201))
    failed = CallResults(results=[result(0, 2, ERROR, "ValueError: no")], ended=True)
    stub.on(f"GET /v1/call-sets/{SET}/results", Answer(failed))
    done = stub.run("calls", "call", "mytasks:double")
    assert done.exit_code == 1
    assert "failed: ValueError: no\nTraceback" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("double",), "is not MODULE:FUNCTION"),
        (("m:f", "[3]"), "a JSON object of parameters"),
        (("m:f", "{"), "is no JSON"),
        (("m:f", "--host-label", "fast"), "--host-label 'fast' is not K=V"),
    ],
)
def test_a_bad_call_is_refused_before_it_is_sent(
    stub: Stub, words: tuple[str, ...], said: str
) -> None:
    done = stub.run("calls", "call", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert stub.requests == []


def test_jobs_leaves_executors_out_unless_asked(stub: Stub) -> None:
    for path in ("jobs", "arrays"):
        stub.on(f"GET /v1/{path}", Answer({"items": [], "next": None}))
    for words in ((), ("--executors",), ("--all",)):
        stub.run("jobs", *words)
    sent = [r.path.partition("?") for r in stub.requests if r.path.startswith("/v1/jobs")]
    asked = [parse_qs(query).get("executors") for _, _, query in sent]
    assert asked == [None, ["only"], ["show"]]


def test_output_of_a_call_goes_where_it_went(stub: Stub) -> None:
    lines = [("stdout", b"out\n", 0), ("stderr", b"err\n", 0), ("stdout", b"more\n", 7)]
    lines_told = [
        ("log", CallLogLine(attempt=2, job=SET, stream=stream, offset=10 * n, data=data, gap=gap))  # type: ignore[arg-type]  # one of the two
        for n, (stream, data, gap) in enumerate(lines)
    ]
    stub.on(
        f"GET /v1/call-sets/{SET}/calls/3/logs",
        Answer(events(*lines_told, ("end", {"attempt": 2})), kind="text/event-stream"),
    )
    done = stub.run("calls", "logs", f"{SET}.3", "--attempt", "2")
    assert (done.exit_code, done.stdout) == (0, "out\nmore\n")
    assert done.stderr.startswith("err\n")
    assert "7 bytes are not in the controller's copy" in done.stderr
    assert "attempt=2" in stub.requests[0].path
    assert stub.run("calls", "logs", SET).exit_code == 2
    assert stub.run("calls", "show", SET, "--logs").exit_code == 2
