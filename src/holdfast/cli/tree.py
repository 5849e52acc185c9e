"""The tree of commands as click knows it: help, completion, errors, and every word that is not read
without it.

A command's module is imported when the command runs, never for `holdfast --help`.
"""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from holdfast.cli.commands import COMMANDS, HIDDEN, load_command
from holdfast.cli.endings import guard

_EPILOG = """\
\b
Examples:
  holdfast up                                   start everything here
  holdfast run -- python train.py               run, follow, exit with its code
  holdfast submit --gpus 1 --time-limit 2h -- python train.py
  holdfast why JOB                              what is it waiting for?

\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused by its state,
5 not authorised, 6 controller unreachable, 7 over quota. `run` exits with the job's code.
"""


class LazyGroup(click.Group):
    """A group that imports a command at its use, and ends failures in one or two plain lines."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = load_command(cmd_name)
        return None if command is None else command.click

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (*COMMANDS, *HIDDEN) and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f". Did you mean `holdfast {near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[1]) for name, entry in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run one command and exit with its code."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        sys.exit(guard(lambda: super(LazyGroup, self).main(words, *rest, **extra), words))


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog=_EPILOG,
)
@click.version_option(None, "--version", package_name="holdfast", message="holdfast %(version)s")
def cli() -> None:
    """Holdfast keeps GPU work running until it is finished."""
