"""`holdfast`: one click group, which imports a command's module when the command is used."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from holdfast.cli.commands import COMMANDS, PROGRAM
from holdfast.cli.endings import EXIT_NO_READER, drop_output, guard
from holdfast.cli.foreign import answer_command
from holdfast.lean import import_msgspec
from holdfast.version import DISTRIBUTION

_EPILOG = """\
\b
Examples:
  holdfast up                                start everything here
  holdfast run -- python train.py            run, follow, exit with its code
  holdfast submit --gpus 1 --time-limit 2h -- python train.py
  holdfast why JOB                           what is it waiting for?

\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused by its state,
5 not authorised, 6 controller unreachable, 7 over quota. `run` exits with the
job's code.
"""


_WITHOUT_MSGSPEC = ("version", "completion", "beat")


def name_attribute(command: str) -> str:
    """Return the name that a command's function has in its module."""
    name = command.replace("-", "_")
    return f"{name}_" if name in ("exec",) else name


class LazyGroup(click.Group):
    """A group that imports a command at its use, and ends failures in one or two plain lines."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name, ("",))[0]
        if not module:
            return None
        if cmd_name not in _WITHOUT_MSGSPEC:
            import_msgspec()  # first, because a command's modules would import its extensions too
        found = getattr(importlib.import_module(f"holdfast.cli.{module}"), name_attribute(cmd_name))
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            answer = answer_command(args[0], COMMANDS)
            hint = f". {answer}" if answer else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[1]) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click's own end of it is exit code 1
            drop_output()
            raise click.exceptions.Exit(EXIT_NO_READER) from None

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run one command and exit with its code."""
        words = list(sys.argv[1:] if args is None else args)
        extra |= {"prog_name": PROGRAM, "standalone_mode": False}
        sys.exit(guard(lambda: super(LazyGroup, self).main(words, *rest, **extra), words))


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 80,
        "show_default": True,
    },
    epilog=_EPILOG,
)
@click.version_option(None, "--version", package_name=DISTRIBUTION, message="holdfast %(version)s")
@click.option(
    "-c", "--context", metavar="NAME", help="The server of this name, for any command about one."
)
def cli(context: str | None) -> None:
    """Holdfast keeps GPU work running until it is finished."""


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
    """Run the program's words (`holdfast …`) and exit."""
    open_standard_streams()
    cli.main()
