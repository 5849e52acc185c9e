"""The wording of one message, by which a rule recognises it: a regular expression, the part of the
log in which it counts, and what it means."""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from holdfast.core.causes import Cause


class LogPart(StrEnum):
    """The part of a log in which a message counts (PATTERN-4, LAST-1)."""

    END = "end"
    NEAR = "end and the lines before it"
    LAST = "last words"
    RAISED = "exception"


class Pattern(NamedTuple):
    """One message of a tool. name: the rule is called `log-NAME` (in a pull's error: `pull-NAME`).

    expressions: a regular expression for each wording of the message. cascade: the message reports
    a dead or silent peer, so the rank that prints it is a victim. part: the part of the log in
    which the message counts. code: the exit code that goes with it, 0 for any. elsewhere: the next
    attempt belongs on another host.
    """

    name: str
    expressions: tuple[str, ...]
    cause: Cause
    sentence: str
    cascade: bool = False
    part: LogPart = LogPart.END
    code: int = 0
    elsewhere: bool = False

    @property
    def alternatives(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """Return each expression with words that every matching text contains, because a search for
        the words first is ten times as fast."""
        return _compile(self.expressions)

    def search(self, text: str) -> re.Match[str] | None:
        """Return the match of the first alternative that occurs in `text`, or None."""
        for words, regex in self.alternatives:
            if words in text and (found := regex.search(text)) is not None:
                return found
        return None


def expect_end(
    name: str, cause: Cause, sentence: str, *alternatives: str, cascade: bool = False
) -> Pattern:
    """Return the pattern of a message that counts at the end of a log; a message of a peer's death
    counts in the lines before the end as well."""
    part = LogPart.NEAR if cascade else LogPart.END
    return Pattern(name, alternatives, cause, sentence, cascade, part)


def expect_last(
    name: str,
    cause: Cause,
    sentence: str,
    *alternatives: str,
    code: int = 0,
    elsewhere: bool = False,
) -> Pattern:
    """Return a message that counts only as the last words, or in the exception that ended it."""
    return Pattern(
        name, alternatives, cause, sentence, part=LogPart.LAST, code=code, elsewhere=elsewhere
    )


def expect_raised(name: str, sentence: str, *alternatives: str, elsewhere: bool = False) -> Pattern:
    """Return a mistake that counts only in the exception that ended the program."""
    # Python ends with 1 after an exception: with another code, something else ended the program.
    cause, part = Cause.PROGRAM_ERROR, LogPart.RAISED
    return Pattern(name, alternatives, cause, sentence, part=part, code=1, elsewhere=elsewhere)


@cache
def _compile(expressions: tuple[str, ...]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Compile expressions at the first search, because all of them take a tenth of an agent's
    start."""
    return tuple((find_words(text), re.compile(text)) for text in expressions)


_PARTS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[0-9,]+\}|\((?:\?(?:[a-z]*:|<?[=!]|P<\w+>))?|.", re.DOTALL
)
_REPEATS = ("*", "?", "{")
_KEPT_GROUPS = ("(", "(?:", "(?m:")


def find_words(expression: str) -> str:
    """Return the longest run of plain characters that every match contains; "" where there is
    none."""
    if expression.startswith("(?i)"):
        return ""
    return max(_list_runs(iter(_PARTS.findall(expression))), key=len)


def _list_runs(parts: Iterator[str]) -> list[str]:
    """Return the runs of plain characters up to the end of a group, which every match contains."""
    runs, group_at, has_choice = [""], -1, False
    for part in parts:
        last_group, group_at = group_at, -1
        if part == ")":
            break
        has_choice = has_choice or part == "|"
        if part[0] == "(":
            group_at, inner = len(runs), _list_runs(parts)
            runs += [*inner, ""] if part in _KEPT_GROUPS else [""]
        elif part[0] in _REPEATS and part != "{":  # what stands before may be left out
            if last_group >= 0:
                del runs[last_group:]
            runs[-1:] = [runs[-1][:-1], ""]
        elif len(part) == 1 and part not in ".^$+|":
            runs[-1] += part
        elif part[0] == "\\" and not part[1].isalnum():
            runs[-1] += part[1]
        else:
            runs.append("")
    return [""] if has_choice else runs
