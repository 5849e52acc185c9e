"""Lines of a job's output as markup: colours of terminals become classes, and nothing that a job
prints is ever markup itself. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
from markupsafe import Markup, escape

MAX_LINE = 8192
"""Of a longer line so many characters are shown, because a browser lays out one of megabytes for seconds."""
MAX_PARTS = 2000
"""So many parts of a line have colours of their own; what follows is not shown."""
_KEPT_BYTES = 8 * MAX_LINE
"""So much of a line is read, because colours stand between its characters."""
_ROWS = 64
"""So many lines back a program may go with the cursor, to write them anew."""
_MOVE = re.compile(rb"\n|\x1b\[([0-9]{0,3})([ABEF])")
_HALF_MOVE = re.compile(rb"\x1b(\[[0-9]{0,3})?\Z")
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


class MarkedLine(NamedTuple):
    """A line as markup. offset: where it begins in its stream. whole: its end has come. again: it was
    returned before, and is written anew."""

    offset: int
    text: Markup
    whole: bool = True
    again: bool = False


class MarkupLines:
    """Cuts the bytes of one stream into lines of markup, as they come. A line to which the cursor went back, as
    of stacked progress bars, is returned again under its offset.

    offset: the place in the stream at which the bytes begin. skips: leave out the line that had begun before it.
    """

    def __init__(self, offset: int = 0, *, skips: bool = False) -> None:
        self.offset = offset
        self._rows, self._row = [offset], 0
        self._fresh = True
        self._half = b""
        self._skips = skips
        self._rest = b""
        self._more = 0
        self._returned = False
        self._look = TextLook()
        self._shown = True

    def cut(self, data: bytes) -> list[MarkedLine]:
        """Return the lines that are whole now. What follows the last carriage return of a line is
        shown, as a terminal would leave it; of a long line its beginning, with its length."""
        begin, data = self.offset - len(self._half), self._half + data
        found = _HALF_MOVE.search(data, max(0, len(data) - 5))
        self.offset, self._half = begin + len(data), found[0] if found else b""
        data, at, made = data[: len(data) - len(self._half)], 0, []
        for move in _MOVE.finditer(data):
            self._add(data[at : move.start()])
            at = move.end()
            if self._skips and move[2]:
                continue
            if not self._skips and (self._fresh or self._rest.strip(b"\r")):
                made.append(MarkedLine(self._rows[self._row], self._write(), again=not self._fresh))
            self._move(move, begin + at)
        self._add(data[at:])
        return made

    def _move(self, move: re.Match[bytes], offset: int) -> None:
        """Move the cursor to another line. offset: where that line begins if it is new."""
        count, last = int(move[1] or 1), len(self._rows) - 1
        back = move[2] in (b"A", b"F")
        self._row += -count if back else count
        self._fresh = self._skips or (move[2] is None and self._row > last)
        if self._skips:
            self._rows, self._row = [offset], 0
        elif self._fresh:
            self._rows = [*self._rows[1 - _ROWS :], offset]
        self._row = max(0, min(self._row, len(self._rows) - 1))
        self._skips, self._rest, self._more, self._returned = False, b"", 0, False

    def show_rest(self) -> MarkedLine | None:
        """Return the line that has not ended, where more of it came since it was shown last."""
        if self._shown or self._skips or not self._rest:
            return None
        self._shown, look = True, self._look
        text, self._look = self._write(), look
        return MarkedLine(self._rows[self._row], text, whole=False)

    def _add(self, piece: bytes) -> None:
        again = piece.rstrip(b"\r").rfind(b"\r") + 1
        if again or (self._returned and piece.strip(b"\r")):
            self._rest, self._more, piece = b"", 0, piece[again:]
        self._returned = piece.endswith(b"\r") if piece else self._returned
        room = _KEPT_BYTES - len(self._rest)
        self._rest += piece[:room]
        self._more += max(0, len(piece) - room)
        self._shown = self._shown and not piece

    def _write(self) -> Markup:
        marked, cut = self._mark(self._rest)
        if self._more or cut:
            size = self._more + len(self._rest)
            note = f" … ({size:,} bytes in this line; Download has them all)"
            marked += Markup("<i>{}</i>").format(note)
        return marked

    def _mark(self, line: bytes) -> tuple[Markup, bool]:
        """Return a line's text in its colours, and whether a part of the text is left out."""
        text = line.decode("utf-8", "replace").rstrip("\r")
        text = text.rpartition("\r")[2]
        out: list[Markup] = []
        at, room, cut = 0, MAX_LINE, False
        for found in (*_ESCAPE.finditer(text), None):
            piece = text[at : len(text) if found is None else found.start()]
            if piece:
                cut = cut or len(piece) > room or len(out) == MAX_PARTS
                out += [] if len(out) == MAX_PARTS else [self._dress(piece[:room])]
                room -= min(room, len(piece))
            if found is not None:
                at = found.end()
                if found["sgr"] is not None:
                    self._look = self._look.apply(found["sgr"])
        return Markup("").join(out), cut

    def _dress(self, text: str) -> Markup:
        if not text:
            return Markup("")
        clean = escape(_CONTROL.sub("\ufffd", text))
        classes = self._look.classes
        return Markup('<span class="{}">{}</span>').format(classes, clean) if classes else clean


def write_plain(text: str) -> Markup:
    """Return a text of a job without colours, with what a terminal would act on taken out."""
    return escape(_CONTROL.sub("\ufffd", _ESCAPE.sub("", text)))
