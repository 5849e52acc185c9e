"""The texts that a line must hold for a pattern of RE2 to match it. Pure.

A pattern is read only as far as its meaning is certain. Where it is not, there is no text, and
every chunk is read (GREP-1 asks for no more).
"""

from typing import NamedTuple

from holdfast.core.logs.grams import GRAM_BYTES, TEXT_BYTES, fold

MAX_TEXTS = 8
MAX_DEPTH = 50
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_PLAIN_ESCAPES = {"t": "\t", "f": "\f", "v": "\v", "a": "\a", "r": "\r"}
_WIDE_ESCAPES = frozenset("dDsSwW")  # one character, any of many
_EMPTY_ESCAPES = frozenset("bBAz")
Texts = frozenset[str]


class _Part(NamedTuple):
    """A part of a pattern. exact: all texts that it matches, None where they are too many or not
    known. needs: texts of which each match holds one, None where there are none."""

    exact: Texts | None
    needs: Texts | None


_ANY = _Part(None, None)
_NOTHING = _Part(frozenset([""]), None)


class _NotRead(Exception):
    """Raised where a pattern holds a construct whose meaning this module does not know for
    certain."""


def find_texts(pattern: str, *, ignore_case: bool = False) -> list[bytes]:
    """Return texts, folded, one of which is in every line that the pattern matches; none where the
    pattern asks for no text of at least `GRAM_BYTES`."""
    try:
        reader = _PatternReader(pattern, ignore_case)
        part = reader.read_choices(0)
        if reader.at != len(pattern):
            return []
    except (_NotRead, IndexError):
        return []
    needs = _best_needs(part)
    if needs is None:
        return []
    texts = sorted({fold(text.encode())[:TEXT_BYTES] for text in needs})
    return [] if any(len(text) < GRAM_BYTES for text in texts) else texts


def _size(texts: Texts | None) -> int:
    """Return how telling texts are: the length of the shortest."""
    return -1 if not texts else min(len(text.encode()) for text in texts)


def _better(one: Texts | None, other: Texts | None) -> Texts | None:
    return one if _size(one) >= _size(other) else other


def _best_needs(part: _Part) -> Texts | None:
    return _better(part.exact, part.needs)


def _join(parts: list[_Part]) -> _Part:
    """Return the part of a pattern that these parts make in a row."""
    exact: Texts | None = frozenset([""])
    needs: Texts | None = None
    run: Texts = frozenset([""])
    for part in parts:
        needs = _better(needs, part.needs)
        found = part.exact
        if found is not None and len(found) * len(run) <= MAX_TEXTS:
            run = frozenset(a + b for a in run for b in found)
            continue
        needs, exact = _better(needs, run), None
        run = frozenset([""]) if found is None else found
    return _Part(run if exact is not None else None, _better(needs, run))


class _PatternReader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self.at = 0
        self._pattern, self._ignore_case = pattern, ignore_case

    def read_choices(self, depth: int) -> _Part:
        """Read parts with `|` between them, up to a closing parenthesis or the end."""
        if depth > MAX_DEPTH:
            raise _NotRead
        choices = [self._read_row(depth)]
        while self._peek() == "|":
            self.at += 1
            choices.append(self._read_row(depth))
        if len(choices) == 1:
            return choices[0]
        exact: Texts | None = frozenset()
        needs: Texts | None = frozenset()
        for choice in choices:
            one = _best_needs(choice)
            needs = None if needs is None or one is None else needs | one
            exact = None if exact is None or choice.exact is None else exact | choice.exact
        exact = exact if exact is not None and len(exact) <= MAX_TEXTS else None
        needs = needs if needs is not None and len(needs) <= MAX_TEXTS else None
        return _Part(exact, needs)

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _take(self) -> str:
        self.at += 1
        return self._pattern[self.at - 1]

    def _read_row(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while (char := self._peek()) and char not in "|)":
            parts.append(self._read_repeats(self._read_one(depth)))
        return _join(parts)

    def _read_repeats(self, part: _Part) -> _Part:
        while (char := self._peek()) and char in "*+?{":
            self.at += 1
            least = 0 if char in "*?" else 1
            if char == "{":
                least = self._read_count()
            if self._peek() == "?":  # asks for few, and matches the same lines
                self.at += 1
            if least == 0:
                part = _ANY
            else:
                part = _Part(None, _best_needs(part))
        return part

    def _read_count(self) -> int:
        """Read what follows `{`; return the least number of repeats."""
        end = self._pattern.find("}", self.at)
        low, _, high = self._pattern[self.at : end].partition(",")
        if end < 0 or not low.isdecimal() or not (high == "" or high.isdecimal()):
            raise _NotRead
        self.at = end + 1
        return int(low)

    def _read_one(self, depth: int) -> _Part:
        char = self._take()
        if char == "\\":
            return self._read_escape()
        if char == "(":
            return self._read_group(depth)
        if char == "[":
            return self._read_class()
        if char == ".":
            return _ANY
        if char in "^$":
            return _NOTHING
        if char in _SPECIAL:
            raise _NotRead
        return self._plain(char)

    def _plain(self, char: str) -> _Part:
        if char in "\n\ufffd" or (self._ignore_case and not char.isascii()):
            return _ANY
        return _Part(frozenset([char]), None)

    def _read_escape(self) -> _Part:
        char = self._take()
        if char in _WIDE_ESCAPES:
            return _ANY
        if char in _EMPTY_ESCAPES:
            return _NOTHING
        if char in _PLAIN_ESCAPES:
            return self._plain(_PLAIN_ESCAPES[char])
        if char.isascii() and not char.isalnum():
            return self._plain(char)
        raise _NotRead

    def _read_group(self, depth: int) -> _Part:
        if self._peek() == "?":
            self.at += 1
            self._read_group_head()
        part = self.read_choices(depth + 1)
        if self._take() != ")":
            raise _NotRead
        return part

    def _read_group_head(self) -> None:
        """Read what follows `(?` of a group whose texts count: `:`, `P<name>` or `<name>`."""
        if self._peek() == ":":
            self.at += 1
            return
        if self._peek() == "P":
            self.at += 1
        if self._peek() != "<":
            raise _NotRead  # flags, which may hold for what follows the group
        self.at = self._pattern.index(">", self.at) + 1 if ">" in self._pattern[self.at :] else 0
        if not self.at:
            raise _NotRead

    def _read_class(self) -> _Part:
        """Read a class of characters: any one character, unless it lists a few plain ones."""
        chars: list[str] = []
        if self._peek() == "^":
            self.at += 1
            chars.append("")
        first, plain = True, not chars
        while first or self._peek() != "]":
            char = self._take()
            plain = plain and char.isalnum() and char.isascii()
            if char == "\\":
                self._skip_escape()
            elif char == "[" and self._peek() == ":":
                end = self._pattern.index(":]", self.at) if ":]" in self._pattern[self.at :] else 0
                if not end:
                    raise _NotRead
                self.at = end + 2
            chars.append(char)
            first = False
        self.at += 1
        if not plain or len(chars) > MAX_TEXTS:
            return _ANY
        return _Part(frozenset(chars), None)

    def _skip_escape(self) -> None:
        if self._take() in "xpPQ01234567":  # longer ones
            raise _NotRead
