"""`holdfast`: the table of commands, and the end of every failure.

A command's module is imported when the command runs, never for `holdfast --help`.
"""

import contextlib
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from holdfast.cli.endings import EXIT_INTERRUPTED, EXIT_USAGE, exit_code_of, show_error
from holdfast.cli.output import note

PROGRAM = "holdfast"
# name → (module, help). The command is an attribute of the module; the help keeps this order.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up.up", "Start everything here: database, controller, one agent."),
    "run": ("jobs.run", "Run a command as a job, follow it, and exit with its code."),
    "submit": ("jobs.submit", "Submit a job and print its id."),
    "jobs": ("jobs.jobs", "List jobs."),
    "show": ("jobs.show", "Show one job: state, attempts, and why."),
    "logs": ("jobs.logs", "Print a job's output; -f follows it."),
    "attempts": ("jobs.attempts", "List a job's attempts, with cause and reason."),
    "why": ("jobs.show", "Say what holds a job up, and what to do about it."),
    "cancel": ("jobs.cancel", "Cancel jobs."),
    "retry": ("jobs.cancel", "Queue failed or cancelled jobs again."),
    "workflow": ("flow.workflow", "Run workflows: graphs of jobs, calls and questions."),
    "tasks": ("flow.tasks", "List calls of Python functions; call, cancel, retry."),
    "schedules": ("series.schedules", "Submit jobs at set times: cron and intervals."),
    "checkpoints": ("jobs.checkpoints", "List, fetch or forget a job's saved files."),
    "events": ("operate.events", "Show what happened; -f follows."),
    "hosts": ("operate.hosts", "List hosts; drain, quarantine or end them."),
    "pools": ("operate.pools", "List pools of hosts; make, scale, pause and end them."),
    "projects": ("operate.projects", "List projects: quotas, retry defaults; change them."),
    "retries": ("operate.retries", "Show holds on retries; hold or release them."),
    "queues": ("operate.queues", "List queues; change, pause and resume them."),
    "rules": ("operate.rules", "Show, check, try and set your rules of classification."),
    "config": ("operate.config", "Show every setting and the source of its value."),
    "webhooks": ("operate.webhooks", "Send events to URLs: signed, in order, repeated."),
    "token": ("operate.token", "Make, list and revoke tokens."),
    "beat": ("jobs.beat", "From inside a job: say that the work moved forward."),
    "checkpoint": ("jobs.checkpoints", "From inside a job: save for the next attempt."),
    "server": ("up.server", "Run the controller alone."),
    "agent": ("up.agent", "Run an agent that joins a controller."),
    "supervise": ("supervise", "Run a policy script over hosts that are replaced singly."),
    "host-manager": ("host_manager", "Make this machine a host of a policy script."),
    "db": ("operate.db", "Migrate the database, or show its version."),
    "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    "version": ("version", "Print the version."),
}
# Commands that Holdfast's own jobs run.
HIDDEN: dict[str, str] = {"supervised-member": "supervise"}

# Commands that ask a controller and keep nothing open: their process ends without taking down its
# modules one by one, which costs more than starting Python.
PLAIN = (
    *("jobs", "show", "why", "logs", "attempts", "cancel", "retry", "submit", "events", "hosts"),
    *("pools", "projects", "queues", "retries", "tasks", "version", "workflow", "schedules"),
)
# Objects that such a command makes before garbage is looked for: most end before, with none.
PLAIN_OBJECTS = 100_000

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
        module = HIDDEN.get(cmd_name) or COMMANDS.get(cmd_name, ("",))[0]
        if not module:
            return None
        attribute = cmd_name.replace("-", "_")
        gc.disable()  # what an import makes lives to the end: a collection would find nothing
        try:
            command = getattr(importlib.import_module(f"holdfast.cli.{module}"), attribute)
        finally:
            gc.enable()
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (*COMMANDS, *HIDDEN) and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean `holdfast {near[0]}`?" if near else "See `holdfast --help`."
            raise click.UsageError(f"there is no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[1]) for name, entry in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run one command and exit with its code."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["standalone_mode"] = False
        sys.exit(_guard(lambda: super(LazyGroup, self).main(words, *rest, **extra), words))


def _guard(run: Any, words: list[str]) -> int:
    own = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in own
    try:
        result = run()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        _show_usage(error, as_json)
        return error.exit_code if error.exit_code > 1 else EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 141
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        show_error(error, as_json)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return code


def _drop_output() -> None:
    """Discard Python's buffer, whose flush at the exit would fail on the same pipe or disk again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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


def _show_usage(error: click.ClickException, as_json: bool) -> None:
    if as_json:
        show_error(error, as_json)
        return
    context = getattr(error, "ctx", None)
    note(error.format_message())
    if context is not None and context.command is not None:
        click.echo(f"See `{context.command_path} --help`.", err=True)


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


def main() -> NoReturn:
    """Entry point of the `holdfast` program."""
    open_standard_streams()
    plain = sys.argv[1:2] and sys.argv[1] in PLAIN
    if plain:
        gc.set_threshold(PLAIN_OBJECTS)
    try:
        cli.main(prog_name=PROGRAM)
    except SystemExit as end:
        if plain and isinstance(end.code, int):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # `_guard` has told of it
                    stream.flush()
            os._exit(end.code)
        raise
