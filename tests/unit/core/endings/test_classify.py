"""classify: first match wins, and the order is the point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import (
    CAUSE_OF_TRIP,
    CHARGED_TO,
    ELIGIBLE,
    EXIT_OF,
    Budget,
    Cause,
    Watchdog,
    WatchdogExit,
)
from holdfast.core.endings.classify import (
    MEASURED,
    UNMEASURED,
    classify,
    kept_exit_code,
    signal_name,
)
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import TaskFacts, Trip, say_lost
from holdfast.moves.registration import lost_event

RULES = MEASURED + UNMEASURED
TRIP = Trip(watchdog=Watchdog.STALL, exit_code=76, reason="no beat for 122 s")
XID = "kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


@pytest.mark.parametrize(
    ("facts", "rule", "cause", "code"),
    [
        (TaskFacts(exit_code=3), "exit-code", Cause.NONZERO_EXIT, 3),
        (TaskFacts(signal=9), "signal", Cause.NONZERO_EXIT, 137),
        (TaskFacts(checkpoint_error="spoilt"), "checkpoint", Cause.START_TIMEOUT, 127),
        (TaskFacts(start_error="no thread"), "start-error", Cause.NONZERO_EXIT, 127),
        (
            TaskFacts(start_error="no such program", exit_code=127),
            "never-starts",
            Cause.VALIDATION_ERROR,
            127,
        ),
        (
            TaskFacts(start_error="permission denied", exit_code=126),
            "never-starts",
            Cause.VALIDATION_ERROR,
            126,
        ),
        (TaskFacts(signal=9, oom=True), "oom-counter", Cause.OOM_KILLED, 137),
        (TaskFacts(exit_code=1, log_tail=CUDA_OOM), "log-cuda-oom", Cause.OOM_KILLED, 1),
        (TaskFacts(signal=6, log_tail=CUDA_OOM), "log-cuda-oom", Cause.OOM_KILLED, 134),
        (TaskFacts(exit_code=1, log_tail=XID), "log-xid", Cause.GPU_FAULT, 1),
        (TaskFacts(exit_code=1, log_tail=XID + CUDA_OOM), "log-xid", Cause.GPU_FAULT, 1),
        (TaskFacts(trip=TRIP, signal=9), "watchdog-stall", Cause.STALLED, 76),
        (TaskFacts(trip=TRIP, exit_code=0), "watchdog-stall", Cause.STALLED, 76),
        (
            TaskFacts(trip=TRIP, signal=9, oom=True, log_tail=XID),
            "watchdog-stall",
            Cause.STALLED,
            76,
        ),
        (TaskFacts(trip=TRIP, unkillable=True), "unkillable", Cause.GPU_FAULT, 76),
        (TaskFacts(unkillable=True, oom=True), "unkillable", Cause.GPU_FAULT, None),
        (TaskFacts(lost="new_incarnation"), "host-lost", Cause.AGENT_TRANSIENT, None),
        (TaskFacts(lost="host_gone: its node failed"), "host-lost", Cause.AGENT_TRANSIENT, None),
        (
            TaskFacts(lost="host_preempted: PREEMPTED on n1"),
            "host-preempted",
            Cause.PREEMPTED,
            None,
        ),
        (TaskFacts(lost="host_preempted"), "host-preempted", Cause.PREEMPTED, None),
        (
            TaskFacts(lost="it could not start", start_error="no fork"),
            "host-start",
            Cause.START_TIMEOUT,
            None,
        ),
        (TaskFacts(), "none", Cause.UNKNOWN, None),
    ],
)
def test_rules(facts: TaskFacts, rule: str, cause: Cause, code: int | None) -> None:
    found = classify(facts)
    assert (found.rule, found.cause, found.exit_code) == (rule, cause, code)
    assert found.message


def test_a_host_that_shuts_down_is_not_the_tasks_failure() -> None:
    facts = TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED)
    found = classify(facts)
    assert (found.rule, found.cause) == ("stopped", Cause.HOST_DRAINED)


def test_a_stop_keeps_the_cause_it_was_given() -> None:
    facts = TaskFacts(signal=15, stopped=True, stop_cause=Cause.SCALED_DOWN)
    assert classify(facts).cause is Cause.SCALED_DOWN


def test_a_log_that_mentions_memory_in_a_good_run_is_no_failure() -> None:
    facts = TaskFacts(exit_code=0, log_tail=CUDA_OOM + " (caught, retrying with a smaller batch)")
    assert facts.succeeded
    assert classify(facts).cause is not Cause.OOM_KILLED


def test_an_exit_0_that_the_job_itself_forbids_is_a_failure() -> None:
    """CLASSIFY-3."""
    facts = TaskFacts(exit_code=0, failed_on="step 2 loss nan")
    found = classify(facts)
    assert not facts.succeeded
    assert (found.exit_code, found.message) == (
        1,
        "it exited with 0, but its job fails on a line that it printed: step 2 loss nan",
    )


def test_a_log_that_mentions_an_xid_in_a_good_run_is_no_failure() -> None:
    assert classify(TaskFacts(exit_code=0, log_tail=XID)).cause is not Cause.GPU_FAULT


def test_the_message_is_the_trips_own_sentence() -> None:
    assert classify(TaskFacts(trip=TRIP)).message == "no beat for 122 s"


@pytest.mark.parametrize("watchdog", list(Watchdog))
def test_each_watchdog_has_its_code_and_cause(watchdog: Watchdog) -> None:
    trip = Trip(watchdog=watchdog, exit_code=EXIT_OF[watchdog], reason="r")
    found = classify(TaskFacts(trip=trip, signal=9))
    assert found.cause is CAUSE_OF_TRIP[watchdog]
    assert found.exit_code == EXIT_OF[watchdog]


def test_the_exit_codes_of_the_design() -> None:
    assert {w: int(EXIT_OF[w]) for w in Watchdog} == {
        Watchdog.TIME_LIMIT: 75,
        Watchdog.STALL: 76,
        Watchdog.LOST_LEASE: 77,
        Watchdog.GPU_HEALTH: 78,
        Watchdog.IDLE: 80,
        Watchdog.OPERATOR_STOP: 79,
    }
    assert len(set(WatchdogExit)) == 6


def test_every_cause_is_charged_to_something() -> None:
    assert set(CHARGED_TO) == set(Cause)


def test_rule_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV"), (40, "SIG40")]
)
def test_signal_names(number: int, name: str) -> None:
    assert signal_name(number) == name


# ---- the order


HANG = Trip(watchdog=Watchdog.GPU_HEALTH, exit_code=78, reason="the GPU is idle")
LIMIT = Trip(watchdog=Watchdog.TIME_LIMIT, exit_code=75, reason="8100 s are over")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("facts", "rule", "cause"),
    [
        # What was measured on a device explains a hang, and nothing else that tripped.
        (TaskFacts(trip=HANG, xids=(79,), signal=9), "gpu-xid", Cause.GPU_FAULT),
        (TaskFacts(trip=TRIP, gpu_lost="GPU is lost"), "gpu-lost", Cause.GPU_FAULT),
        (TaskFacts(trip=LIMIT, xids=(79,), signal=9), "watchdog-time_limit", Cause.TIME_LIMIT),
        (TaskFacts(trip=HANG, xids=(31, 45), signal=9), "watchdog-gpu_health", Cause.GPU_WEDGED),
        (TaskFacts(exit_code=1, gpu_lost="GPU is lost", ecc_errors=1, xids=(79,)), "gpu-lost", Cause.GPU_FAULT),
        (TaskFacts(exit_code=1, ecc_errors=1, xids=(48,)), "gpu-ecc", Cause.GPU_FAULT),
        (TaskFacts(exit_code=1, xids=(45, 43, 79), oom=True, log_tail=CUDA_OOM), "gpu-xid", Cause.GPU_FAULT),
        (TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED, xids=(79,)), "stopped", Cause.HOST_DRAINED),
        # An Xid of the program's own comes behind the words, which say more; a mere notice says
        # nothing.
        (TaskFacts(exit_code=1, xids=(31,)), "gpu-xid-own", Cause.NONZERO_EXIT),
        (TaskFacts(exit_code=1, xids=(43,), log_tail=CUDA_OOM), "log-cuda-oom", Cause.OOM_KILLED),
        (TaskFacts(exit_code=1, xids=(45, 63, 92)), "exit-code", Cause.NONZERO_EXIT),
        (TaskFacts(exit_code=1, xids=(9999,)), "exit-code", Cause.NONZERO_EXIT),
        # A report that cannot be used is no account of anything.
        (TaskFacts(malformed="no facts", exit_code=1, log_tail=CUDA_OOM), "malformed-report", Cause.MALFORMED_REPORT),
        (TaskFacts(malformed="no facts", trip=TRIP), "watchdog-stall", Cause.STALLED),
        # Memory, as counted, before what the log says.
        (TaskFacts(signal=9, oom=True, log_tail="ncclRemoteError"), "oom-counter", Cause.OOM_KILLED),
        (TaskFacts(signal=9, max_memory_bytes=GIB, memory_limit_bytes=GIB), "oom-sigkill", Cause.OOM_KILLED),
        (TaskFacts(exit_code=137, max_memory_bytes=GIB, memory_limit_bytes=GIB), "oom-sigkill", Cause.OOM_KILLED),
        # The kernel counted no kill, so somebody else killed it: its file cache filled the rest.
        (TaskFacts(signal=9, oom_counted=True, max_memory_bytes=GIB, memory_limit_bytes=GIB), "signal", Cause.NONZERO_EXIT),
        # A killed helper that the program outlived is not its end.
        (TaskFacts(exit_code=1, oom=True, log_tail=f"{TRACE}ValueError: no rows\n"), "exit-code", Cause.NONZERO_EXIT),
        (TaskFacts(exit_code=1, oom=True, log_tail=f"{TRACE}BrokenPipeError: [Errno 32] Broken pipe\n"), "oom-counter", Cause.OOM_KILLED),
        (TaskFacts(exit_code=1, oom=True, log_tail="no rows\n"), "oom-counter", Cause.OOM_KILLED),
        (TaskFacts(signal=9, max_memory_bytes=GIB // 2, memory_limit_bytes=GIB), "signal", Cause.NONZERO_EXIT),
        (TaskFacts(signal=9, max_memory_bytes=GIB), "signal", Cause.NONZERO_EXIT),
        (TaskFacts(signal=11, max_memory_bytes=GIB, memory_limit_bytes=GIB), "signal", Cause.NONZERO_EXIT),
        (TaskFacts(signal=9, over_memory_bytes=GIB, memory_limit_bytes=1 << 20), "memory-watch", Cause.OOM_KILLED),
        (TaskFacts(signal=9, oom=True, over_memory_bytes=GIB, memory_limit_bytes=1 << 20), "memory-watch", Cause.OOM_KILLED),
        (TaskFacts(trip=LIMIT, signal=9, over_memory_bytes=GIB, memory_limit_bytes=1 << 20), "watchdog-time_limit", Cause.TIME_LIMIT),
        (TaskFacts(trip=LIMIT, signal=9, max_memory_bytes=GIB, memory_limit_bytes=GIB), "watchdog-time_limit", Cause.TIME_LIMIT),
        # A line that the job itself forbids.
        (TaskFacts(exit_code=0, failed_on="loss nan"), "fail-on", Cause.NONZERO_EXIT),
        (TaskFacts(exit_code=0, failed_on="loss nan", xids=(79,)), "gpu-xid", Cause.GPU_FAULT),
        # Containers.
        (TaskFacts(pull_error="manifest unknown", exit_code=125), "pull-no-such-image", Cause.IMAGE_PULL_FAILURE),
        (TaskFacts(runtime_error="OCI runtime create failed", exit_code=127), "runtime-error", Cause.NONZERO_EXIT),
        (TaskFacts(runtime_error="nvidia-container-cli: initialization error: nvml error: driver not loaded"), "log-gpu-not-ready", Cause.GPU_FAULT),
    ],
)  # fmt: skip
def test_the_order(facts: TaskFacts, rule: str, cause: Cause) -> None:
    found = classify(facts)
    assert (found.rule, found.cause) == (rule, cause)
    assert found.exit_code == kept_exit_code(facts)


def test_evidence_is_what_the_rule_went_by() -> None:
    assert classify(TaskFacts(exit_code=1, ecc_errors=3)).evidence["ecc_errors"] == 3
    assert classify(TaskFacts(exit_code=1, xids=(45, 79))).evidence["xid"] == 79
    assert classify(TaskFacts(exit_code=1, xids=(45, 79))).evidence["xids"] == "45, 79"
    trip = Trip(
        watchdog=Watchdog.STALL, exit_code=76, reason="r", evidence={"silent_seconds": 122.0}
    )
    assert classify(TaskFacts(trip=trip)).evidence == {"silent_seconds": 122.0}
    assert classify(TaskFacts(exit_code=4)).evidence == {"exit_code": 4}
    assert classify(TaskFacts(exit_code=1, log_tail="a\n" + CUDA_OOM + "\nb")).evidence == {
        "line": CUDA_OOM,
        "in": "log",
    }


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (TaskFacts(exit_code=1, xids=(79,)), "has fallen off the bus (restart the machine)"),
        (TaskFacts(exit_code=139), "SIGSEGV"),
        (TaskFacts(exit_code=127), "was not found"),
        (
            TaskFacts(signal=9, max_memory_bytes=GIB, memory_limit_bytes=GIB),
            "100 % of its memory limit of 1 GiB",
        ),
        (TaskFacts(malformed="its facts: Expected `int`, got `str`"), "Expected `int`"),
    ],
)
def test_sentences_say_what_happened(facts: TaskFacts, says: str) -> None:
    assert says in classify(facts).message


def test_a_malformed_report_is_never_retried() -> None:
    found = classify(TaskFacts(malformed="an end without facts"))
    assert found.cause is Cause.MALFORMED_REPORT
    assert CHARGED_TO[found.cause] is Budget.NEVER


# ---- operators' rules (CLASSIFY-2)


def test_an_operators_rule_stands_before_words_and_codes() -> None:
    rule = OperatorRule(
        name="oom-is-final",
        pattern="out of memory",
        cause=Cause.UNKNOWN,
        never_retry=True,
        avoid_host=True,
    )
    found = classify(TaskFacts(exit_code=1, log_tail=CUDA_OOM), [rule])
    assert (found.cause, found.rule, found.never_retry, found.avoid_host) == (
        Cause.UNKNOWN,
        "operator:oom-is-final",
        True,
        True,
    )
    assert found.evidence == {"in": "log", "line": CUDA_OOM, "shipped_rule": "log-cuda-oom"}
    registry = OperatorRule(name="gone", pattern="manifest unknown", never_retry=True)
    found = classify(TaskFacts(pull_error="reading manifest: manifest unknown"), [registry])
    assert (found.cause, found.rule, found.never_retry) == (
        Cause.IMAGE_PULL_FAILURE,
        "operator:gone",
        True,
    )


def test_the_first_rule_that_matches_is_taken() -> None:
    rules = [
        OperatorRule(name="other", exit_codes=(4,), cause=Cause.UNKNOWN),
        OperatorRule(name="first", exit_codes=(3, 5), cause=Cause.AGENT_TRANSIENT),
        OperatorRule(name="second", exit_codes=(3,), cause=Cause.OOM_KILLED),
    ]
    assert classify(TaskFacts(exit_code=3), rules).rule == "operator:first"


def test_all_conditions_must_hold() -> None:
    rule = OperatorRule(
        name="r", pattern="boom", exit_codes=(3,), signals=(11,), cause=Cause.UNKNOWN
    )
    assert classify(TaskFacts(exit_code=3, log_tail="boom"), [rule]).rule == "operator:r"
    assert classify(TaskFacts(signal=11, log_tail="boom"), [rule]).rule == "operator:r"
    assert classify(TaskFacts(exit_code=3), [rule]).rule == "exit-code"
    assert classify(TaskFacts(exit_code=4, log_tail="boom"), [rule]).rule == "exit-code"


def test_a_rule_without_a_cause_leaves_the_one_that_was_found() -> None:
    rule = OperatorRule(name="note", pattern="Tried", avoid_host=True)
    found = classify(TaskFacts(exit_code=1, log_tail=CUDA_OOM), [rule])
    assert (found.cause, found.avoid_host, found.evidence["shipped_rule"]) == (
        Cause.OOM_KILLED,
        True,
        "log-cuda-oom",
    )
    assert "GPU's memory ran out" in found.message


@pytest.mark.parametrize("word", ["lease_lapsed", "new_incarnation", "host_gone"])
def test_a_lost_host_is_said_in_words_not_by_its_name_in_the_tables(word: str) -> None:
    facts = TaskFacts(lost=word)
    (event,) = lost_event("h", "box", word, ["j"])
    for message in (classify(facts).message, event.message):
        assert "_" not in message
        assert message.endswith(say_lost(word))
    assert event.data["why"] == word  # programs go by the word


def test_why_a_host_was_lost_is_kept_where_it_is_a_sentence_already() -> None:
    assert classify(TaskFacts(lost="its disk is full")).message.endswith(": its disk is full")


@pytest.mark.parametrize(
    "facts",
    [
        TaskFacts(unkillable=True, log_tail="boom"),
        TaskFacts(exit_code=1, xids=(79,), log_tail="boom"),
        TaskFacts(exit_code=1, ecc_errors=1, log_tail="boom"),
        TaskFacts(exit_code=1, gpu_lost="gone", log_tail="boom"),
        TaskFacts(trip=TRIP, signal=9, log_tail="boom"),
        TaskFacts(malformed="no facts", log_tail="boom"),
        TaskFacts(lost="host_gone", log_tail="boom"),
        TaskFacts(signal=15, stopped=True, stop_cause=Cause.USER_CANCELLED, log_tail="boom"),
        TaskFacts(signal=9, oom=True, log_tail="boom"),
        TaskFacts(exit_code=0, log_tail="boom"),
    ],
)
def test_no_rule_overrules_what_was_measured_tripped_or_asked_for(facts: TaskFacts) -> None:
    rule = OperatorRule(
        name="gpu-xid", pattern="boom", exit_codes=(0, 1), signals=(9, 15), cause=Cause.PREEMPTED
    )
    catch_all = OperatorRule(name="all", pattern="boom", cause=Cause.PREEMPTED)
    assert classify(facts, [rule, catch_all]) == classify(facts)


def test_a_rules_name_cannot_pass_for_a_shipped_one() -> None:
    """A rule called like those that quarantine hosts must not quarantine any."""
    for name in ("gpu-xid", "unkillable"):
        rule = OperatorRule(name=name, pattern="boom", cause=Cause.GPU_FAULT)
        assert classify(TaskFacts(exit_code=1, log_tail="boom"), [rule]).rule not in {
            shipped.name for shipped in RULES
        }


# ---- for any facts


FACTS = st.builds(
    TaskFacts,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    oom=st.booleans(),
    trip=st.none() | st.just(TRIP),
    stopped=st.booleans(),
    stop_cause=st.none() | st.sampled_from(list(Cause)),
    unkillable=st.booleans(),
    start_error=st.none() | st.text(max_size=10),
    lost=st.none() | st.text(max_size=10),
    log_tail=st.sampled_from(["", XID, CUDA_OOM, "ncclRemoteError: x", "boom"]),
    pull_error=st.none() | st.sampled_from(["", "manifest unknown", "?"]),
    runtime_error=st.none() | st.just("OCI runtime create failed"),
    xids=st.lists(st.sampled_from([13, 31, 45, 63, 79, 94, 999]), max_size=3).map(tuple),
    ecc_errors=st.integers(0, 2),
    gpu_lost=st.none() | st.just("GPU is lost"),
    malformed=st.none() | st.just("no facts"),
    max_memory_bytes=st.sampled_from([0, GIB]),
    memory_limit_bytes=st.sampled_from([0, GIB, 2 * GIB]),
)
OPERATORS = st.builds(
    OperatorRule,
    name=st.just("op"),
    pattern=st.sampled_from(["boom", "CUDA", "manifest", "OCI"]),
    cause=st.none() | st.sampled_from(ELIGIBLE),
    never_retry=st.booleans(),
)


@given(FACTS)
def test_any_facts_get_one_cause_one_sentence_and_one_code(facts: TaskFacts) -> None:
    """CLASSIFY-1."""
    found = classify(facts)
    assert found == classify(facts)
    assert found.cause in Cause
    assert found.message
    assert found.exit_code == kept_exit_code(facts)
    if facts.unkillable:
        assert found.rule == "unkillable"
    elif facts.trip is not None and not (
        facts.gpu_lost or facts.ecc_errors or {79, 94} & set(facts.xids)
    ):
        assert found.rule == "watchdog-stall"
    if facts.exit_code == 0:
        assert not found.rule.startswith("log-")


@given(FACTS)
def test_the_first_rule_that_finds_something_is_the_one(facts: TaskFacts) -> None:
    found = classify(facts)
    finders = [rule.name for rule in RULES if rule.find(facts) is not None]
    assert finders[0] == found.rule
    assert finders[-1] == "none"


@given(FACTS, st.lists(OPERATORS, max_size=3))
def test_a_rule_that_does_not_match_changes_nothing(
    facts: TaskFacts, rules: list[OperatorRule]
) -> None:
    stranger = OperatorRule(
        name="stranger", pattern="no log has this", cause=Cause.UNKNOWN, never_retry=True
    )
    plain = classify(facts, rules)
    for place in range(len(rules) + 1):
        assert classify(facts, [*rules[:place], stranger, *rules[place:]]) == plain


@given(FACTS, st.lists(OPERATORS, min_size=1, max_size=3))
def test_rules_change_only_what_words_and_codes_said(
    facts: TaskFacts, rules: list[OperatorRule]
) -> None:
    plain, found = classify(facts), classify(facts, rules)
    if plain.rule in {rule.name for rule in MEASURED} or facts.exit_code == 0:
        assert found == plain
    if found.rule.startswith("operator:"):
        assert found.evidence["shipped_rule"] == plain.rule
        assert CHARGED_TO[found.cause] is not Budget.NEVER


def test_the_memory_watch_says_its_figures_and_blames_no_kernel() -> None:
    facts = TaskFacts(signal=9, over_memory_bytes=612 << 20, memory_limit_bytes=512 << 20)
    found = classify(facts)
    assert found.message == (
        "Holdfast's watch ended it at 612 MiB, over its memory limit of 512 MiB"
    )
    assert (found.exit_code, "kernel" in found.message) == (137, False)


MISSING = """epoch 1
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import torch
ModuleNotFoundError: No module named 'torch'
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (MISSING, "ModuleNotFoundError: No module named 'torch' (exit code 1)"),
        (
            "".join(f"[rank3]: {line}\n" for line in MISSING.splitlines()),
            "ModuleNotFoundError: No module named 'torch' (exit code 1)",
        ),
        (f"{MISSING}bye\n", "ModuleNotFoundError: No module named 'torch' (exit code 1)"),
        (
            MISSING.replace("ModuleNotFoundError: No", "\x1b[1;35mmy.Error\x1b[0m: \x1b[35mNo"),
            "my.Error: No module named 'torch' (exit code 1)",
        ),
        (
            '  File "x.py", line 1\n    a b\n      ^\nSyntaxError: invalid syntax\n',
            "its code cannot be read: SyntaxError: invalid syntax",
        ),
        (
            "/usr/bin/python3: No module named x\n",
            "/usr/bin/python3: No module named x (exit code 1)",
        ),
        ("loss is nan, giving up\n", "exit code 1; its last line: loss is nan, giving up"),
        ("[stdout]\nsaved\n[stderr]\nno rows", "exit code 1; its last line: no rows"),
        ("[stdout]\nstep 4 | loss 2\n", "exit code 1"),
        ("Traceback (most recent call last):\n  File", "exit code 1"),
        ("", "exit code 1"),
    ],
)
def test_a_reason_carries_the_last_line_of_the_traceback(log: str, said: str) -> None:
    assert classify(TaskFacts(exit_code=1, log_tail=log)).message == said


def test_a_reason_of_memory_carries_its_limit_and_its_peak() -> None:
    facts = TaskFacts(signal=9, oom=True, max_memory_bytes=700 << 20, memory_limit_bytes=12 << 30)
    assert classify(facts).message.endswith("its memory peaked at 700 MiB and its limit is 12 GiB")
    killed = TaskFacts(signal=9, max_memory_bytes=262144, memory_limit_bytes=200 << 20)
    assert classify(killed).message == "killed by SIGKILL; its limit is 200 MiB"
    assert classify(TaskFacts(signal=9)).message == "killed by SIGKILL"
