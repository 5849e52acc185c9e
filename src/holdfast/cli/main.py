"""`holdfast`: ordinary words are read without click, because it costs as much as starting Python;
`tree` reads all others."""

import contextlib
import gc
import io
import os
import sys
from typing import Any, NoReturn

from holdfast.cli.commands import PROGRAM, load_command
from holdfast.cli.endings import guard
from holdfast.cli.output import print_line
from holdfast.lean import import_msgspec

_COMPLETION = "_HOLDFAST_COMPLETE"  # a shell asks click for the words that may follow
# Commands that ask a controller and keep nothing open: their process ends without taking down its
# modules one by one, which costs more than starting Python.
PLAIN = (
    *("jobs", "show", "why", "logs", "attempts", "cancel", "retry", "submit", "events", "hosts"),
    *("pools", "projects", "queues", "retries", "tasks", "version", "workflow", "schedules"),
)
# Those that run on, but nothing of a user's.
OWN = ("agent", "host-manager", "supervised-member", "up")
# Objects that such a command makes before garbage is looked for: most end before, with none.
PLAIN_OBJECTS = 100_000


def run_words(words: list[str]) -> Any:
    """Run one command and return what it returns; words that are click's to read go there."""
    if words and words[0] in (*PLAIN, *OWN):
        import_msgspec()
    command = load_command(words[0]) if words and _COMPLETION not in os.environ else None
    given = None if command is None else command.read(words[1:])
    if command is None or given is None:
        from holdfast.cli.tree import cli

        cli.main(words, prog_name=PROGRAM)
    try:
        return command.function(**given)
    except KeyboardInterrupt:
        print_line("", err=True)  # the terminal shows ^C
        raise


def open_standard_streams() -> None:
    """Open closed standard streams to nothing, so that no file or socket takes their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of a letter the terminal's encoding lacks


def main() -> NoReturn:
    """Entry point of the `holdfast` program."""
    open_standard_streams()
    words = sys.argv[1:]
    plain = words[:1] and words[0] in PLAIN
    if plain:
        gc.set_threshold(PLAIN_OBJECTS)
    try:
        sys.exit(guard(lambda: run_words(words), words))
    except SystemExit as end:
        if plain and isinstance(end.code, int):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # `guard` has told of it
                    stream.flush()
            os._exit(end.code)
        raise
