"""Operators' own rules of classification: their conditions on a task's end, and their conclusions.

    [[rule]]
    name = "object-store-away"
    pattern = "botocore.*EndpointConnectionError"
    cause = "agent_transient"
    message = "the object store could not be reached"

The first rule that matches is taken. A pattern is looked for line by line in the log's tail and in
the errors of the registry, the container runtime and the start.
"""

import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.causes import ELIGIBLE, Cause
from holdfast.core.endings.toml_lines import LineMap, find_lines
from holdfast.core.facts import TaskFacts
from holdfast.core.logs.lines import cut_line
from holdfast.core.logs.regex import (
    MAX_LINE_CHARS,
    LinePattern,
    compile_for_python,
    compile_pattern,
)
from holdfast.errors import NotFound, ValidationError

MAX_RULES = 100
MAX_TEXT_BYTES = 64 * 1024
MAX_MESSAGE_CHARS = 512
MAX_CODES = 64
OUTDATED = "is not one of RE2, and is read as an earlier version read it, until it is changed"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SIGNALS: Mapping[str, int] = {
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8,
    "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15,
    "SIGXCPU": 24, "SIGXFSZ": 25,
}  # fmt: skip
"""The numbers of Linux signals that a rule may name."""


class OperatorRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. All of its conditions must hold.

    pattern: a regular expression of RE2, searched in the log's tail and in the errors of the registry, the
    runtime and the start. exit_codes, signals: numbers of which the end has one.
    cause: the cause that the rule gives the end; None keeps the one that the shipped rules find.
    never_retry: the job ends. avoid_host: the next attempt uses another host where one fits.
    message: the sentence to show; empty: one is made from the rule.
    """

    name: str
    pattern: str | None = None
    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    cause: Cause | None = None
    never_retry: bool = False
    avoid_host: bool = False
    message: str = ""


@functools.lru_cache(maxsize=4 * MAX_RULES)
def _compile(pattern: str) -> LinePattern:
    try:
        return compile_pattern(pattern)
    except ValidationError:  # an earlier version took it, and judged that it is quick
        return compile_for_python(pattern)


def list_outdated(rules: Iterable[OperatorRule]) -> list[str]:
    """Return the names of rules whose patterns RE2 cannot read, because an earlier version took
    them. Such a pattern is read by Python until it is changed."""
    found = []
    for rule in rules:
        try:
            compile_pattern(rule.pattern or "x")
        except ValidationError:
            found.append(rule.name)
    return found


def find_match(
    rule: OperatorRule, facts: TaskFacts
) -> dict[str, str | int | float | bool | None] | None:
    """Return the evidence that the rule matched, or None. An exit 0 matches no rule
    (CLASSIFY-3)."""
    evidence: dict[str, str | int | float | bool | None] = {}
    if facts.exit_code == 0:
        return None
    if rule.exit_codes or rule.signals:
        code_fits = facts.exit_code is not None and facts.exit_code in rule.exit_codes
        signal_fits = facts.signal is not None and facts.signal in rule.signals
        # No end has both an exit code and a signal, so one of the two is enough.
        if not (code_fits or signal_fits):
            return None
        evidence.update({"exit_code": facts.exit_code} if code_fits else {"signal": facts.signal})
    if rule.pattern is not None:
        found = _find_line(_compile(rule.pattern), facts)
        if found is None:
            return None
        evidence["in"], evidence["line"] = found
    return evidence


def _find_line(pattern: LinePattern, facts: TaskFacts) -> tuple[str, str] | None:
    errors = (facts.pull_error, facts.runtime_error, facts.start_error, facts.log_tail)
    for source, text in zip(("registry", "runtime", "start", "log"), errors, strict=True):
        for line in (text or "").split("\n"):
            cut = line[:MAX_LINE_CHARS].encode(errors="replace").decode()  # RE2 reads UTF-8 alone
            found = pattern.search(cut)
            if found is not None:
                return source, cut_line(cut, found.start(), found.end())
    return None


# ---- reading them


def parse_rules(
    text: str, *, keeps: Callable[[str], bool] = lambda pattern: False
) -> tuple[OperatorRule, ...]:
    """Read rules as operators write them (TOML). Raises ValidationError naming the line.

    keeps: returns whether a pattern is in force already, and stays also where RE2 cannot read it.
    """
    if not text.strip():
        return ()
    if len(text.encode()) > MAX_TEXT_BYTES:
        size = f"the rules take {len(text.encode())} bytes; the limit is {MAX_TEXT_BYTES}"
        raise ValidationError(size, field="text")
    if "\x00" in text:
        raise _refuse(text[: text.index("\x00")].count("\n") + 1, "a NUL character is no text")
    import tomllib  # few importers of this module parse rules

    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, too
        raise _explain_syntax(text, error) from None
    lines = find_lines(text)
    for key in found:
        if key != "rule":
            line = lines.top.get(key, 1)
            raise _refuse(line, f"unknown key {key!r}; rules are written as [[rule]]")
    tables = found.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        line = lines.top.get("rule", 1)
        raise _refuse(line, "rule is not a list of tables; write each as [[rule]]")
    if len(tables) > MAX_RULES:
        many = f"there are {len(tables)} rules; the limit is {MAX_RULES}"
        raise _refuse(lines.line_of(MAX_RULES), many)
    rules: list[OperatorRule] = []
    names: dict[str, int] = {}
    for number, table in enumerate(tables):
        rule = _read_rule(table, number, lines, keeps)
        if rule.name in names:
            first = lines.line_of(names[rule.name])
            twice = f"there is a rule {rule.name!r} already, in line {first}"
            raise _refuse(lines.line_of(number, "name"), twice)
        names[rule.name] = number
        rules.append(rule)
    return tuple(rules)


def drop_rule(text: str, name: str) -> str:
    """Return the text without one of its rules and the comment right above that rule.

    Raises:
        NotFound: the text has no rule of this name.
        ValidationError: the rules cannot be read, or stand in one list instead of under [[rule]].
    """
    names = [rule.name for rule in parse_rules(text, keeps=lambda pattern: True)]
    if name not in names:
        raise NotFound(f"there is no rule {name!r}", field="rule")
    begins = [line - 1 for line, _ in find_lines(text).tables]
    if len(begins) != len(names):
        raise _refuse(1, "the rules stand in one list; write each as [[rule]], or set them anew")
    lines = list(io.StringIO(text, newline="\n"))
    for number, begin in enumerate(begins):
        while begin and lines[begin - 1].lstrip().startswith("#"):
            begin -= 1
        begins[number] = begin
    place = names.index(name)
    del lines[begins[place] : [*begins, len(lines)][place + 1]]
    return "".join(lines)


def _refuse(line: int, sentence: str) -> ValidationError:
    return ValidationError(f"line {line}: {sentence}", field=f"line {line}")


def _explain_syntax(text: str, error: Exception) -> ValidationError:
    if isinstance(error, RecursionError):
        return _refuse(1, "it is nested too deeply")
    place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
    if place is not None:
        return _refuse(int(place[1]), str(error)[: place.start()])
    sentence = str(error).removesuffix(" (at end of document)")
    return _refuse(text.rstrip("\n").count("\n") + 1, sentence)


def _read_rule(
    table: Mapping[str, Any], number: int, lines: LineMap, keeps: Callable[[str], bool]
) -> OperatorRule:
    values: dict[str, Any] = {}
    for key, value in table.items():
        line = lines.line_of(number, key)
        read = _FIELDS.get(key)
        if read is None:
            raise _refuse(line, f"unknown field {key!r}; a rule has {', '.join(_FIELDS)}")
        try:
            values[key] = read(value)
            if key == "pattern":
                (compile_for_python if keeps(value) else compile_pattern)(value)
        except ValidationError as error:
            raise _refuse(line, f"{key}: {error.message}") from None
    line = lines.line_of(number)
    if "name" not in values:
        raise _refuse(line, "the rule has no name")
    if not any(key in values for key in ("pattern", "exit_codes", "signals")):
        wanted = "give a pattern, exit_codes or signals"
        raise _refuse(line, f"rule {values['name']!r} has no condition: {wanted}")
    if not any(values.get(key) for key in ("cause", "never_retry", "avoid_host", "message")):
        wanted = "give a cause, never_retry, avoid_host or a message"
        raise _refuse(line, f"rule {values['name']!r} concludes nothing: {wanted}")
    return OperatorRule(**values)


def _read_name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValidationError("1 to 64 letters, digits and ._- are wanted, a letter or digit first")
    return value


def _read_pattern(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValidationError("a regular expression is wanted")
    if "\n" in value:
        raise ValidationError(
            "a pattern is looked for within one line, so it cannot hold a line break"
        )
    return value


def _read_codes(value: Any) -> tuple[int, ...]:
    codes = _read_list(value)
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
            zero = "exit code 0 is a success, which no rule is asked about"
            why = zero if code == 0 else "exit codes are 1 to 255"
            raise ValidationError(f"{code!r}: {why}")
    return tuple(dict.fromkeys(codes))


def _read_signals(value: Any) -> tuple[int, ...]:
    numbers = []
    for signal in _read_list(value):
        number = SIGNALS.get(signal) if isinstance(signal, str) else signal
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 64:
            form = "a signal is a number from 1 to 64 or a name such as SIGSEGV"
            raise ValidationError(f"{signal!r}: {form}")
        numbers.append(number)
    return tuple(dict.fromkeys(numbers))


def _read_list(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= MAX_CODES:
        raise ValidationError(f"1 to {MAX_CODES} are wanted")
    return values


def _read_cause(value: Any) -> Cause:
    if not isinstance(value, str) or value not in ELIGIBLE:
        what = "is given by Holdfast alone" if value in list(Cause) else "is no cause"
        may = f"a rule may conclude {', '.join(ELIGIBLE)}, or set never_retry"
        raise ValidationError(f"{value!r} {what}; {may}")
    return Cause(value)


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValidationError("true or false is wanted")
    return value


def _read_message(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_MESSAGE_CHARS or not value.isprintable():
        raise ValidationError(f"one line of at most {MAX_MESSAGE_CHARS} characters is wanted")
    return value


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "name": _read_name,
    "pattern": _read_pattern,
    "exit_codes": _read_codes,
    "signals": _read_signals,
    "cause": _read_cause,
    "never_retry": _read_flag,
    "avoid_host": _read_flag,
    "message": _read_message,
}
