"""A pattern as a search uses it: compiled for a linear engine, and the texts that it asks for."""

import re
from typing import NamedTuple

from holdfast.core.logs.regex import say_refusal
from holdfast.core.logs.scan import Finder
from holdfast.core.logs.texts import find_texts
from holdfast.errors import ValidationError

MAX_INSTRUCTIONS = 1000
"""The largest compiled pattern: in the worst case, matching takes time with its size."""
_MANY_LINES = "(?m)"  # ^ and $ are the ends of a line
_WHOLE_TEXT = re.compile(r"(?<!\\)(?:\\\\)*\\[Az]")


class LogPattern(NamedTuple):
    """A compiled pattern. texts: one of them is in each line that matches; none where not known."""

    find: Finder
    texts: list[bytes]


def compile_pattern(pattern: str, *, ignore_case: bool, fixed: bool) -> LogPattern:
    """Compile a pattern of RE2. fixed: it is a text, not a pattern. Raises ValidationError."""
    import re2  # in the server's extra, and loaded by the first search

    options = re2.Options()
    options.never_nl = options.never_capture = True
    options.log_errors = False
    options.case_sensitive = not ignore_case
    written = re2.escape(pattern) if fixed else pattern
    if _WHOLE_TEXT.search(written):
        raise _refuse(r"a line begins at ^ and ends at $; \A and \z mean nothing here")
    try:
        compiled = re2.compile(_MANY_LINES + written, options)
    except re2.error as error:
        words = say_refusal(error).replace(_MANY_LINES, "")
        raise _refuse(f"{words}; patterns are written as RE2 reads them") from None
    finally:
        re2.purge()  # the module keeps 128 patterns, each with megabytes of states
    if compiled.programsize > MAX_INSTRUCTIONS:
        raise _refuse(
            f"it is too large: {compiled.programsize} instructions of {MAX_INSTRUCTIONS}; ask for "
            "fewer repeats or fewer choices"
        )

    def find(text: bytes, at: int) -> tuple[int, int] | None:
        found = compiled.search(text, at)
        return None if found is None else found.span()

    return LogPattern(find, find_texts(written, ignore_case=ignore_case))


def _refuse(reason: str) -> ValidationError:
    return ValidationError(f"query.pattern: {reason}", field="query.pattern", code="bad_pattern")
