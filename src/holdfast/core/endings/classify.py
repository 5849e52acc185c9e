"""classify(facts) → cause: ordered rules as data; the first that finds something wins.

The order, and why:

1. `unkillable` and the readings of the devices (`gpu-lost`, `gpu-ecc`, `gpu-xid`): a job cannot
   make them up, and they explain what follows. They stand before the trips of the hang watchdogs,
   because a task on a device that fell off the bus stands still; a trip for another reason (time
   limit, lost lease, operator) overrules them.
2. The trip. What a process did after it was killed says nothing about why.
3. `malformed`, `app-unusable`, `host-start`, `host-preempted`, `host-lost`, `stopped`, `never-starts`:
   the report is not about the task's own end, so no rule below may read it as such.
4. Memory: measured by the agent's watch, which ended the task, or counted by the kernel.
5. Operators' rules (CLASSIFY-2).
6. The words: of the registry, of the port chosen for the rendezvous, then of the runtime and the
   program (`core.endings.patterns`), of which what programs often print and go on counts only in
   the exception that ended it or as its last words (`core.endings.raised`), then what the driver
   blamed on the program.
7. How it ended: no start, a signal, an exit code. One of these always matches, and it says the
   least.

CLASSIFY-1  Facts alone decide: the same facts and rules give the same answer, and every end gets
            one.
CLASSIFY-2  An operator's rule stands before everything that reads words or exit codes, and behind
            everything that was measured, tripped or asked for: it can give an end another cause,
            but it cannot hide a broken device or bring back a job whose cause is never retried.
CLASSIFY-3  Words never make a failure of an exit 0, except by a pattern that the job itself names.
CLASSIFY-4  A fallen task's facts become a cause and a sentence in one place,
            `fallen.classify_fallen`, with the operators' rules in force: when the drain begins, on
            what shows the drain, and on the attempt that has ended.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.causes import CAUSE_OF_TRIP, Cause, Watchdog
from holdfast.core.endings.patterns import CASCADE, OTHER_NCCL, PORT_IN_USE, PULL, TEXT, find_ports
from holdfast.core.endings.raised import (
    SAID,
    began_with_passing,
    find_exception,
    find_last_line,
    find_raised,
    tells_of_a_peer,
)
from holdfast.core.endings.rules import SIGNALS, OperatorRule, find_match
from holdfast.core.endings.wording import LogPart, Pattern
from holdfast.core.endings.xids import Blame, find_xid, find_xid_lines, leave_out_others
from holdfast.core.facts import KEEPER_KILLED, Classified, TaskFacts, is_preempted, say_lost
from holdfast.core.logs.lines import MAX_LINE_CHARS, cut_line
from holdfast.core.watchdogs.lost_lease import TOLD
from holdfast.core.words import say_bytes

SIGKILL = 9
LEAST_PEAK_BYTES = 1 << 20
NEAR_LIMIT = 0.95
"""A SIGKILL that Holdfast did not send, this near to the memory limit, counts as the OOM killer's."""
OPERATOR = "operator:"
"""The prefix of a rule's name where an operator's rule explained the end."""
HOST_START = "host-start"
"""The name of the rule for a start that failed because its host lacked something."""
STOPPED = "stopped"
"""The name of the rule for a task that its own host stopped, as where the host gets TERM."""
NEVER_STARTS = "never-starts"
"""The name of the rule for a start that would fail on the same host again."""
LEASE_DENIED = "lease-denied"
"""The name of the rule for a task that ended only because the controller said that it knows no such
task. The report of that end is believed by a controller that does know it, so the word was wrong."""
HANGS = (Watchdog.STALL, Watchdog.GPU_HEALTH)

Evidence = Mapping[str, str | int | float | bool | None]


class Rule(NamedTuple):
    """One rule of classification. find: returns the evidence, None where the rule does not match.
    cause: the cause it concludes. say: writes the sentence from the facts and the evidence.
    elsewhere: the next attempt belongs on another host."""

    name: str
    find: Callable[[TaskFacts], Evidence | None]
    cause: Cause | Callable[[TaskFacts], Cause]
    say: Callable[[TaskFacts, Evidence], str]
    elsewhere: bool = False


def signal_name(number: int) -> str:
    """Return the name of a Linux signal, `SIG` and its number where it has none."""
    return _SIGNAL_NAMES.get(number, f"SIG{number}")


_SIGNAL_NAMES = {number: name for name, number in SIGNALS.items()}


def _when(holds: bool, **evidence: str | int | float | bool | None) -> Evidence | None:
    return evidence if holds else None


# ---- 1: measured on the devices


def _own_end(facts: TaskFacts) -> bool:
    """Return whether the task ended by itself or for a hang, so that its devices may explain it."""
    if facts.trip is not None:
        return facts.trip.watchdog in HANGS
    return not facts.succeeded and not facts.stopped and facts.lost is None


def _find_device_xid(facts: TaskFacts) -> Evidence | None:
    return _find_xid_of(facts, Blame.HARDWARE) if _own_end(facts) else None


def _find_xid_of(facts: TaskFacts, blame: Blame) -> Evidence | None:
    xid = find_xid(facts.xids, blame)
    if xid is None:
        return None
    return {"xid": xid.code, "meaning": str(xid), "xids": _list_codes(facts.xids)}


def _list_codes(codes: Sequence[int]) -> str:
    return ", ".join(str(code) for code in dict.fromkeys(codes))


DEVICES: tuple[Rule, ...] = (
    Rule("unkillable", lambda f: _when(f.unkillable), Cause.GPU_FAULT,
         lambda f, e: "the process survived SIGKILL: it is stuck in the kernel or a driver"),
    Rule("gpu-lost", lambda f: _when(f.gpu_lost is not None and _own_end(f), gpu_lost=f.gpu_lost),
         Cause.GPU_FAULT, lambda f, e: f"one of its GPUs no longer answers: {f.gpu_lost}"),
    Rule("gpu-ecc",
         lambda f: _when(f.ecc_errors > 0 and _own_end(f), ecc_errors=f.ecc_errors, xids=_list_codes(f.xids)),
         Cause.GPU_FAULT,
         lambda f, e: f"its GPU counted {f.ecc_errors} uncorrectable memory errors (ECC) while it ran"),
    Rule("gpu-xid", _find_device_xid, Cause.GPU_FAULT,
         lambda f, e: f"the driver reported a GPU fault while it ran, {e['meaning']}"),
)  # fmt: skip


# ---- 2 and 3: ended from outside


def _tripped(watchdog: Watchdog) -> Rule:
    def find(facts: TaskFacts) -> Evidence | None:
        trip = facts.trip
        return trip.evidence if trip is not None and trip.watchdog is watchdog else None

    cause = CAUSE_OF_TRIP[watchdog]
    return Rule(f"watchdog-{watchdog}", find, cause, lambda f, e: f.trip.reason if f.trip else "")


def _find_denial(facts: TaskFacts) -> Evidence | None:
    trip = facts.trip
    denied = trip is not None and trip.watchdog is Watchdog.LOST_LEASE
    return trip.evidence if denied and trip and trip.evidence.get("source") in TOLD else None


TRIPS = (
    Rule(LEASE_DENIED, _find_denial, Cause.AGENT_TRANSIENT,
         lambda f, e: f"the controller said by mistake that it does not know this task ({e['source']})"),
    *map(_tripped, Watchdog),
)  # fmt: skip


def _say_stop(facts: TaskFacts, evidence: Evidence) -> str:
    shut_down = facts.stop_cause is Cause.HOST_DRAINED
    return "its host was shut down" if shut_down else f"it was stopped: {facts.stop_cause}"


OUTSIDE: tuple[Rule, ...] = (
    Rule("malformed-report", lambda f: _when(f.malformed is not None, malformed=f.malformed), Cause.MALFORMED_REPORT,
         lambda f, e: f"the report of its end cannot be used: {f.malformed}"),
    Rule("app-unusable", lambda f: _when(f.app_error is not None), Cause.APP_UNUSABLE,
         lambda f, e: f"its host cannot run the app: {f.app_error}"),
    # A failed start, not a lost host: a host that lacks something lacks it a second later too (BUDGET-5).
    Rule(HOST_START, lambda f: _when(f.lost is not None and f.start_error is not None, start_error=f.start_error),
         Cause.START_TIMEOUT, lambda f, e: f"its host could not start it: {f.lost}"),
    Rule("host-preempted", lambda f: _when(is_preempted(f.lost), lost=f.lost), Cause.PREEMPTED,
         lambda f, e: f"its host was preempted: {say_lost(f.lost or '')}"),
    Rule("keeper-killed", lambda f: _when(f.lost == KEEPER_KILLED), Cause.AGENT_TRANSIENT,
         lambda f, e: "its keeper, the process of Holdfast above it, was killed, and it died with it"),
    Rule("host-lost", lambda f: _when(f.lost is not None, lost=f.lost), Cause.AGENT_TRANSIENT,
         lambda f, e: f"its host was lost: {say_lost(f.lost or '')}"),
    # An agent that stops a task without the controller's order says why.
    Rule(STOPPED, lambda f: _when(f.stopped and f.stop_cause is not None),
         lambda f: f.stop_cause or Cause.HOST_DRAINED, _say_stop),
    # No other try mends it, unless another host has the program (BUDGET-7).
    Rule(NEVER_STARTS, lambda f: _when(f.start_error is not None and f.exit_code in (126, 127), exit_code=f.exit_code),
         Cause.VALIDATION_ERROR, lambda f, e: f"it could not be started: {_cut(f.start_error)}"),
)  # fmt: skip


# ---- 4: memory, as it was measured


def _find_kill_at_limit(facts: TaskFacts) -> Evidence | None:
    killed = facts.signal == SIGKILL or facts.exit_code == 128 + SIGKILL
    limit, most = facts.memory_limit_bytes, facts.max_memory_bytes
    # A peak counts the file cache too, so another's kill may find it near the limit.
    known = facts.stopped or facts.oom_counted
    near = killed and not known and limit > 0 and most >= NEAR_LIMIT * limit
    return _when(near, max_memory_bytes=most, memory_limit_bytes=limit)


def _say_kill_at_limit(facts: TaskFacts, evidence: Evidence) -> str:
    percent = 100 * facts.max_memory_bytes / facts.memory_limit_bytes
    limit = say_bytes(facts.memory_limit_bytes)
    return f"killed by SIGKILL at {percent:.0f} % of its memory limit of {limit}"


def _say_watched(facts: TaskFacts, evidence: Evidence) -> str:
    used, limit = say_bytes(facts.over_memory_bytes), say_bytes(facts.memory_limit_bytes)
    return f"Holdfast's watch ended it at {used}, over its memory limit of {limit}"


def _say_memory(facts: TaskFacts) -> str:
    """Return the task's memory peak and limit, as far as they are known, to append to a
    sentence."""
    peak, limit = facts.max_memory_bytes, facts.memory_limit_bytes
    # Less than this is the peak of the process that started the program, where nothing counts more.
    parts = [f"its memory peaked at {say_bytes(peak)}"] if peak >= LEAST_PEAK_BYTES else []
    parts += [f"its limit is {say_bytes(limit)}"] if limit else []
    return f"; {' and '.join(parts)}" if parts else ""


_OF_KILLS = re.compile(r"[Kk]ill|memory|Memory|abruptly|unexpectedly|EOFError|-9\b|\b137\b")


def _ended_otherwise(facts: TaskFacts) -> bool:
    """Return whether the program outlived the kernel's kill of one of its processes: an exception
    ended it that tells of no killed process, peer or memory."""
    raised = find_raised(facts.log_tail) if facts.exit_code == 1 else None
    if raised is None or tells_of_a_peer(raised):
        return False
    return not any(map(_OF_KILLS.search, (*raised.before, raised.block)))


MEMORY_COUNTERS: tuple[Rule, ...] = (
    Rule("memory-watch", lambda f: _when(f.over_memory_bytes > 0 and not f.stopped, used_bytes=f.over_memory_bytes,
                                         memory_limit_bytes=f.memory_limit_bytes), Cause.OOM_KILLED, _say_watched),
    Rule("oom-counter", lambda f: _when(f.oom and not _ended_otherwise(f), max_memory_bytes=f.max_memory_bytes,
                                        memory_limit_bytes=f.memory_limit_bytes), Cause.OOM_KILLED,
         lambda f, e: f"the kernel killed it for memory, as its own control group shows{_say_memory(f)}"),
    Rule("oom-sigkill", _find_kill_at_limit, Cause.OOM_KILLED, _say_kill_at_limit),
)  # fmt: skip

MEASURED: tuple[Rule, ...] = DEVICES + TRIPS + OUTSIDE + MEMORY_COUNTERS
"""The rules that operators' rules cannot overrule (CLASSIFY-2)."""


# ---- 6: words

RENDEZVOUS_SECONDS = 60.0
"""The first rank of a gang listens within this time of its start, even after a slow import."""


def _find_taken_port(facts: TaskFacts) -> Evidence | None:
    """Find that the port chosen for the rendezvous was taken before the task listened on it. A line
    that does not name that port, or a program that ran for long, is the program's own affair."""
    early = facts.runtime_seconds <= RENDEZVOUS_SECONDS and _may_read(facts)
    end = SAID[LogPart.END](facts.log_tail) if early and facts.rendezvous_port else ""
    for line in end.splitlines():
        if facts.rendezvous_port in find_ports(line) and PORT_IN_USE.search(line) is not None:
            return {"line": cut_line(line, 0, len(line)), "port": facts.rendezvous_port}
    return None


def _may_read(facts: TaskFacts) -> bool:
    return facts.exit_code != 0  # CLASSIFY-3


def _in_words(pattern: Pattern) -> Rule:
    def find(facts: TaskFacts) -> Evidence | None:
        killed = pattern.part in (LogPart.LAST, LogPart.RAISED) and _is_killed(facts)
        if killed or not _may_read(facts) or not _ended_with(facts, pattern.code):
            return None
        if pattern.cause is Cause.PROGRAM_ERROR and began_with_passing(facts.log_tail):
            return None
        log = SAID[pattern.part](facts.log_tail)
        if pattern.cause is Cause.GPU_FAULT:
            log = leave_out_others(log, facts.devices)
        for source, said in (("log", log), ("runtime", facts.runtime_error or "")):
            found = pattern.search(said) if said else None
            if found is not None:
                return {"line": cut_line(said, found.start(), found.end()), "in": source}
        return None

    def say(facts: TaskFacts, evidence: Evidence) -> str:
        return f"{pattern.sentence}: {evidence['line']}"

    return Rule(f"log-{pattern.name}", find, pattern.cause, say, pattern.elsewhere)


def _is_killed(facts: TaskFacts) -> bool:
    """Return whether a signal ended the program, so that its last words may be of another matter."""
    return facts.signal is not None or 129 <= (facts.exit_code or 0) <= 159


def _ended_with(facts: TaskFacts, code: int) -> bool:
    """Return whether the program, or a rank of its launcher, ended with this exit code."""
    return code in (0, facts.exit_code) or f"exitcode  : {code} " in facts.log_tail


def _find_neighbour(facts: TaskFacts) -> Evidence | None:
    """Find the exception of a rank in a log that also holds what its neighbours tell of its end."""
    raised = find_raised(facts.log_tail) if _may_read(facts) else None
    if raised is None or not raised.rank or tells_of_a_peer(raised):
        return None
    return {"line": raised.line, "in": "log"}


def _in_pull(pattern: Pattern) -> Rule:
    def find(facts: TaskFacts) -> Evidence | None:
        text = facts.pull_error or ""
        found = pattern.search(text) if text else None
        if found is None:
            return None
        return {"line": cut_line(text, found.start(), found.end()), "in": "registry"}

    def say(facts: TaskFacts, evidence: Evidence) -> str:
        return f"its image could not be fetched: {pattern.sentence}: {evidence['line']}"

    return Rule(f"pull-{pattern.name}", find, pattern.cause, say)


def _find_xid_words(blame: Blame) -> Callable[[TaskFacts], Evidence | None]:
    def find(facts: TaskFacts) -> Evidence | None:
        if "NVRM: Xid" not in facts.log_tail or not _may_read(facts):
            return None
        end = SAID[LogPart.END](facts.log_tail)
        near = SAID[LogPart.NEAR](facts.log_tail) if _OF_DEVICES.search(end) else end
        text = leave_out_others(near, facts.devices)
        for at, line in find_xid_lines(text):
            xid = find_xid([line.code], blame)
            if xid is not None:
                shown = cut_line(text, at, at + 1)
                return {"line": shown, "in": "log", "xid": xid.code, "meaning": str(xid)}
        return None

    return find


_OF_DEVICES = re.compile(r"CUDA|cuda|NCCL|HIP|GPU")


def _find_own_xid(facts: TaskFacts) -> Evidence | None:
    return _find_xid_of(facts, Blame.APPLICATION) if _may_read(facts) else None


WORDS: tuple[Rule, ...] = (
    Rule("setup", lambda f: _when(f.setup_error is not None), Cause.SETUP_FAILED,
         lambda f, e: f"its code or its environment could not be made ready: {_cut(f.setup_error)}"),
    *map(_in_pull, PULL),
    Rule("pull-error", lambda f: _when(f.pull_error is not None), Cause.IMAGE_PULL_FAILURE,
         lambda f, e: f"its image could not be fetched: {_cut(f.pull_error)}"),
    Rule("rendezvous-port", _find_taken_port, Cause.AGENT_TRANSIENT,
         lambda f, e: f"the port chosen for its rendezvous was taken before it could listen on it: {e['line']}"),
    Rule("log-xid", _find_xid_words(Blame.HARDWARE), Cause.GPU_FAULT,
         lambda f, e: f"its log shows a GPU fault, {e['meaning']}"),
    *(_in_words(pattern) for pattern in TEXT if pattern not in CASCADE + OTHER_NCCL),
    Rule("rank-raised", _find_neighbour, Cause.NONZERO_EXIT, lambda f, e: f"{e['line']} ({_say_end(f)})"),
    *map(_in_words, CASCADE + OTHER_NCCL),
    Rule("gpu-xid-own", _find_own_xid, Cause.NONZERO_EXIT,
         lambda f, e: f"{_say_end(f)}; the driver blamed the program, {e['meaning']}"),
    Rule("log-xid-own", _find_xid_words(Blame.APPLICATION), Cause.NONZERO_EXIT,
         lambda f, e: f"{_say_end(f)}; the driver blamed the program, {e['meaning']}"),
    Rule("runtime-error", lambda f: _when(f.runtime_error is not None), Cause.NONZERO_EXIT,
         lambda f, e: f"the container runtime could not run it: {_cut(f.runtime_error)}"),
)  # fmt: skip


# ---- 7: how it ended


def _cut(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1] + "…"


def _say_exit(code: int) -> str:
    known = {126: "a command that cannot be executed", 127: "a command that was not found"}
    shell = known.get(code)
    if 129 <= code <= 159:
        shell = signal_name(code - 128)
    return f"exit code {code}" if shell is None else f"exit code {code}, a shell's for {shell}"


def _find_exit(facts: TaskFacts) -> Evidence | None:
    if facts.exit_code in (None, 0):
        return None
    line, last = find_exception(facts.log_tail), find_last_line(facts.log_tail)
    said = {"line": line} if line is not None else {"last_line": last} if last is not None else {}
    return {"exit_code": facts.exit_code, **said}


def _say_exit_with_words(facts: TaskFacts, evidence: Evidence) -> str:
    said = _say_exit(facts.exit_code or 0)
    if "last_line" in evidence:
        return f"{said}; its last line: {evidence['last_line']}"
    return f"{evidence['line']} ({said})" if "line" in evidence else said


def _say_end(facts: TaskFacts) -> str:
    if facts.signal is not None:
        return f"killed by {signal_name(facts.signal)}"
    return "it ended" if facts.exit_code is None else f"exit code {facts.exit_code}"


ENDS: tuple[Rule, ...] = (
    Rule("checkpoint", lambda f: _when(f.checkpoint_error is not None), Cause.START_TIMEOUT,
         lambda f, e: f"it was not started, because its checkpoint could not be fetched: {_cut(f.checkpoint_error)}"),
    Rule("start-error", lambda f: _when(f.start_error is not None), Cause.NONZERO_EXIT,
         lambda f, e: f"it could not be started: {_cut(f.start_error)}"),
    Rule("fail-on", lambda f: _when(f.failed_on is not None, line=f.failed_on), Cause.NONZERO_EXIT,
         lambda f, e: f"it exited with 0, but its job fails on a line that it printed: {e['line']}"),
    Rule("signal", lambda f: _when(f.signal is not None, signal=f.signal), Cause.NONZERO_EXIT,
         lambda f, e: f"killed by {signal_name(f.signal or 0)}{_say_memory(f) if f.signal == SIGKILL else ''}"),
    Rule("exit-code", _find_exit, Cause.NONZERO_EXIT, _say_exit_with_words),
    Rule("none", lambda f: {}, Cause.UNKNOWN, lambda f, e: "it ended and nothing says why"),
)  # fmt: skip

UNMEASURED: tuple[Rule, ...] = WORDS + ENDS
"""The shipped rules that come after `MEASURED`; operators' rules are tried between the two."""


def kept_exit_code(facts: TaskFacts) -> int | None:
    """Return the exit code to keep on the attempt: the watchdog's, else the process's, else 128 +
    the signal, else 127 for a failed start; 1 for an exit 0 that its job's `fail_on` forbids."""
    if facts.trip is not None:
        return facts.trip.exit_code
    if facts.failed_on is not None and facts.exit_code == 0:
        return 1  # 0 would say that it succeeded
    if facts.exit_code is not None:
        return facts.exit_code
    if facts.signal is not None:
        return 128 + facts.signal
    if facts.lost is not None:
        return None
    errors = (facts.start_error, facts.pull_error, facts.runtime_error, facts.checkpoint_error)
    return 127 if any(error is not None for error in errors) else None


def classify(facts: TaskFacts, rules: Sequence[OperatorRule] = ()) -> Classified:
    """Return the cause of a task's end, with the rule that found it, a sentence and the evidence.

    rules: the operators' rules in their order; the first match wins, as `operator:NAME`.
    """
    found = _apply(MEASURED, facts)
    if found is not None:
        return found
    shipped = _apply(UNMEASURED, facts)
    assert shipped is not None  # the last rule always finds
    for rule in rules:
        evidence = find_match(rule, facts)
        if evidence is not None:
            return Classified(
                cause=rule.cause or shipped.cause,
                rule=OPERATOR + rule.name,
                message=rule.message or f"{shipped.message} (operator's rule {rule.name})",
                exit_code=shipped.exit_code,
                evidence={**evidence, "shipped_rule": shipped.rule},
                never_retry=rule.never_retry,
                avoid_host=rule.avoid_host,
            )
    return shipped


def _apply(rules: Sequence[Rule], facts: TaskFacts) -> Classified | None:
    for rule in rules:
        evidence = rule.find(facts)
        if evidence is not None:
            cause = rule.cause if isinstance(rule.cause, Cause) else rule.cause(facts)
            return Classified(
                cause=cause,
                rule=rule.name,
                message=rule.say(facts, evidence),
                exit_code=kept_exit_code(facts),
                evidence=dict(evidence),
                avoid_host=rule.elsewhere,
            )
    return None
