"""classify(facts) → cause. Ordered rules, first match wins, and the answer says which rule matched."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.core.causes import CAUSE_OF_TRIP, Cause
from holdfast.core.facts import Classified, TaskFacts
from holdfast.core.rules import OperatorRule

SIGKILL = 9
_CUDA_OOM = re.compile(
    r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: Out of memory"
    r"|HIP out of memory|cudaErrorMemoryAllocation"
)
_GPU_FAULT = re.compile(
    r"NVRM: Xid|CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC error|GPU has fallen off the bus|CUDA_ERROR_DEVICE_UNAVAILABLE"
)


class Rule(NamedTuple):
    """One rule: its name, when it holds, and what it concludes."""

    name: str
    holds: Callable[[TaskFacts], bool]
    cause: Cause
    message: Callable[[TaskFacts], str]


def signal_name(number: int) -> str:
    """The name of a Linux signal as people know it, `SIG` and number where it has none."""
    names = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
             11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ"}  # fmt: skip
    return names.get(number, f"SIG{number}")


RULES: tuple[Rule, ...] = (
    Rule("unkillable", lambda f: f.unkillable, Cause.GPU_FAULT,
         lambda f: "the process survived SIGKILL: it is stuck in the kernel or a driver"),
    Rule("host-lost", lambda f: f.lost is not None, Cause.AGENT_TRANSIENT, lambda f: f"its host was lost: {f.lost}"),
    Rule("stopped", lambda f: f.stopped and f.stop_cause is not None, Cause.HOST_DRAINED,
         lambda f: "its host was shut down" if f.stop_cause is Cause.HOST_DRAINED else f"it was stopped: {f.stop_cause}"),
    Rule("oom-counter", lambda f: f.oom, Cause.OOM_KILLED, lambda f: "the kernel killed it for memory (OOM counter of its cgroup)"),
    Rule("gpu-fault-text", lambda f: f.trip is None and f.exit_code != 0 and bool(_GPU_FAULT.search(f.log_tail)), Cause.GPU_FAULT,
         lambda f: "its log shows a GPU hardware fault"),
    Rule("cuda-oom-text", lambda f: f.trip is None and f.exit_code != 0 and bool(_CUDA_OOM.search(f.log_tail)), Cause.OOM_KILLED,
         lambda f: "its log shows that the GPU's memory ran out"),
    Rule("start-error", lambda f: f.start_error is not None, Cause.NONZERO_EXIT, lambda f: f"it could not be started: {f.start_error}"),
    Rule("signal", lambda f: f.signal is not None, Cause.NONZERO_EXIT,
         lambda f: f"killed by {signal_name(f.signal or 0)}"),
    Rule("exit-code", lambda f: f.exit_code is not None and f.exit_code != 0, Cause.NONZERO_EXIT,
         lambda f: f"exit code {f.exit_code}"),
)  # fmt: skip


def kept_exit_code(facts: TaskFacts) -> int | None:
    """The exit code kept on the attempt: the watchdog's, else the process's, else 128 + signal, else 127 for no start."""
    if facts.trip is not None:
        return facts.trip.exit_code
    if facts.exit_code is not None:
        return facts.exit_code
    if facts.signal is not None:
        return 128 + facts.signal
    return 127 if facts.start_error is not None else None


def classify(facts: TaskFacts, rules: Sequence[OperatorRule] = ()) -> Classified:
    """Return the cause of a task's end, the rule that said so, and a sentence.

    A trip decides first, because what the process did after it was killed says nothing about why.
    """
    code = kept_exit_code(facts)
    if facts.trip is not None and not facts.unkillable:
        trip = facts.trip
        return Classified(
            cause=CAUSE_OF_TRIP[trip.watchdog],
            rule=f"watchdog-{trip.watchdog}",
            message=trip.reason,
            exit_code=code,
        )
    for rule in RULES:
        if rule.holds(facts):
            # Whoever stopped it without being asked by the controller says why; the rule's cause is the usual one.
            cause = facts.stop_cause or rule.cause if rule.name == "stopped" else rule.cause
            return Classified(cause=cause, rule=rule.name, message=rule.message(facts), exit_code=code)
    return Classified(cause=Cause.UNKNOWN, rule="none", message="it ended and nothing says why", exit_code=code)
