"""Operators' rules: read with the line of each mistake, and never slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import ELIGIBLE, Cause
from holdfast.core.endings.classify import classify
from holdfast.core.endings.rules import (
    MAX_RULES,
    MAX_TEXT_BYTES,
    OperatorRule,
    drop_rule,
    find_match,
    list_outdated,
    parse_rules,
)
from holdfast.core.endings.toml_lines import find_lines
from holdfast.core.endings.wording import find_words
from holdfast.core.facts import TaskFacts
from holdfast.core.logs.regex import (
    MAX_LINE_CHARS,
    MAX_PATTERN_CHARS,
    compile_for_python,
    compile_pattern,
)
from holdfast.errors import NotFound, ValidationError

GOOD = """\
# What we know of our cluster.
[[rule]]
name = "object-store"
pattern = 'botocore\\.exceptions\\.EndpointConnectionError'
cause = "agent_transient"
message = "the object store was away"

[[rule]]
name = "bad-config"
exit_codes = [64, 78]
never_retry = true

[[rule]]
name = "segfaults-here"
signals = ["SIGSEGV", 7]
avoid_host = true
"""


def test_reading() -> None:
    assert parse_rules("") == parse_rules("  \n") == parse_rules("# none yet\n") == ()
    assert parse_rules(GOOD) == (
        OperatorRule(
            name="object-store",
            pattern="botocore\\.exceptions\\.EndpointConnectionError",
            cause=Cause.AGENT_TRANSIENT,
            message="the object store was away",
        ),
        OperatorRule(name="bad-config", exit_codes=(64, 78), never_retry=True),
        OperatorRule(name="segfaults-here", signals=(11, 7), avoid_host=True),
    )
    assert parse_rules('[[rule]]\nname="one"\nexit_codes=3\ncause="unknown"')[0].exit_codes == (3,)


RULE = '[[rule]]\nname = "r"\nexit_codes = [3]\ncause = "unknown"\n'


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[[rule]\nname = 1", 1, "]]"),
        (RULE + "\nname : x", 6, "Expected"),
        ('[[rule]]\nname = "r', 2, ""),
        (RULE + "x\x00y", 5, "NUL"),
        (RULE + '[[rule]]\nname = "q"\nexit_code = [3]\ncause = "unknown"', 7, "unknown field 'exit_code'"),
        (RULE + '\n\n[[rule]]\nname = "s"\nsignals = ["SIGNOPE"]\ncause = "unknown"\n', 9, "SIGNOPE"),
        ('[[rule]]\nexit_codes = [3]\ncause = "unknown"', 1, "no name"),
        ('[[rule]]\nname = "a b"\nexit_codes = [3]\ncause = "unknown"', 2, "letters, digits"),
        ('[[rule]]\nname = "r"\ncause = "unknown"', 1, "no condition"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]', 1, "concludes nothing"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\nnever_retry = false', 1, "concludes nothing"),
        (RULE + RULE, 6, "already, in line 1"),
        ('[[rule]]\nname = "r"\nexit_codes = [0]\ncause = "unknown"', 3, "success"),
        ('[[rule]]\nname = "r"\nexit_codes = [256]\ncause = "unknown"', 3, "1 to 255"),
        ('[[rule]]\nname = "r"\nexit_codes = [true]\ncause = "unknown"', 3, "1 to 255"),
        ('[[rule]]\nname = "r"\nexit_codes = []\ncause = "unknown"', 3, "1 to 64"),
        ('[[rule]]\nname = "r"\nsignals = [65]\ncause = "unknown"', 3, "1 to 64"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\ncause = "sunspots"', 4, "is no cause"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\ncause = '
        '"user_cancelled"', 4, "by Holdfast alone"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\ncause = '
        '"malformed_report"', 4, "by Holdfast alone"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\nnever_retry = 1', 4, "true or false"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\nmessage = "a\\nb"', 4, "one line"),
        ('[[rule]]\nname = "r"\npattern = ""\ncause = "unknown"', 3, "regular expression"),
        ('[[rule]]\nname = "r"\npattern = "["\ncause = "unknown"', 3, "cannot be read: missing ]"),
        ('[[rule]]\nname = "r"\npattern = "a*"\ncause = "unknown"', 3, "everything"),
        ('[[rule]]\nname = "r"\npattern = "(?=a)b"\ncause = "unknown"', 3, "without look-arounds"),
        ("[[rule]]\nname = \"r\"\npattern = '(x)\\1'\ncause = \"unknown\"", 3, "back-references"),
        ('[rule]\nname = "r"', 1, "list of tables"),
        ('\nrule = 3', 2, "list of tables"),
        ('[[rules]]\nname = "r"', 1, "unknown key 'rules'"),
        ('# a\n\nversion = 1\n' + RULE, 3, "unknown key 'version'"),
        # A text of several lines, or a list, that looks like a rule must not move the count.
        ('[[rule]]\nname = "r"\nexit_codes = [\n  3, # ]\n  4,\n]\nmessage = '
        '\'\'\'[[rule]]\'\'\'\nbad = 1', 8, "unknown field 'bad'"),
        ('[[rule]]\nname = "r"\nexit_codes = [3]\nmessage = """x \\\n[[rule]] \\\nname = '
        '"""\ncolour = "red"\n' + RULE, 7, "'colour'"),
        ('[[ "rule" ]]\nname = "r"\n"exit_codes" = [3]\n\'cause\' = "sunspots"', 4, "no cause"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_rules(text)
    assert caught.value.message.startswith(f"line {line}: ")
    assert caught.value.field == f"line {line}"
    assert says in caught.value.message


def test_limits() -> None:
    many = "".join(
        f'[[rule]]\nname = "r{n}"\nexit_codes = [3]\ncause = "unknown"\n'
        for n in range(MAX_RULES + 1)
    )
    with pytest.raises(ValidationError, match=f"line {4 * MAX_RULES + 1}: there are 101 rules"):
        parse_rules(many)
    with pytest.raises(ValidationError, match="bytes"):
        parse_rules("#" * (MAX_TEXT_BYTES + 1))
    with pytest.raises(ValidationError, match="line 3: pattern: the pattern has 501 characters"):
        parse_rules(
            f'[[rule]]\nname = "r"\npattern = "{"x" * (MAX_PATTERN_CHARS + 1)}"\ncause = "unknown"'
        )


TEXT = st.text(st.sampled_from("[]{}\"'#=\\ \n.,ruleabc03"), max_size=120)


@given(TEXT)
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    refusal = ""
    try:
        parse_rules(text)
    except ValidationError as error:
        refusal = error.message
    assert refusal.startswith("line ") or not refusal


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "",
                    "\n",
                    "# [[rule]]\n",
                    'message = """\n[[rule]]\n"""\n',
                    "exit_codes = [\n1,\n]\n",
                ]
            ),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_lines_of_rules_are_found_among_anything(parts: list[tuple[str, int]]) -> None:
    text, expected = "", []
    for body, blank in parts:
        text += "\n" * blank
        expected.append(text.count("\n") + 1)
        text += "[[rule]]\n" + body
    lines = find_lines(text)
    assert [begin for begin, _ in lines.tables] == expected


# ---- patterns that could take very long


@pytest.mark.parametrize(
    "pattern",
    [r"(\w+) \1", "(?P<n>a)(?P=n)", "(?=x)y", "x(?!y)", "(?<!a)b", "(a)?(?(1)b|c)", "a++b", "(?>a)b", r"end\Z", "["],
)  # fmt: skip
def test_what_no_linear_engine_reads_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="patterns are written as RE2 reads them"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "botocore.*EndpointConnectionError", r"exit status \d+ on \S+ after \d+ s", r"(?:\d{1,3}\.){3}\d{1,3}:\d+ refused", "(?i)license.*expired",
        "^foo.*bar.*baz", "NFS|Stale file handle", r"\S+\s*: no such user", r"E\d{4} [0-9a-f]{8,16}: lost", r"took \d+ ms$",
        "a{3}", r"error: .*: \d+ of \d+", "lost.*after.*tries", "(?:retry \\d+, )+gave up",
    ],
)  # fmt: skip
def test_patterns_that_people_write_are_taken(pattern: str) -> None:
    compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a*)*b", "(a|aa)+$", "(?:a?){20}a{20}c", "(.*)*x", "(?:x+x+)+y", r"(\w+\s?)+$", "a*a*b", ".*.*=.*", r".*\d+x",
        "(?:ab|ba|cc){8}x", "^.*.*.*x", "(?i)[a-z]+[A-Z]+x", ".{0,1000}c", "(?:a|ab|b)(?:a|b|ab).*c",
    ],
)  # fmt: skip
@pytest.mark.parametrize("line", ["a" * MAX_LINE_CHARS, "ab" * (MAX_LINE_CHARS // 2), "a" * 16_384])
def test_the_worst_pattern_is_quick(pattern: str, line: str) -> None:
    """REGEX-1: on as long a log as there is, made for the pattern. Backtracking takes hours or more
    on this."""
    rule = OperatorRule(name="r", pattern=pattern, cause=Cause.UNKNOWN)
    log = "\n".join([line] * (16_384 // len(line)))
    began = time.process_time()
    find_match(rule, TaskFacts(exit_code=1, log_tail=log))
    assert time.process_time() - began < 20.0  # milliseconds, where nothing else runs


def test_bytes_that_are_no_text_match_as_any_letter() -> None:
    """A log's bytes that are no UTF-8 arrive as U+FFFD; half a surrogate pair cannot even be
    written as UTF-8."""
    rule = OperatorRule(name="r", pattern="lost .+ at rank", cause=Cause.UNKNOWN)
    for line in (b"lost \xff\xfe at rank 3".decode(errors="replace"), "lost \udcff at rank 3"):
        found = find_match(rule, TaskFacts(exit_code=1, log_tail=f"x\n{line}\ny"))
        assert found is not None
        assert str(found["line"]).endswith("at rank 3")


OLD = '[[rule]]\nname = "old"\npattern = "lost(?! contact)"\nnever_retry = true\n'


def test_a_stored_pattern_that_re2_cannot_read_goes_on_until_it_is_changed() -> None:
    (old,) = parse_rules(OLD, keeps=lambda pattern: True)
    assert list_outdated([old, *parse_rules(GOOD)]) == ["old"]
    assert find_match(old, TaskFacts(exit_code=1, log_tail="lost contact")) is None
    assert find_match(old, TaskFacts(exit_code=1, log_tail="it is lost")) is not None
    with pytest.raises(ValidationError, match="line 3: pattern: "):
        parse_rules(OLD)
    assert drop_rule(OLD + GOOD, "bad-config").startswith(OLD)


@pytest.mark.parametrize("pattern", ["[", "a*", "x" * (MAX_PATTERN_CHARS + 1), "(?P<a>x)(?P<a>y)"])
def test_what_is_no_pattern_of_python_is_refused(pattern: str) -> None:
    """Of a job's `fail_on`."""
    with pytest.raises(ValidationError, match="the pattern"):
        compile_for_python(pattern)


ATOMS = st.sampled_from(
    ["a", "b", "[ab]", ".", "[^b]", r"\w", "(?:a|b)", "(?:a|ab)", "(?:b.*a)", r"\s", r"\.", "[]x]"]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2,}", "*?", "{0,3}", "{1,9}"])
PARTS = st.lists(st.tuples(ATOMS, REPEATS).map("".join), min_size=1, max_size=5).map("".join)
PATTERNS = st.tuples(st.sampled_from(["", "^", "(?i)", "ab|"]), PARTS, st.sampled_from(["c", "$", "b", ""])).map(
    "".join
)  # fmt: skip


@given(PATTERNS, st.text("abcAB. \n", max_size=40))
def test_a_match_holds_the_words_it_is_looked_for_by(pattern: str, text: str) -> None:
    import re

    found = re.compile(pattern).search(text)
    if found is not None:
        assert find_words(pattern) in found[0]


# ---- matching


def test_a_pattern_is_looked_for_line_by_line_and_everywhere() -> None:
    rule = OperatorRule(name="r", pattern="^first.*last$", cause=Cause.UNKNOWN)
    assert find_match(rule, TaskFacts(exit_code=1, log_tail="x\nfirst and last\ny")) == {
        "in": "log",
        "line": "first and last",
    }
    assert find_match(rule, TaskFacts(exit_code=1, log_tail="first\nlast")) is None
    for source, facts in {
        "registry": TaskFacts(pull_error="first last"),
        "runtime": TaskFacts(runtime_error="first last"),
        "start": TaskFacts(start_error="first last"),
    }.items():
        assert find_match(rule, facts) == {"in": source, "line": "first last"}


def test_a_match_in_a_very_long_line_is_shown_short() -> None:
    rule = OperatorRule(name="r", pattern="needle", cause=Cause.UNKNOWN)
    found = find_match(rule, TaskFacts(exit_code=1, log_tail="x" * 900 + "needle" + "y" * 9000))
    assert found is not None
    assert "needle" in str(found["line"])
    assert len(str(found["line"])) <= 300


@given(st.sampled_from(ELIGIBLE), st.integers(1, 255))
def test_any_eligible_cause_may_be_concluded(cause: Cause, code: int) -> None:
    rules = parse_rules(f'[[rule]]\nname = "r"\nexit_codes = [{code}]\ncause = "{cause}"\n')
    assert classify(TaskFacts(exit_code=code), rules).cause is cause


@pytest.mark.parametrize("text", ["x = " + "1" * 5000, "x = " + "[" * 5000, "x = 1979-99-99"])
def test_what_the_reader_of_toml_cannot_hold_is_refused_like_any_other_text(text: str) -> None:
    with pytest.raises(ValidationError, match="line 1"):
        parse_rules(text)


@given(st.sets(st.sampled_from("abcd"), min_size=1), st.booleans())
def test_a_rule_is_dropped_with_its_comment_and_the_other_rules_stay_as_written(
    names: set[str], commented: bool
) -> None:
    comment = "# [[rule]] of one\n" if commented else ""
    rules = {
        name: f'{comment}[[rule]]\nname = "{name}"\npattern = "\u2028{name}"\navoid_host = true\n\n'
        for name in sorted(names)
    }
    text = "".join(rules.values())
    for name in names:
        assert drop_rule(text, name) == text.replace(rules[name], "")


def test_a_rule_that_is_not_there_or_stands_in_a_list_is_not_dropped() -> None:
    with pytest.raises(NotFound, match="no rule 'x'"):
        drop_rule("", "x")
    with pytest.raises(ValidationError, match="in one list"):
        drop_rule('rule = [{name = "x", pattern = "y", avoid_host = true}]', "x")
