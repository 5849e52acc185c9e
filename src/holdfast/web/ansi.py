"""Lines of a job's output as markup: colours of terminals become classes, and nothing that a job
prints is ever markup itself. Pure."""

from __future__ import annotations

import re

import msgspec
from markupsafe import Markup, escape

MAX_LINE_CHARS = 8192
"""A longer line is shown in pieces, because a browser lays out one of megabytes for seconds."""
_ESCAPE = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]{0,64})m|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"
    r"|\x1b[ -/]{0,8}[0-~]"
)
# Control characters, except tabs, and those that reverse the writing.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class TextLook(msgspec.Struct, frozen=True):
    """The colour and the weight in which a terminal would write now."""

    colour: str = ""
    bold: bool = False

    def apply(self, codes: str) -> TextLook:
        """Return the look after an SGR sequence with these codes; codes of 256 colours and of
        backgrounds change nothing."""
        colour, bold = self.colour, self.bold
        numbers = [int(code) if code.isdigit() else 0 for code in re.split("[;:]", codes)]
        at = 0
        while at < len(numbers):
            code = numbers[at]
            if code == 0:
                colour, bold = "", False
            elif code == 1:
                bold = True
            elif code == 22:
                bold = False
            elif code in (38, 48):
                at += 2 if numbers[at + 1 : at + 2] == [5] else 4
            elif code == 39:
                colour = ""
            elif 30 <= code <= 37:
                colour = f"c{code - 30}"
            elif 90 <= code <= 97:
                colour = f"c{code - 90}"
            at += 1
        return TextLook(colour, bold)

    @property
    def classes(self) -> str:
        """Return the names of the look's classes."""
        return " ".join(filter(None, (self.colour, "bold" if self.bold else "")))


class MarkupLines:
    """Cuts the bytes of one stream into lines of markup, as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self._look = TextLook()

    def cut(self, data: bytes) -> list[Markup]:
        """Return the lines that are whole now. What follows the last carriage return of a line is
        shown, as a terminal would leave it."""
        *lines, rest = (self._rest + data).split(b"\n")
        while len(rest) > MAX_LINE_CHARS:
            lines.append(rest[:MAX_LINE_CHARS])
            rest = rest[MAX_LINE_CHARS:]
        self._rest = rest
        return [self._mark(piece) for line in lines for piece in _pieces(line)]

    def end(self) -> list[Markup]:
        """Return the last line, where no line end followed it."""
        rest, self._rest = self._rest, b""
        return [self._mark(rest)] if rest else []

    def _mark(self, line: bytes) -> Markup:
        text = line.decode("utf-8", "replace").rstrip("\r")
        text = text.rpartition("\r")[2]
        out, at = Markup(""), 0
        for found in _ESCAPE.finditer(text):
            out += self._dress(text[at : found.start()])
            at = found.end()
            if found["sgr"] is not None:
                self._look = self._look.apply(found["sgr"])
        return out + self._dress(text[at:])

    def _dress(self, text: str) -> Markup:
        if not text:
            return Markup("")
        clean = escape(_CONTROL.sub("\ufffd", text))
        classes = self._look.classes
        return Markup('<span class="{}">{}</span>').format(classes, clean) if classes else clean


def _pieces(line: bytes) -> list[bytes]:
    starts = range(0, max(1, len(line)), MAX_LINE_CHARS)
    return [line[at : at + MAX_LINE_CHARS] for at in starts]
