"""Patterns that people write: those of operators' rules, which RE2 reads, and a job's `fail_on`,
which Python reads, because hosts have no RE2.

REGEX-1  A search with an operator's pattern takes time with the length of what is searched, of each
         line the first `MAX_LINE_CHARS`, with any pattern.
"""

import re
import warnings
from typing import Any, Protocol, TypeVar

from holdfast.errors import ValidationError

MAX_LINE_CHARS = 1000
MAX_PATTERN_CHARS = 500
_MAX_RE2_BYTES = 1 << 20  # of one compiled pattern and its states


class MatchPlace(Protocol):
    """Where in a line a pattern matched."""

    def start(self) -> int:
        """Return the place of the first character."""

    def end(self) -> int:
        """Return the place behind the last character."""


class LinePattern(Protocol):
    """A compiled pattern."""

    def search(self, line: str, /) -> MatchPlace | None:
        """Return the first place in a line that the pattern matches."""


Compiled = TypeVar("Compiled", bound=LinePattern)


def compile_pattern(text: str) -> LinePattern:
    """Compile an operator's pattern. Where RE2 is not installed, as beside the command line alone,
    Python reads the pattern. Raises ValidationError."""
    try:
        import re2  # in the server's extra, and loaded by the first rule with a pattern
    except ImportError:
        return compile_for_python(text)
    _check_length(text)
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MAX_RE2_BYTES
    try:
        compiled: LinePattern = re2.compile(text, options)
    except re2.error as error:
        said = f"{say_refusal(error)}; patterns are written as RE2 reads them, without look-arounds"
        raise ValidationError(f"the pattern cannot be read: {said} and back-references") from None
    finally:
        re2.purge()  # the module keeps 128 patterns beside those that are kept here
    return _check_empty(compiled)


def compile_for_python(text: str) -> re.Pattern[str]:
    """Compile a pattern of Python's own. Raises ValidationError."""
    _check_length(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return _check_empty(re.compile(text))
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ValidationError(f"the pattern is no regular expression: {error}") from None


def say_refusal(error: Any) -> str:
    """Return what RE2 says of a pattern that it cannot read."""
    said = error.args[0] if error.args else "it cannot be read"
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _check_length(text: str) -> None:
    if len(text) > MAX_PATTERN_CHARS:
        size = f"the pattern has {len(text)} characters"
        raise ValidationError(f"{size}; the limit is {MAX_PATTERN_CHARS}")


def _check_empty(compiled: Compiled) -> Compiled:
    if compiled.search("") is not None:
        raise ValidationError("the pattern matches an empty line, so it would match everything")
    return compiled
