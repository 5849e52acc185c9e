"""The cost of a regular expression, read from its parse tree, to refuse one that can blow up.

REGEX-1  A search with an accepted expression, line by line and `MAX_LINE_CHARS` of each, takes at
         most a number of steps that grows with the square of the line's length.

Python's engine backtracks: it tries every way in which the repeats of an expression can share a
text among them. A repeat is *open* when it may go on for long (`*`, `+`, `{2,}`, more than `WIDE`
times) and what follows it can begin with what it repeats, as in `.*foo`: it can stop anywhere, and
each place is tried. `[^:]*:` is not open: it can stop only at the colon. Three
things multiply the work by the line's length: each open repeat; an expression that may match
anywhere, because each start is tried; and a repeat directly behind an open one, because it is tried
again from each place where the open one may stop, as in
`.*\\d+x`.
"""

import re
import warnings
from re import _constants as op  # type: ignore[attr-defined]  # private, but the only parse tree there is
from re import _parser as parser  # type: ignore[attr-defined]  # likewise
from typing import Any, NamedTuple

from holdfast.errors import ValidationError

MAX_LINE_CHARS = 1000
MAX_PATTERN_CHARS = 500
WIDE = 4
"""A repeat of more than this many times counts as one without end."""
MAX_WAYS = 32
"""Most choices whose number does not grow with the line: alternatives and short repeats."""

_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_SAMPLES = [chr(code) for code in range(128)] + list("\x85\xa0ßéΩ٣中\u2028😀")


class Cost(NamedTuple):
    """The cost of a part of an expression. open: number of open repeats in a row (see the module).
    ways: number of choices that does not grow with the line."""

    open: int
    ways: int


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile an operator's expression; raise ValidationError for a bad or costly one (REGEX-1)."""
    if len(text) > MAX_PATTERN_CHARS:
        size = f"the pattern has {len(text)} characters"
        raise ValidationError(f"{size}; the limit is {MAX_PATTERN_CHARS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = parser.parse(text)
            compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ValidationError(f"the pattern is no regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValidationError("the pattern matches an empty line, so it would match everything")
    items = list(tree)
    ignore_case = bool(tree.state.flags & re.IGNORECASE)
    cost = _measure(items, [], ignore_case)
    begins = ((op.AT, op.AT_BEGINNING), (op.AT, op.AT_BEGINNING_STRING))
    anchored = bool(items) and tuple(items[0]) in begins
    allowed = 2 if anchored else 1
    if cost.open > allowed:
        raise ValidationError(
            f"the pattern has {cost.open} repeats that can stop anywhere, which can take very "
            "long on a long line; "
            f"{allowed} is allowed{'' if anchored else ' (2 in a pattern that begins with ^)'}. "
            "Write what may not be passed over: [^:]*: in place of .*:"
        )
    if cost.ways > MAX_WAYS:
        raise ValidationError(
            f"the pattern can match in {cost.ways if cost.ways < 10**9 else 'too many'} ways; "
            f"{MAX_WAYS} is allowed. Use fewer alternatives and short repeats, or several rules"
        )
    return compiled


def find_words(text: str) -> str:
    """Return the longest run of plain characters that every match contains; "" where there is none.

    A search for these characters is some hundred times as fast as a search for the expression.
    """
    return max(_runs(list(parser.parse(text))), key=len, default="")


def _runs(items: list[Any]) -> list[str]:
    runs, run = [], ""
    for code, argument in items:
        if code is op.LITERAL:
            run += chr(argument)
            continue
        if code is op.SUBPATTERN and not argument[1] & re.IGNORECASE:
            runs += _runs(list(argument[3]))
        if code is not op.AT:
            runs.append(run)
            run = ""
    return [*runs, run]


def _measure(items: list[Any], follow: list[Any], ignore_case: bool) -> Cost:
    total = Cost(0, 1)
    # The first characters of the last open repeat, and of the items behind it.
    since: list[frozenset[str]] | None = None
    for place, item in enumerate(items):
        rest = items[place + 1 :] + follow
        found = _measure_item(item[0], item[1], rest, ignore_case)
        runs = _leading_repeat([item], ignore_case)
        # This repeat runs over the same text again from each end of an open repeat before it,
        # unless it cannot match that text, or an item that it cannot match stands between the two.
        again = since is not None and bool(runs) and not found.open
        again = again and all(runs & chars for chars in since or ())
        total = Cost(total.open + found.open + again, min(total.ways * found.ways, 10**9))
        if found.open:
            since = [_first([item], ignore_case)]
        elif since is not None and not _may_be_empty([item]):
            since.append(_first([item], ignore_case))
    return total


def _leading_repeat(items: list[Any], ignore_case: bool) -> frozenset[str]:
    """Return the characters of the wide repeats with which a match of `items` may begin."""
    found: frozenset[str] = frozenset()
    for code, argument in items:
        if code is op.SUBPATTERN:
            found |= _leading_repeat(
                list(argument[3]), ignore_case or bool(argument[1] & re.IGNORECASE)
            )
        elif code is op.ATOMIC_GROUP:
            found |= _leading_repeat(list(argument), ignore_case)
        elif code is op.BRANCH:
            found = found.union(
                *(_leading_repeat(list(branch), ignore_case) for branch in argument[1])
            )
        elif code in _REPEATS:
            body = list(argument[2])
            found |= (
                _first(body, ignore_case)
                if argument[1] > WIDE
                else _leading_repeat(body, ignore_case)
            )
        if not _may_be_empty([(code, argument)]):
            break
    return found


def _measure_item(code: Any, argument: Any, rest: list[Any], ignore_case: bool) -> Cost:
    if code in (op.GROUPREF, op.GROUPREF_EXISTS):
        raise ValidationError(
            "the pattern refers back to a group (\\1), which can take very long; leave that out"
        )
    if code in (op.ASSERT, op.ASSERT_NOT):
        raise ValidationError(
            "the pattern looks ahead or behind ((?=, (?!, (?<), which is not supported"
        )
    if code is op.SUBPATTERN:
        return _measure(list(argument[3]), rest, ignore_case or bool(argument[1] & re.IGNORECASE))
    if code is op.ATOMIC_GROUP:
        return _measure(list(argument), rest, ignore_case)
    if code is op.BRANCH:
        costs = [_measure(list(branch), rest, ignore_case) for branch in argument[1]]
        return Cost(max(cost.open for cost in costs), sum(cost.ways for cost in costs))
    if code in _REPEATS:
        return _measure_repeat(argument, rest, ignore_case)
    return Cost(0, 1)


def _measure_repeat(argument: Any, rest: list[Any], ignore_case: bool) -> Cost:
    least, most, body = argument
    items = list(body)
    if most > WIDE and _has_choice(items):
        raise ValidationError(
            "the pattern repeats something that itself repeats or has alternatives, as (a+)+ or "
            "(a|b)* do, which can take very long; write it without the outer or the inner repeat"
        )
    inner = _measure(items, [*items, *rest], ignore_case)
    is_open = least != most and _may_overlap(items, rest, ignore_case)
    # A wide repeat grows with the line; a narrow one multiplies the choices by a fixed number.
    if most > WIDE:
        return Cost(1 if is_open else 0, 1)
    choices = inner.ways ** int(most) * (int(most) - int(least) + 1 if is_open else 1)
    return Cost(inner.open * int(most), min(choices, 10**9))


def _has_choice(items: list[Any]) -> bool:
    for code, argument in items:
        if code in _REPEATS or code is op.BRANCH:
            return True
        if code is op.SUBPATTERN and _has_choice(list(argument[3])):
            return True
        if code is op.ATOMIC_GROUP and _has_choice(list(argument)):
            return True
    return False


def _may_overlap(body: list[Any], rest: list[Any], ignore_case: bool) -> bool:
    """Return whether the part after a repeat can begin with a character that the repeat matches."""
    if _may_be_empty(rest) and any(code is op.AT for code, _ in rest):
        return True  # `$` may refuse every place but the end of the line
    return bool(_first(body, ignore_case) & _first(rest, ignore_case))


def _first(items: list[Any], ignore_case: bool) -> frozenset[str]:
    """Return the sample characters with which a match of `items` can begin."""
    found: frozenset[str] = frozenset()
    for code, argument in items:
        if code is op.AT:
            continue
        chars, may_be_empty = _first_of(code, argument, ignore_case)
        found |= chars
        if not may_be_empty:
            break
    return found


def _first_of(code: Any, argument: Any, ignore_case: bool) -> tuple[frozenset[str], bool]:
    if code is op.SUBPATTERN:
        items = list(argument[3])
        return _first(items, ignore_case or bool(argument[1] & re.IGNORECASE)), _may_be_empty(items)
    if code is op.ATOMIC_GROUP:
        return _first(list(argument), ignore_case), _may_be_empty(list(argument))
    if code is op.BRANCH:
        branches = [list(branch) for branch in argument[1]]
        return (
            frozenset().union(*(_first(branch, ignore_case) for branch in branches)),
            any(_may_be_empty(branch) for branch in branches),
        )
    if code in _REPEATS:
        body = list(argument[2])
        return _first(body, ignore_case), argument[0] == 0 or _may_be_empty(body)
    found = {char for char in _SAMPLES if _matches(code, argument, char)}
    if code is op.LITERAL:
        found.add(chr(argument))
    if ignore_case:
        found |= {char.lower() for char in found} | {char.upper() for char in found}
    return frozenset(found), False


def _may_be_empty(items: list[Any]) -> bool:
    return all(
        code is op.AT
        or (
            code not in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)
            and _first_of(code, argument, False)[1]
        )
        for code, argument in items
    )


def _matches(code: Any, argument: Any, char: str) -> bool:
    """Return whether a character matches an element that stands for one character."""
    if code is op.LITERAL:
        return bool(ord(char) == argument)
    if code is op.NOT_LITERAL:
        return bool(ord(char) != argument)
    if code is op.ANY:
        return True
    if code is op.IN:
        negated = bool(argument) and argument[0][0] is op.NEGATE
        items = [item for item in argument if item[0] is not op.NEGATE]
        return negated != any(_matches(item[0], item[1], char) for item in items)
    if code is op.RANGE:
        return bool(argument[0] <= ord(char) <= argument[1])
    if code is op.CATEGORY:
        return _in_category(argument, char)
    return True  # an unknown element may begin with anything


def _in_category(category: Any, char: str) -> bool:
    name = str(category).removeprefix("CATEGORY_")
    inside = {
        "DIGIT": char.isdecimal(),
        "SPACE": char.isspace(),
        "WORD": char.isalnum() or char == "_",
    }[name.removeprefix("NOT_")]
    return inside != name.startswith("NOT_")
